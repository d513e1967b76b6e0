//! Result of a rate check.

use std::{sync::Arc, time::Duration};

use smallvec::SmallVec;

use super::{engine::CheckRequest, policy_cost_and_reactions::Policy, quota::Quota};
use crate::{
    instruments::{DecisionOutcome, DecisionSource, PolicyResult, StoreCounters},
    store::QuotaSnapshot,
};

/// Result of one check over all its policies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    pub(super) admitted: bool,
    pub(super) decided_locally: bool,
    pub(super) policies: SmallVec<[PolicyDecision; 1]>,
}

/// Result of one policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicyDecision {
    pub(super) policy: Arc<Policy>,
    pub(super) quota: Quota,
    pub(super) reading: Option<QuotaReading>,
    pub(super) violated: bool,
}

/// State of a counter, as of the store's answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct QuotaReading {
    pub(super) remaining: u64,
    pub(super) reset_after: Duration,
    pub(super) retry_after: Duration,
}

impl Decision {
    /// Records the result of each policy, and the subjects that were refused. A policy that did not
    /// refuse a refused request was not charged, and is not counted.
    pub(super) fn record(
        &self,
        counters: &StoreCounters,
        request: &CheckRequest,
        source: DecisionSource,
    ) {
        let source = if self.decided_locally { DecisionSource::Local } else { source };
        for (decision, check) in self.policies.iter().zip(&request.checks) {
            if decision.violated {
                counters.policies().record_refusal(decision.policy.name(), &check.key);
            }
            let is_shadow = decision.policy.is_shadow();
            let outcome = match decision.violated {
                true if decision.is_too_costly() => DecisionOutcome::TooCostly,
                true => DecisionOutcome::Refused,
                false if self.admitted => DecisionOutcome::Admitted,
                false => continue,
            };
            let capacity = decision.quota.capacity().max(1);
            #[expect(clippy::cast_precision_loss, reason = "a ratio needs few digits")]
            let ratio = |reading: QuotaReading| reading.remaining as f64 / capacity as f64;
            counters.record_policy_result(PolicyResult {
                policy: decision.policy.name(),
                outcome,
                source,
                is_shadow,
                remaining_ratio: decision.reading.filter(|_| self.admitted).map(ratio),
            });
        }
    }

    /// Returns true if the request may pass. It was charged to all policies that limit it, unless:
    ///
    /// - its cost is 0;
    /// - the policies were only asked ([`peek`](crate::RateLimiter::peek));
    /// - the store was unavailable and the policy admits the request then
    ///   ([`RateLimitOutage`](crate::RateLimitOutage)).
    #[must_use]
    pub fn is_admitted(&self) -> bool {
        self.admitted
    }

    /// Returns the units that can be spent at once, of the policy with the fewest. `u64::MAX` if
    /// there is no limit.
    #[must_use]
    pub fn remaining(&self) -> u64 {
        self.binding_policy()
            .and_then(|decision| decision.reading)
            .map_or(u64::MAX, |reading| reading.remaining)
    }

    /// Returns the time until that policy has more units: the end of its window, or for GCRA the
    /// next request.
    #[must_use]
    pub fn reset_after(&self) -> Duration {
        self.binding_policy()
            .and_then(|decision| decision.reading)
            .map_or(Duration::ZERO, |reading| reading.reset_after)
    }

    /// Returns the time that a refused request has to wait, if no other request spends the same
    /// keys: the longest of the policies that refused it. Zero if it was admitted.
    #[must_use]
    pub fn retry_after(&self) -> Duration {
        let refusing = self.violated().filter_map(|decision| decision.reading);
        refusing.map(|reading| reading.retry_after).max().unwrap_or_default()
    }

    /// Returns true if the store was unavailable, and this process has decided by itself or
    /// admitted the request without a check; see [`RateLimitOutage`](crate::RateLimitOutage).
    #[must_use]
    pub fn is_local(&self) -> bool {
        self.decided_locally
    }

    /// Returns the result of each policy, in order.
    #[must_use]
    pub fn policies(&self) -> &[PolicyDecision] {
        &self.policies
    }

    /// Returns the policies that refused the request; none if it was admitted.
    /// [Shadow](Policy::shadow) policies are not among them.
    pub fn violated(&self) -> impl Iterator<Item = &PolicyDecision> {
        self.policies.iter().filter(|decision| decision.violated && !decision.policy.is_shadow())
    }

    /// Returns true if waiting does not help.
    pub(super) fn is_permanent(&self) -> bool {
        self.retry_after() == Duration::MAX
    }

    /// Returns the policy that a client must obey first: the longest refusal, or else the least
    /// remaining.
    pub(super) fn binding_policy(&self) -> Option<&PolicyDecision> {
        let longest_refusal = self
            .violated()
            .max_by_key(|decision| decision.reading.map(|reading| reading.retry_after));
        longest_refusal.or_else(|| {
            let enforced = self.policies.iter().filter(|decision| !decision.policy.is_shadow());
            enforced.filter(|decision| decision.reading.is_some()).min_by_key(|decision| {
                decision.reading.map(|QuotaReading { remaining, reset_after, .. }| {
                    (remaining, u128::MAX - reset_after.as_nanos())
                })
            })
        })
    }
}

impl PolicyDecision {
    pub(super) fn new(policy: &Arc<Policy>, quota: Quota) -> Self {
        Self { policy: Arc::clone(policy), quota, reading: None, violated: false }
    }

    /// Returns the policy.
    #[must_use]
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Returns its quota for this request, which may differ from the policy's own.
    #[must_use]
    pub fn quota(&self) -> Quota {
        self.quota
    }

    /// Returns true if the policy would refuse the request.
    #[must_use]
    pub fn is_violated(&self) -> bool {
        self.violated
    }

    /// Returns the units that can be spent at once. `None` if the store was not asked: for an
    /// unlimited quota, a shadow policy of a refused request, or an unavailable store.
    #[must_use]
    pub fn remaining(&self) -> Option<u64> {
        self.reading.map(|reading| reading.remaining)
    }

    /// Returns the time until more units are available, if known.
    #[must_use]
    pub fn reset_after(&self) -> Option<Duration> {
        self.reading.map(|reading| reading.reset_after)
    }

    /// Returns the time that the request has to wait for this policy. Zero if it is admitted,
    /// `Duration::MAX` if its cost exceeds the capacity.
    #[must_use]
    pub fn retry_after(&self) -> Duration {
        self.reading.filter(|_| self.violated).map_or(Duration::ZERO, |reading| reading.retry_after)
    }

    /// Returns true if the cost exceeds the capacity: no wait ends the refusal. Of a policy in
    /// shadow mode nothing is read then.
    fn is_too_costly(&self) -> bool {
        self.reading.is_none_or(|reading| reading.retry_after == Duration::MAX)
    }
}

impl QuotaReading {
    pub(super) fn from_state(state: &QuotaSnapshot) -> Self {
        let QuotaSnapshot { remaining, reset_after, retry_after, .. } = *state;
        Self { remaining, reset_after, retry_after }
    }
}
