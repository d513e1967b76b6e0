//! Input of the engine: the policies, keys and costs of one request.

use std::{sync::Arc, time::Duration};

use smallvec::{SmallVec, smallvec};

use super::counter_map::BorrowedCounterId;
use crate::{
    key::Key,
    rate_limit::{decision::QuotaReading, policy_cost_and_reactions::Policy, quota::Quota},
    store::{AdjustmentKind, ChargeAdjustment, ChargeItem, CounterName},
};

/// Maximum time for which a refusal is cached if it may end sooner than the store has said.
const UNSTABLE_REFUSAL_TTL: Duration = Duration::from_millis(100);

/// One policy, applied to one key.
#[derive(Debug, Clone)]
pub(in crate::rate_limit) struct PolicyCheck {
    pub(in crate::rate_limit) policy: Arc<Policy>,
    pub(in crate::rate_limit) key: Key,
    /// Quota of this request; may differ from the policy's own.
    pub(in crate::rate_limit) quota: Quota,
    pub(in crate::rate_limit) cost: u64,
    /// Index of the policy in its layer.
    pub(in crate::rate_limit) policy_index: usize,
    /// True if a refusal may end sooner than the store says, because charges are refunded or the
    /// quota depends on the request.
    pub(in crate::rate_limit) may_end_early: bool,
}

/// All checks of a request: admitted by all policies, or charged to none.
#[derive(Debug, Clone, Default)]
pub(in crate::rate_limit) struct CheckRequest {
    pub(in crate::rate_limit) checks: SmallVec<[PolicyCheck; 1]>,
    /// Key under which all counters are stored.
    pub(in crate::rate_limit) group: Option<Key>,
}

/// Checks with one tag, which one call to the store charges.
pub(super) struct CheckGroup<'a> {
    pub(super) tag: &'a Key,
    /// Indices of the checks in their request.
    pub(super) check_indices: SmallVec<[usize; 2]>,
}

pub(super) type CheckGroups<'a> = SmallVec<[CheckGroup<'a>; 1]>;

impl PolicyCheck {
    pub(in crate::rate_limit) fn new(policy: &Arc<Policy>, key: Key, cost: u64) -> Self {
        let (policy, quota) = (Arc::clone(policy), policy.quota());
        Self { policy, key, quota, cost, policy_index: 0, may_end_early: false }
    }

    /// Returns true if there is anything to charge.
    pub(in crate::rate_limit) fn is_counted(&self) -> bool {
        self.cost > 0 && !self.quota.is_unlimited()
    }

    /// Returns true if the check can refuse the request.
    pub(in crate::rate_limit) fn is_enforced(&self) -> bool {
        self.is_counted() && !self.policy.is_shadow()
    }

    pub(super) fn exceeds_capacity(&self) -> bool {
        self.is_counted() && self.cost > self.quota.capacity()
    }

    /// Returns the reading of a quota of 0.
    pub(super) fn zero_quota_reading(&self) -> QuotaReading {
        let window = self.quota.window();
        QuotaReading {
            remaining: 0,
            reset_after: window,
            retry_after: if self.cost > 0 { window } else { Duration::ZERO },
        }
    }

    /// Returns the size of the policy's lease, if the check can spend a leased unit.
    pub(super) fn lease_size(&self) -> Option<u32> {
        Some(self.policy.lease_size_for(self.quota))
            .filter(|n| *n > 1 && self.cost == 1 && self.is_enforced())
    }

    /// Returns the maximum time for which a refusal is cached. `may_be_refunded` is true if the
    /// engine itself may refund this charge.
    pub(super) fn max_refusal_ttl(&self, may_be_refunded: bool) -> Duration {
        // Other requests may return leased units, whatever this one costs.
        let leases = self.policy.lease_size_for(self.quota) > 1;
        let is_unstable = self.may_end_early || may_be_refunded || leases;
        let default_ttl = if is_unstable { UNSTABLE_REFUSAL_TTL } else { Duration::MAX };
        self.policy.max_refusal_ttl().unwrap_or(default_ttl)
    }

    /// Returns true if both checks of one request have the same counter.
    pub(super) fn shares_counter(&self, other_check: &Self) -> bool {
        let algorithm = |check: &Self| check.quota.to_rule().map(|rule| rule.algorithm());
        self.key == other_check.key
            && self.policy.counter_name() == other_check.policy.counter_name()
            && algorithm(self) == algorithm(other_check)
    }

    pub(in crate::rate_limit) fn charge_item(&self) -> Option<ChargeItem> {
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

    /// Returns the adjustment of this check's charge.
    pub(super) fn adjustment(&self, kind: AdjustmentKind) -> Option<ChargeAdjustment> {
        let (policy, subject) = (Arc::clone(self.policy.counter_name()), self.key.clone());
        Some(ChargeAdjustment::new(policy, subject, self.quota.to_rule()?, kind))
    }
}

impl CheckRequest {
    /// Returns the key that decides the shard of the check's counter.
    pub(super) fn tag<'a>(&'a self, check: &'a PolicyCheck) -> &'a Key {
        self.group.as_ref().unwrap_or(&check.key)
    }

    pub(super) fn borrowed_counter_id<'a>(
        &'a self,
        check: &'a PolicyCheck,
    ) -> BorrowedCounterId<'a> {
        BorrowedCounterId {
            policy: check.policy.counter_name(),
            tag: self.tag(check),
            subject: &check.key,
            quota: check.quota,
        }
    }

    /// Returns the sum of all charges to the check's counter: two checks may share one.
    pub(super) fn total_cost(&self, check: &PolicyCheck) -> u64 {
        let shares_its_counter = |other_check: &&PolicyCheck| other_check.shares_counter(check);
        match &self.checks[..] {
            [_] => check.cost,
            checks => checks
                .iter()
                .filter(shares_its_counter)
                .fold(0, |sum: u64, other_check| sum.saturating_add(other_check.cost)),
        }
    }

    /// Groups these checks by tag, in the order of the first check of each group.
    #[expect(clippy::indexing_slicing, reason = "the indices belong to the checks of this request")]
    pub(super) fn group_by_tag(
        &self,
        check_indices: impl Iterator<Item = usize>,
    ) -> CheckGroups<'_> {
        let mut groups = CheckGroups::new();
        for index in check_indices {
            let tag = self.tag(&self.checks[index]);
            match groups.iter_mut().find(|group| group.tag == tag) {
                Some(group) => group.check_indices.push(index),
                None => groups.push(CheckGroup { tag, check_indices: smallvec![index] }),
            }
        }
        groups
    }

    /// Returns the only check, if it is enforced and has no lease: the common case.
    pub(super) fn single_store_check(&self) -> Option<&PolicyCheck> {
        match &self.checks[..] {
            [check] if check.is_enforced() && check.lease_size().is_none() => Some(check),
            _ => None,
        }
    }

    /// Returns the checks that can refuse the request.
    pub(super) fn enforced_checks(&self) -> impl Iterator<Item = (usize, &PolicyCheck)> {
        self.checks.iter().enumerate().filter(|(_, check)| check.is_enforced())
    }
}
