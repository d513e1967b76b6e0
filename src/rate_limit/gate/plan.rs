//! What a layer is set to: its policies, and how each is asked.

use std::{
    fmt,
    sync::{Arc, OnceLock},
};

use super::{again::Again, quotas::Quotas};
use crate::{
    gate::KeySource,
    rate_limit::{engine::Engine, facing::Facing, policy::Policy},
    store::Store,
};

/// All of a layer's settings.
pub(super) struct Plan<N: ?Sized> {
    /// One at least.
    pub(super) limits: Vec<Limit<N>>,
    pub(super) group: Option<KeySource<N>>,
    pub(super) store: Option<Store>,
    /// That store's.
    pub(super) engine: OnceLock<Arc<Engine>>,
    pub(super) facing: Facing,
    /// What was answered with these settings.
    pub(super) again: Again,
}

type CostBy<N> = dyn Fn(&N) -> u64 + Send + Sync;
type RefundOn = dyn Fn(u16) -> bool + Send + Sync;

/// One policy of it.
pub(super) struct Limit<N: ?Sized> {
    pub(super) source: KeySource<N>,
    pub(super) policy: Arc<Policy>,
    pub(super) quotas: Option<Arc<Quotas<N>>>,
    pub(super) cost_by: Option<Arc<CostBy<N>>>,
    pub(super) refund_on: Option<Arc<RefundOn>>,
    pub(super) by_handler: bool,
}

impl<N: ?Sized> Limit<N> {
    pub(super) fn new(source: KeySource<N>, policy: Policy) -> Self {
        let policy = Arc::new(policy);
        let (quotas, cost_by, refund_on) = (None, None, None);
        Self { source, policy, quotas, cost_by, refund_on, by_handler: false }
    }

    /// Whether charges may be changed after the response.
    pub(super) fn settles(&self) -> bool {
        self.refund_on.is_some() || self.by_handler
    }
}

impl<N: ?Sized> Plan<N> {
    pub(super) fn settles(&self) -> bool {
        self.limits.iter().any(Limit::settles)
    }

    /// Its own store, if it has one, and that one's engine. It is lent, and not looked for: all requests share what
    /// would be locked and counted for that.
    pub(super) fn own(&self) -> Option<Counting<'_>> {
        let store = self.store.as_ref()?;
        Some((store, self.engine.get_or_init(|| Engine::of(store))))
    }
}

/// Where it is counted.
pub(super) type Counting<'a> = (&'a Store, &'a Arc<Engine>);

impl<N: ?Sized> Clone for Limit<N> {
    fn clone(&self) -> Self {
        Self {
            source: self.source.clone(),
            policy: Arc::clone(&self.policy),
            quotas: self.quotas.clone(),
            cost_by: self.cost_by.clone(),
            refund_on: self.refund_on.clone(),
            by_handler: self.by_handler,
        }
    }
}

impl<N: ?Sized> Clone for Plan<N> {
    fn clone(&self) -> Self {
        Self {
            limits: self.limits.clone(),
            group: self.group.clone(),
            store: self.store.clone(),
            engine: OnceLock::new(),
            facing: self.facing.clone(),
            again: Again::default(),
        }
    }
}

impl<N: ?Sized> fmt::Debug for Limit<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Limit")
            .field("source", &self.source)
            .field("policy", &self.policy)
            .field("quota_by", &self.quotas.is_some())
            .field("cost_by", &self.cost_by.is_some())
            .field("refund_on", &self.refund_on.is_some())
            .field("settle_by_handler", &self.by_handler)
            .finish()
    }
}

impl<N: ?Sized> fmt::Debug for Plan<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimitGate")
            .field("limits", &self.limits)
            .field("group", &self.group)
            .field("facing", &self.facing)
            .finish_non_exhaustive()
    }
}
