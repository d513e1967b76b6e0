//! Settings of a `LockLayer`.

use std::time::Duration;

use super::{
    acquire_options::{AcquireOptions, MAX_WAIT},
    delegation::{self, SharedSecret},
    held_lock::{HeldLock, HeldLocks},
    outcome::BusyStatus,
    request::LockRequest,
    retry::LockRetry,
};
use crate::{
    gate::{GateRequest, MethodFilter, remove_from_connection},
    key::Key,
    outage::LockOutage,
    store::{LockMode, Store},
};

/// Behavior of a request that finds its lock busy.
#[derive(Debug, Clone, Copy)]
pub(super) enum BusyStrategy {
    Reject,
    Wait(Duration),
    Retry(LockRetry),
}

/// Settings of a layer. They are behind one pointer, because a layer is cloned for each request.
#[derive(Debug, Clone)]
pub(super) struct LockPolicy {
    pub(super) scope: Option<String>,
    pub(super) name: Option<String>,
    pub(super) stripes: Option<u32>,
    pub(super) store: Option<Store>,
    pub(super) acquire_options: AcquireOptions,
    pub(super) outage: LockOutage,
    pub(super) busy_status: BusyStatus,
    pub(super) busy_strategy: BusyStrategy,
    pub(super) methods: MethodFilter,
    pub(super) read_write: bool,
    /// In lower case.
    pub(super) fence_header: Option<String>,
    /// Secrets of services with trusted delegations.
    pub(super) trusted_secrets: Vec<SharedSecret>,
}

/// Names of fence headers that a layer has set or removed, so that they are not a client's.
#[derive(Clone, Default)]
struct FenceHeaderNames(Vec<String>);

impl Default for LockPolicy {
    fn default() -> Self {
        Self {
            scope: None,
            name: None,
            stripes: None,
            store: None,
            acquire_options: AcquireOptions::default(),
            outage: LockOutage::default(),
            busy_status: BusyStatus::default(),
            busy_strategy: BusyStrategy::Reject,
            methods: MethodFilter::Unsafe,
            read_write: false,
            fence_header: None,
            trusted_secrets: Vec::new(),
        }
    }
}

impl LockPolicy {
    /// Returns the mode for requests of this method, or `None` if they take no lock.
    pub(super) fn mode_for(&self, method: &str) -> Option<LockMode> {
        let reads = self.read_write && matches!(method, "GET" | "HEAD");
        let mode = if reads { LockMode::Shared } else { self.acquire_options.terms.mode };
        self.methods.matches(method).then_some(mode)
    }

    /// Returns the lock's key, with the layer's name, scope and stripes.
    pub(super) fn lock_key(&self, key: &Key) -> Key {
        let mut key = key.clone();
        if let Some(name) = &self.name {
            key = key.named(name);
        }
        if let Some(scope) = &self.scope {
            key = key.scope(scope);
        }
        if let Some(stripes) = self.stripes {
            key = key.stripe(stripes);
        }
        key
    }

    /// Removes headers that only a layer may set, even if the request takes no lock. Those of an
    /// outer layer remain.
    pub(super) fn strip_headers<V: GateRequest>(&self, view: &mut V) {
        let told =
            |name| view.extension::<FenceHeaderNames>().is_some_and(|told| told.0.contains(name));
        if let Some(name) = &self.fence_header
            && !view.header_values(name).is_empty()
            && !told(name)
        {
            view.set_header(name, None);
        }
        delegation::strip_headers(view);
        if !self.trusted_secrets.is_empty()
            && delegation::has_untrusted_replay(view)
            && let Some(store) = self.store.clone().or_else(|| view.store())
            && !self.delegated_locks(view, &store).is_empty()
        {
            delegation::restore_replay_header(view);
        }
    }

    /// Returns the locks that another service has delegated to this request.
    pub(super) fn delegated_locks<V: GateRequest>(&self, view: &V, store: &Store) -> Vec<HeldLock> {
        if self.trusted_secrets.is_empty() {
            Vec::new()
        } else {
            delegation::verify_delegations(view, store, &self.trusted_secrets)
        }
    }

    /// Sets the fence header for code and services that read the request's headers.
    pub(super) fn set_fence_header<V: GateRequest>(&self, held: &HeldLocks, view: &mut V) {
        if let Some(name) = &self.fence_header {
            let fences: Vec<_> = held.fences().map(|(_, fence)| fence.to_string()).collect();
            // Without a lock the header is removed, so that it does not contain the fence of an
            // outer lock.
            let fences = Some(fences.join(", ")).filter(|fences| !fences.is_empty());
            view.set_header(name, fences.as_deref());
            remove_from_connection(view, name);
            let mut told = view.remove_extension::<FenceHeaderNames>().unwrap_or_default();
            if !told.0.contains(name) {
                told.0.push(name.clone());
            }
            view.insert_extension(told);
        }
    }

    /// Creates the request for a lock. `taken_over` is the wait set by an outer layer that accepts
    /// the request afterwards.
    pub(super) fn lock_request(
        &self,
        store: &Store,
        key: &Key,
        mode: LockMode,
        taken_over: Option<Duration>,
    ) -> LockRequest {
        let mut asking = self.acquire_options.clone();
        asking.terms.mode = mode;
        let request = |wait| LockRequest::new(store, key, asking, wait);
        match (taken_over, self.busy_strategy) {
            (Some(wait), _) => request(Some(wait.min(MAX_WAIT)).filter(|wait| !wait.is_zero())),
            (None, BusyStrategy::Wait(wait)) => request(Some(wait)),
            (None, BusyStrategy::Retry(retry)) => request(None).with_retry(Some(retry)),
            (None, BusyStrategy::Reject) => request(None),
        }
    }
}
