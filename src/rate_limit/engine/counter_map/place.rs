//! The counter that an entry is about: borrowed by a question, owned, and as a key of the map.

use std::{
    hash::{Hash, Hasher},
    sync::Arc,
};

use quick_cache::Equivalent;

use crate::{
    key::Key,
    rate_limit::quota::Quota,
    store::{AdjustmentKind, SettleChargeCommand, ChargeAdjustment},
};

/// A counter and a quota. A changed quota is another spot, although the counter in the store may be
/// the same: an answer for one limit says nothing of the next.
#[derive(Debug, Clone, Copy)]
pub(in crate::rate_limit) struct Spot<'a> {
    pub(in crate::rate_limit) policy: &'a Arc<str>,
    pub(in crate::rate_limit) tag: &'a Key,
    pub(in crate::rate_limit) subject: &'a Key,
    pub(in crate::rate_limit) quota: Quota,
}

/// An owned spot.
#[derive(Debug, Clone)]
pub(in crate::rate_limit::engine) struct Place {
    counter: Counter,
    quota: Quota,
}

/// Key of the map: a spot without its quota.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::rate_limit::engine) struct Counter {
    policy: Arc<str>,
    tag: Key,
    subject: Key,
}

/// The tag is left to the comparison: it is the subject itself, or shared by a few.
impl Hash for Spot<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.policy, self.subject).hash(state);
    }
}

impl Hash for Counter {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (&self.policy, &self.subject).hash(state);
    }
}

impl Equivalent<Counter> for Spot<'_> {
    fn equivalent(&self, counter: &Counter) -> bool {
        *self.subject == counter.subject
            && *self.policy == counter.policy
            && *self.tag == counter.tag
    }
}

impl Counter {
    pub(super) fn of(spot: Spot<'_>) -> Self {
        let Spot { policy, tag, subject, .. } = spot;
        Self { policy: Arc::clone(policy), tag: tag.clone(), subject: subject.clone() }
    }

    pub(in crate::rate_limit::engine) fn place(&self, quota: Quota) -> Place {
        Place { counter: self.clone(), quota }
    }
}

impl Place {
    pub(in crate::rate_limit::engine) fn of(spot: Spot<'_>) -> Self {
        Self { counter: Counter::of(spot), quota: spot.quota }
    }

    /// Returns the call that changes a charge made here.
    pub(in crate::rate_limit::engine) fn settled(&self, by: AdjustmentKind) -> Option<SettleChargeCommand> {
        let Counter { policy, tag, subject } = self.counter.clone();
        let settled = ChargeAdjustment::new(policy, subject, self.quota.rule()?, by);
        Some(SettleChargeCommand { tag, items: vec![settled] })
    }

    pub(in crate::rate_limit::engine) fn spot(&self) -> Spot<'_> {
        let Counter { policy, tag, subject } = &self.counter;
        Spot { policy, tag, subject, quota: self.quota }
    }
}
