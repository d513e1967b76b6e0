//! What a `LockLayer` is set to.

use std::{sync::Arc, time::Duration};

use super::{
    gate::LockGate,
    request::{MAX_WAIT, MIN_LEASE, default_terms},
};
use crate::{
    clock::LONGEST,
    gate::is_safe,
    outage::Outage,
    store::{Store, Terms},
};

/// The settings. A gate is cloned for each request, so they lie behind one pointer.
#[derive(Debug, Clone)]
pub(super) struct Policy {
    pub(super) scope: Option<String>,
    pub(super) store: Option<Store>,
    pub(super) terms: Terms,
    pub(super) wait: Option<Duration>,
    pub(super) outage: Outage,
    all_methods: bool,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            scope: None,
            store: None,
            terms: default_terms(),
            wait: None,
            outage: Outage::Refuse,
            all_methods: false,
        }
    }
}

impl Policy {
    /// Whether requests of this method take the lock.
    pub(super) fn is_about(&self, method: &str) -> bool {
        self.all_methods || !is_safe(method)
    }
}

impl<N: ?Sized> LockGate<N> {
    fn with(mut self, change: impl FnOnce(&mut Policy)) -> Self {
        change(Arc::make_mut(&mut self.policy));
        self
    }

    /// See `LockLayer::scope`.
    #[must_use]
    pub fn scope(self, scope: &str) -> Self {
        self.with(|policy| policy.scope = Some(scope.to_owned()))
    }

    /// See `LockLayer::store`.
    #[must_use]
    pub fn store(self, store: &Store) -> Self {
        self.with(|policy| policy.store = Some(store.clone()))
    }

    /// See `LockLayer::wait`.
    #[must_use]
    pub fn wait(self, wait: Duration) -> Self {
        self.with(|policy| policy.wait = Some(wait.min(MAX_WAIT)))
    }

    /// See `LockLayer::lease`.
    #[must_use]
    pub fn lease(self, lease: Duration) -> Self {
        self.with(|policy| policy.terms.lease = lease.clamp(MIN_LEASE, LONGEST))
    }

    /// See `LockLayer::max_hold`.
    #[must_use]
    pub fn max_hold(self, max_hold: Duration) -> Self {
        self.with(|policy| policy.terms.max_hold = max_hold.min(LONGEST))
    }

    /// See `LockLayer::all_methods`.
    #[must_use]
    pub fn all_methods(self) -> Self {
        self.with(|policy| policy.all_methods = true)
    }

    /// See `LockLayer::on_outage`.
    #[must_use]
    pub fn on_outage(self, outage: Outage) -> Self {
        self.with(|policy| policy.outage = outage)
    }
}
