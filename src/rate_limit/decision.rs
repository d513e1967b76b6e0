//! What a limiter says.

use std::{sync::Arc, time::Duration};

use smallvec::SmallVec;

use super::{policy::Policy, quota::Quota};
use crate::store::QuotaSnapshot;

/// What became of one check, over all its policies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    pub(super) admitted: bool,
    pub(super) decided_locally: bool,
    pub(super) policies: SmallVec<[PolicyDecision; 1]>,
}

/// What one of the policies said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicyDecision {
    pub(super) policy: Arc<Policy>,
    pub(super) quota: Quota,
    pub(super) reading: Option<QuotaReading>,
    pub(super) violated: bool,
}

/// The numbers, as of the store's answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct QuotaReading {
    pub(super) remaining: u64,
    pub(super) reset_after: Duration,
    pub(super) retry_after: Duration,
}

impl Decision {
    /// Whether the request may pass. It was charged to all of the policies that limit it, unless its cost is 0, they were
    /// only asked ([`peek`](crate::RateLimiter::peek)), or the store was away and the policy lets it pass
    /// ([`RateLimitOutage`](crate::RateLimitOutage)).
    #[must_use]
    pub fn is_admitted(&self) -> bool {
        self.admitted
    }

    /// What is left and may be spent at once, of the policy that leaves the least. `u64::MAX` if
    /// nothing limits.
    #[must_use]
    pub fn remaining(&self) -> u64 {
        self.binding_policy().and_then(|each| each.reading).map_or(u64::MAX, |told| told.remaining)
    }

    /// When that policy has more to spend: the end of its window, or, for GCRA, the next request.
    #[must_use]
    pub fn reset_after(&self) -> Duration {
        self.binding_policy()
            .and_then(|each| each.reading)
            .map_or(Duration::ZERO, |told| told.reset_after)
    }

    /// How long a refused request has to wait, if nobody else spends the keys meanwhile: the longest of
    /// the policies that refused it. Zero if it was admitted.
    #[must_use]
    pub fn retry_after(&self) -> Duration {
        let refusing = self.violated().filter_map(|each| each.reading);
        refusing.map(|told| told.retry_after).max().unwrap_or_default()
    }

    /// Whether the store was away, and this process has decided by itself, or has let it pass: see
    /// [`RateLimitOutage`](crate::RateLimitOutage).
    #[must_use]
    pub fn is_local(&self) -> bool {
        self.decided_locally
    }

    /// What each policy said, in their order.
    #[must_use]
    pub fn policies(&self) -> &[PolicyDecision] {
        &self.policies
    }

    /// Those that refused it: none, if it was admitted. [Shadow](Policy::shadow) policies are not
    /// among them.
    pub fn violated(&self) -> impl Iterator<Item = &PolicyDecision> {
        self.policies.iter().filter(|each| each.violated && !each.policy.is_shadow())
    }

    /// Whether no waiting helps.
    pub(super) fn is_permanent(&self) -> bool {
        self.retry_after() == Duration::MAX
    }

    /// The policy that a client has to mind: of a refusal, whoever refuses for longest; else whoever
    /// leaves least.
    pub(super) fn binding_policy(&self) -> Option<&PolicyDecision> {
        let longest = self.violated().max_by_key(|each| each.reading.map(|told| told.retry_after));
        longest.or_else(|| {
            let enforced = self.policies.iter().filter(|each| !each.policy.is_shadow());
            enforced.filter(|each| each.reading.is_some()).min_by_key(|each| {
                each.reading.map(|QuotaReading { remaining, reset_after: reset, .. }| {
                    (remaining, u128::MAX - reset.as_nanos())
                })
            })
        })
    }
}

impl PolicyDecision {
    pub(super) fn new(policy: &Arc<Policy>, quota: Quota) -> Self {
        Self { policy: Arc::clone(policy), quota, reading: None, violated: false }
    }

    /// The policy.
    #[must_use]
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// The quota it had for this request, which may differ from the policy's own.
    #[must_use]
    pub fn quota(&self) -> Quota {
        self.quota
    }

    /// Whether it would not let the request in.
    #[must_use]
    pub fn is_violated(&self) -> bool {
        self.violated
    }

    /// What may be spent at once; `None` if it wasn't asked (an unlimited quota, a shadow policy of a
    /// refused request, a store that is away).
    #[must_use]
    pub fn remaining(&self) -> Option<u64> {
        self.reading.map(|told| told.remaining)
    }

    /// When there is more to spend, where that is known.
    #[must_use]
    pub fn reset_after(&self) -> Option<Duration> {
        self.reading.map(|told| told.reset_after)
    }

    /// How long the request has to wait at this policy. Zero if it need not, `Duration::MAX` if it costs
    /// more than is ever let in.
    #[must_use]
    pub fn retry_after(&self) -> Duration {
        self.reading.filter(|_| self.violated).map_or(Duration::ZERO, |told| told.retry_after)
    }
}

impl QuotaReading {
    pub(super) fn from_state(state: &QuotaSnapshot) -> Self {
        let QuotaSnapshot { remaining, reset_after: reset, retry_after: retry, .. } = *state;
        Self { remaining, reset_after: reset, retry_after: retry }
    }
}
