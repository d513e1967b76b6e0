//! Settings of a `LockLayer`, and their application to a request: key, mode, headers and acquire.

use std::time::Duration;

use super::busy_status::BusyStatus;
use crate::{
    gate::{GateRequest, MethodFilter, remove_from_connection},
    key::Key,
    lock::{
        acquire_options::{AcquireOptions, MAX_WAIT},
        delegation_header::verify_delegations,
        held_lock_view::{HeldLock, HeldLocks},
        lock_request::LockRequest,
        lock_retry::LockRetry,
        shared_secret::SharedSecret,
        stripped_headers,
    },
    outage::LockOutage,
    store::{LockMode, Store},
};

/// Behavior of a request that finds its lock busy.
#[derive(Debug, Clone, Copy)]
pub(in crate::lock) enum BusyStrategy {
    Reject,
    Wait(Duration),
    Retry(LockRetry),
}

/// Settings of a layer. They are behind one pointer, because a layer is cloned for each request.
#[derive(Debug, Clone)]
pub(in crate::lock) struct LockPolicy {
    pub(in crate::lock) scope: Option<String>,
    pub(in crate::lock) name: Option<String>,
    pub(in crate::lock) stripes: Option<u32>,
    pub(in crate::lock) store: Option<Store>,
    pub(in crate::lock) acquire_options: AcquireOptions,
    pub(in crate::lock) outage: LockOutage,
    pub(in crate::lock) busy_status: BusyStatus,
    pub(in crate::lock) busy_strategy: BusyStrategy,
    /// Usual time of a hold, until it is measured.
    pub(in crate::lock) expected_hold: Option<Duration>,
    pub(in crate::lock) methods: MethodFilter,
    pub(in crate::lock) read_write: bool,
    /// In lower case.
    pub(in crate::lock) fence_header: Option<String>,
    /// Secrets of services with trusted delegations.
    pub(in crate::lock) trusted_secrets: Vec<SharedSecret>,
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
            expected_hold: None,
            methods: MethodFilter::Unsafe,
            read_write: false,
            fence_header: None,
            trusted_secrets: Vec::new(),
        }
    }
}

impl LockPolicy {
    /// Returns the mode for requests of this method, or `None` if they take no lock.
    pub(in crate::lock) fn mode_for(&self, method: &str) -> Option<LockMode> {
        let is_read = self.read_write && matches!(method, "GET" | "HEAD");
        let mode = if is_read { LockMode::Shared } else { self.acquire_options.terms.mode };
        self.methods.matches(method).then_some(mode)
    }

    /// Returns the lock's key, with the layer's name, scope and stripes.
    pub(in crate::lock) fn lock_key(&self, key: &Key) -> Key {
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
    pub(in crate::lock) fn strip_headers<V: GateRequest>(&self, view: &mut V) {
        let is_layer_header =
            |name| view.extension::<FenceHeaderNames>().is_some_and(|names| names.0.contains(name));
        if let Some(name) = &self.fence_header
            && !view.header_values(name).is_empty()
            && !is_layer_header(name)
        {
            view.set_header(name, None);
        }
        stripped_headers::strip_headers(view);
        if !self.trusted_secrets.is_empty()
            && stripped_headers::has_untrusted_replay(view)
            && let Some(store) = self.store.clone().or_else(|| view.store())
            && !self.delegated_locks(view, &store).is_empty()
        {
            stripped_headers::restore_replay_header(view);
        }
    }

    /// Returns the locks that another service has delegated to this request.
    pub(in crate::lock) fn delegated_locks<V: GateRequest>(
        &self,
        view: &V,
        store: &Store,
    ) -> Vec<HeldLock> {
        if self.trusted_secrets.is_empty() {
            Vec::new()
        } else {
            verify_delegations(view, store, &self.trusted_secrets)
        }
    }

    /// Sets the fence header for code and services that read the request's headers.
    pub(in crate::lock) fn set_fence_header<V: GateRequest>(
        &self,
        held_locks: &HeldLocks,
        view: &mut V,
    ) {
        if let Some(name) = &self.fence_header {
            let fences: Vec<_> = held_locks.fences().map(|(_, fence)| fence.to_string()).collect();
            // Without a lock the header is removed, so that it does not contain the fence of an
            // outer lock.
            let fences = Some(fences.join(", ")).filter(|fences| !fences.is_empty());
            view.set_header(name, fences.as_deref());
            remove_from_connection(view, name);
            let mut header_names = view.remove_extension::<FenceHeaderNames>().unwrap_or_default();
            if !header_names.0.contains(name) {
                header_names.0.push(name.clone());
            }
            view.insert_extension(header_names);
        }
    }

    /// Creates the request for a lock. `outer_wait` is the wait set by an outer layer that accepts
    /// the request afterwards.
    pub(in crate::lock) fn lock_request(
        &self,
        store: &Store,
        key: &Key,
        mode: LockMode,
        outer_wait: Option<Duration>,
    ) -> LockRequest {
        let mut options = self.acquire_options.clone();
        options.terms.mode = mode;
        let new_request = |wait| LockRequest::new(store, key, options, wait);
        match (outer_wait, self.busy_strategy) {
            (None, BusyStrategy::Retry(retry)) => new_request(None).with_retry(Some(retry)),
            _ => new_request(self.max_wait(outer_wait)),
        }
    }

    /// Returns true if a request that finds its lock busy is to wait.
    pub(in crate::lock) fn waits_for_busy_lock(&self) -> bool {
        matches!(self.busy_strategy, BusyStrategy::Wait(wait) if !wait.is_zero())
    }

    /// Returns the longest time in the wait queue; `None` for a request that does not enter it.
    pub(in crate::lock) fn max_wait(&self, outer_wait: Option<Duration>) -> Option<Duration> {
        match (outer_wait, self.busy_strategy) {
            (Some(wait), _) => Some(wait.min(MAX_WAIT)).filter(|wait| !wait.is_zero()),
            (None, BusyStrategy::Wait(wait)) => Some(wait),
            (None, BusyStrategy::Retry(_) | BusyStrategy::Reject) => None,
        }
    }
}
