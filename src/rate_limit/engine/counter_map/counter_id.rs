//! Identity of a counter: borrowed from a check, owned, and as a key of the map.

use std::{
    hash::{Hash, Hasher},
    sync::Arc,
};

use quick_cache::Equivalent;

use crate::{
    key::Key,
    rate_limit::quota::Quota,
    store::{AdjustmentKind, ChargeAdjustment, SettleChargeCommand},
};

/// Counter and quota. A changed quota has a state of its own, even if the counter in the store is
/// the same: an answer about one limit says nothing about another.
#[derive(Debug, Clone, Copy)]
pub(in crate::rate_limit) struct BorrowedCounterId<'a> {
    pub(in crate::rate_limit) policy: &'a Arc<str>,
    pub(in crate::rate_limit) tag: &'a Key,
    pub(in crate::rate_limit) subject: &'a Key,
    pub(in crate::rate_limit) quota: Quota,
}

/// Owned form of [`BorrowedCounterId`].
#[derive(Debug, Clone)]
pub(in crate::rate_limit::engine) struct CounterId {
    key: CounterKey,
    quota: Quota,
}

/// Key of the map: a counter without its quota.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::rate_limit::engine) struct CounterKey {
    policy: Arc<str>,
    tag: Key,
    subject: Key,
}

/// The tag is compared but not hashed: it is the subject itself, or shared by few.
impl Hash for BorrowedCounterId<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.policy, self.subject).hash(state);
    }
}

impl Hash for CounterKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (&self.policy, &self.subject).hash(state);
    }
}

impl Equivalent<CounterKey> for BorrowedCounterId<'_> {
    fn equivalent(&self, key: &CounterKey) -> bool {
        *self.subject == key.subject && *self.policy == key.policy && *self.tag == key.tag
    }
}

impl CounterKey {
    pub(super) fn from_ref(counter_id: BorrowedCounterId<'_>) -> Self {
        let BorrowedCounterId { policy, tag, subject, .. } = counter_id;
        Self { policy: Arc::clone(policy), tag: tag.clone(), subject: subject.clone() }
    }

    pub(in crate::rate_limit::engine) fn with_quota(&self, quota: Quota) -> CounterId {
        CounterId { key: self.clone(), quota }
    }
}

impl CounterId {
    pub(in crate::rate_limit::engine) fn from_ref(counter_id: BorrowedCounterId<'_>) -> Self {
        Self { key: CounterKey::from_ref(counter_id), quota: counter_id.quota }
    }

    /// Returns the call that adjusts a charge to this counter.
    pub(in crate::rate_limit::engine) fn settle_command(
        &self,
        kind: AdjustmentKind,
    ) -> Option<SettleChargeCommand> {
        let CounterKey { policy, tag, subject } = self.key.clone();
        let adjustment = ChargeAdjustment::new(policy, subject, self.quota.to_rule()?, kind);
        Some(SettleChargeCommand { tag, items: vec![adjustment] })
    }

    pub(in crate::rate_limit::engine) fn to_ref(&self) -> BorrowedCounterId<'_> {
        let CounterKey { policy, tag, subject } = &self.key;
        BorrowedCounterId { policy, tag, subject, quota: self.quota }
    }
}
