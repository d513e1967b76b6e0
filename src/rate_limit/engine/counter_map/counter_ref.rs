//! The counter that an entry is about: borrowed by a question, owned, and as a key of the map.

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

/// A counter and a quota. A changed quota is another spot, although the counter in the store may be
/// the same: an answer for one limit says nothing of the next.
#[derive(Debug, Clone, Copy)]
pub(in crate::rate_limit) struct CounterRef<'a> {
    pub(in crate::rate_limit) policy: &'a Arc<str>,
    pub(in crate::rate_limit) tag: &'a Key,
    pub(in crate::rate_limit) subject: &'a Key,
    pub(in crate::rate_limit) quota: Quota,
}

/// An owned spot.
#[derive(Debug, Clone)]
pub(in crate::rate_limit::engine) struct CounterId {
    key: CounterKey,
    quota: Quota,
}

/// Key of the map: a spot without its quota.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::rate_limit::engine) struct CounterKey {
    policy: Arc<str>,
    tag: Key,
    subject: Key,
}

/// The tag is left to the comparison: it is the subject itself, or shared by a few.
impl Hash for CounterRef<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.policy, self.subject).hash(state);
    }
}

impl Hash for CounterKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (&self.policy, &self.subject).hash(state);
    }
}

impl Equivalent<CounterKey> for CounterRef<'_> {
    fn equivalent(&self, counter: &CounterKey) -> bool {
        *self.subject == counter.subject
            && *self.policy == counter.policy
            && *self.tag == counter.tag
    }
}

impl CounterKey {
    pub(super) fn from_ref(spot: CounterRef<'_>) -> Self {
        let CounterRef { policy, tag, subject, .. } = spot;
        Self { policy: Arc::clone(policy), tag: tag.clone(), subject: subject.clone() }
    }

    pub(in crate::rate_limit::engine) fn with_quota(&self, quota: Quota) -> CounterId {
        CounterId { key: self.clone(), quota }
    }
}

impl CounterId {
    pub(in crate::rate_limit::engine) fn from_ref(spot: CounterRef<'_>) -> Self {
        Self { key: CounterKey::from_ref(spot), quota: spot.quota }
    }

    /// Returns the call that changes a charge made here.
    pub(in crate::rate_limit::engine) fn settle_command(
        &self,
        by: AdjustmentKind,
    ) -> Option<SettleChargeCommand> {
        let CounterKey { policy, tag, subject } = self.key.clone();
        let settled = ChargeAdjustment::new(policy, subject, self.quota.to_rule()?, by);
        Some(SettleChargeCommand { tag, items: vec![settled] })
    }

    pub(in crate::rate_limit::engine) fn to_ref(&self) -> CounterRef<'_> {
        let CounterKey { policy, tag, subject } = &self.key;
        CounterRef { policy, tag, subject, quota: self.quota }
    }
}
