//! What is asked of the engine.

use std::{sync::Arc, time::Duration};

use smallvec::{SmallVec, smallvec};

use super::counter_map::CounterRef;
use crate::{
    key::Key,
    rate_limit::{decision::QuotaReading, policy::Policy, quota::Quota},
    store::{AdjustmentKind, ChargeAdjustment, ChargeItem, CounterName},
};

/// For how long a refusal is remembered that may end sooner than the store said.
const UNSTABLE_REFUSAL_TTL: Duration = Duration::from_millis(100);

/// One policy, and for whom.
#[derive(Debug, Clone)]
pub(in crate::rate_limit) struct PolicyCheck {
    pub(in crate::rate_limit) policy: Arc<Policy>,
    pub(in crate::rate_limit) key: Key,
    /// The policy's own, or that of this request.
    pub(in crate::rate_limit) quota: Quota,
    pub(in crate::rate_limit) cost: u64,
    /// Which of its layer's policies it is about.
    pub(in crate::rate_limit) policy_index: usize,
    /// Its refusals may end sooner than the store says: charges are given back, or the quota changes.
    pub(in crate::rate_limit) may_end_early: bool,
}

/// All that is asked at once: let in by all, or charged to none.
#[derive(Debug, Clone, Default)]
pub(in crate::rate_limit) struct CheckRequest {
    pub(in crate::rate_limit) checks: SmallVec<[PolicyCheck; 1]>,
    /// Under which all of them are counted together.
    pub(in crate::rate_limit) group: Option<Key>,
}

/// Questions of one tag, by their places.
pub(super) type CheckGroup<'a> = (&'a Key, SmallVec<[usize; 2]>);
pub(super) type CheckGroups<'a> = SmallVec<[CheckGroup<'a>; 1]>;

impl PolicyCheck {
    pub(in crate::rate_limit) fn new(policy: &Arc<Policy>, key: Key, cost: u64) -> Self {
        let (policy, quota) = (Arc::clone(policy), policy.quota());
        Self { policy, key, quota, cost, policy_index: 0, may_end_early: false }
    }

    /// Whether there is anything to be charged.
    pub(in crate::rate_limit) fn is_counted(&self) -> bool {
        self.cost > 0 && !self.quota.is_unlimited()
    }

    /// Whether it can keep the request out.
    pub(in crate::rate_limit) fn is_enforced(&self) -> bool {
        self.is_counted() && !self.policy.is_shadow()
    }

    pub(super) fn exceeds_capacity(&self) -> bool {
        self.is_counted() && self.cost > self.quota.capacity()
    }

    /// What a quota of 0 says.
    pub(super) fn zero_quota_reading(&self) -> QuotaReading {
        let reset = self.quota.window();
        QuotaReading {
            remaining: 0,
            reset_after: reset,
            retry_after: if self.cost > 0 { reset } else { Duration::ZERO },
        }
    }

    /// Whether it is charged in advance; by how much at once.
    pub(super) fn lease_size(&self) -> Option<u32> {
        Some(self.policy.lease_size_for(self.quota))
            .filter(|n| *n > 1 && self.cost == 1 && self.is_enforced())
    }

    /// The longest time for which a refusal is remembered. `given_back`: the engine itself may give back
    /// what it has charged here.
    pub(super) fn max_refusal_ttl(&self, given_back: bool) -> Duration {
        // What others have leased may be given back, too, whatever this one costs.
        let leases = self.policy.lease_size_for(self.quota) > 1;
        let unsteady = self.may_end_early || given_back || leases;
        let usual = if unsteady { UNSTABLE_REFUSAL_TTL } else { Duration::MAX };
        self.policy.max_refusal_ttl().unwrap_or(usual)
    }

    /// Whether both are about one counter, if they are of one ask.
    pub(super) fn shares_counter(&self, other: &Self) -> bool {
        let kind = |each: &Self| each.quota.to_rule().map(|rule| rule.algorithm());
        self.key == other.key
            && self.policy.counter_name() == other.policy.counter_name()
            && kind(self) == kind(other)
    }

    pub(super) fn charge_item(&self) -> Option<ChargeItem> {
        Some(ChargeItem {
            policy: Arc::clone(self.policy.counter_name()),
            subject: self.key.clone(),
            rule: self.quota.to_rule()?,
            cost: self.cost,
            penalty: self.policy.penalty_rule(),
        })
    }

    pub(super) fn counter(&self) -> Option<CounterName> {
        let (policy, subject) = (Arc::clone(self.policy.counter_name()), self.key.clone());
        Some(CounterName { policy, subject, algorithm: self.quota.to_rule()?.algorithm() })
    }

    /// A change of what was charged.
    pub(super) fn adjustment(&self, by: AdjustmentKind) -> Option<ChargeAdjustment> {
        let (policy, subject) = (Arc::clone(self.policy.counter_name()), self.key.clone());
        Some(ChargeAdjustment::new(policy, subject, self.quota.to_rule()?, by))
    }
}

impl CheckRequest {
    /// What decides where a question's counter is.
    pub(super) fn tag<'a>(&'a self, question: &'a PolicyCheck) -> &'a Key {
        self.group.as_ref().unwrap_or(&question.key)
    }

    pub(super) fn counter_ref<'a>(&'a self, question: &'a PolicyCheck) -> CounterRef<'a> {
        CounterRef {
            policy: question.policy.counter_name(),
            tag: self.tag(question),
            subject: &question.key,
            quota: question.quota,
        }
    }

    /// What is charged to the question's counter in all: two questions may be about one.
    pub(super) fn total_cost(&self, question: &PolicyCheck) -> u64 {
        let same = |other: &&PolicyCheck| other.shares_counter(question);
        match &self.checks[..] {
            [_] => question.cost,
            all => {
                all.iter().filter(same).fold(0, |sum: u64, other| sum.saturating_add(other.cost))
            }
        }
    }

    /// These questions by their tags, in the order of their first.
    #[expect(clippy::indexing_slicing, reason = "places are those of its own questions")]
    pub(super) fn group_by_tag(&self, members: impl Iterator<Item = usize>) -> CheckGroups<'_> {
        let mut groups = CheckGroups::new();
        for at in members {
            let tag = self.tag(&self.checks[at]);
            match groups.iter_mut().find(|group| group.0 == tag) {
                Some(group) => group.1.push(at),
                None => groups.push((tag, smallvec![at])),
            }
        }
        groups
    }

    /// The one question that there is, if it binds and is to be asked of the store: the usual case.
    pub(super) fn single_store_check(&self) -> Option<&PolicyCheck> {
        match &self.checks[..] {
            [question] if question.is_enforced() && question.lease_size().is_none() => {
                Some(question)
            }
            _ => None,
        }
    }

    /// Those that can keep the request out.
    pub(super) fn enforced_checks(&self) -> impl Iterator<Item = (usize, &PolicyCheck)> {
        self.checks.iter().enumerate().filter(|(_, question)| question.is_enforced())
    }
}
