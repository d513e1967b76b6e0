//! Settings of a `LockLayer`.

use std::{sync::Arc, time::Duration};

use super::{
    acquire_options::{AcquireOptions, MAX_WAIT},
    delegation::{self, SharedSecret},
    gate::LockGate,
    held_lock::{HeldLock, HeldLocks},
    outcome::BusyStatus,
    request::LockRequest,
    retry::LockRetry,
};
use crate::{
    gate::{GateRequest, KeySource, MethodFilter, remove_from_connection},
    key::Key,
    outage::LockOutage,
    store::{LockMode, Store},
};

/// Behavior of a request that finds its lock busy.
#[derive(Debug, Clone, Copy)]
enum BusyStrategy {
    Reject,
    Wait(Duration),
    Retry(LockRetry),
}

/// Settings of a gate. They are behind one pointer, because a gate is cloned for each request.
#[derive(Debug, Clone)]
pub(super) struct LockPolicy {
    scope: Option<String>,
    name: Option<String>,
    stripes: Option<u32>,
    pub(super) store: Option<Store>,
    pub(super) acquire_options: AcquireOptions,
    pub(super) outage: LockOutage,
    pub(super) busy_status: BusyStatus,
    busy_strategy: BusyStrategy,
    methods: MethodFilter,
    read_write: bool,
    /// In lower case.
    fence_header: Option<String>,
    /// Secrets of services with trusted delegations.
    trusted_secrets: Vec<SharedSecret>,
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

impl<N: ?Sized> LockGate<N> {
    pub(super) fn with_policy(mut self, change: impl FnOnce(&mut LockPolicy)) -> Self {
        change(Arc::make_mut(&mut self.policy));
        self
    }

    /// See `LockLayer::scope`.
    #[must_use]
    pub fn scope(self, scope: &str) -> Self {
        self.with_policy(|policy| policy.scope = Some(scope.to_owned()))
    }

    /// See `LockLayer::named`.
    #[must_use]
    pub fn named(self, name: &str) -> Self {
        self.with_policy(|policy| policy.name = Some(name.to_owned()))
    }

    /// See `LockLayer::stripes`.
    ///
    /// # Panics
    ///
    /// If `n` is not within 1 to 65,536.
    #[must_use]
    pub fn stripes(self, n: u32) -> Self {
        // Panics now instead of at the first request.
        let _ = Key::custom("").stripe(n);
        self.with_policy(|policy| policy.stripes = Some(n))
    }

    /// See `LockLayer::read_write`.
    #[must_use]
    pub fn read_write(self) -> Self {
        self.with_policy(|policy| {
            policy.read_write = true;
            policy.acquire_options.terms.mode = LockMode::Exclusive;
            if let MethodFilter::Unsafe = policy.methods {
                policy.methods = MethodFilter::ReadOrWrite;
            }
        })
    }

    /// See `LockLayer::permits`.
    ///
    /// # Panics
    ///
    /// If `most` is 0.
    #[must_use]
    pub fn permits(self, most: u32) -> Self {
        assert!(most > 0, "LockLayer::permits: the number of permits must be at least 1");
        self.with_policy(|policy| {
            policy.acquire_options.terms.mode = LockMode::Permits(most);
            policy.read_write = false;
            if let MethodFilter::ReadOrWrite = policy.methods {
                policy.methods = MethodFilter::Unsafe;
            }
        })
    }

    /// See `LockLayer::fence_header`.
    ///
    /// # Panics
    ///
    /// If it is not a valid header name.
    #[must_use]
    pub fn fence_header(self, name: &str) -> Self {
        let valid = http::HeaderName::from_bytes(name.as_bytes());
        assert!(valid.is_ok(), "LockLayer::fence_header: {name:?} is not a header name");
        self.with_policy(|policy| policy.fence_header = Some(name.to_ascii_lowercase()))
    }

    /// See `LockLayer::trust_delegation`.
    #[must_use]
    pub fn trust_delegation(self, secret: &SharedSecret) -> Self {
        self.with_policy(|policy| policy.trusted_secrets.push(secret.clone()))
    }

    /// See `LockLayer::and_path_param`, `and_header` and `and_key`.
    #[must_use]
    pub fn and(mut self, source: KeySource<N>) -> Self {
        self.key_source = self.key_source.and(source.require_key());
        self
    }

    /// See `LockLayer::store`.
    #[must_use]
    pub fn store(self, store: &Store) -> Self {
        self.with_policy(|policy| policy.store = Some(store.clone()))
    }

    /// See `LockLayer::wait`.
    #[must_use]
    pub fn wait(self, wait: Duration) -> Self {
        self.with_policy(|policy| policy.busy_strategy = BusyStrategy::Wait(wait.min(MAX_WAIT)))
    }

    /// See `LockLayer::reject`.
    #[must_use]
    pub fn reject(self) -> Self {
        self.with_policy(|policy| policy.busy_strategy = BusyStrategy::Reject)
    }

    /// See `LockLayer::retry`.
    #[must_use]
    pub fn retry(self, times: u32, every: Duration) -> Self {
        self.with_policy(|policy| {
            policy.busy_strategy = BusyStrategy::Retry(LockRetry::new(times, every));
        })
    }

    /// See `LockLayer::busy_status`.
    #[must_use]
    pub fn busy_status(self, status: BusyStatus) -> Self {
        self.with_policy(|policy| policy.busy_status = status)
    }

    /// See `LockLayer::all_methods`.
    #[must_use]
    pub fn all_methods(self) -> Self {
        self.with_policy(|policy| policy.methods = MethodFilter::All)
    }

    /// See `LockLayer::methods`.
    ///
    /// # Panics
    ///
    /// If there are none, or if one of them is not a valid method name.
    #[must_use]
    pub fn methods<M: AsRef<str>>(self, methods: impl IntoIterator<Item = M>) -> Self {
        let methods = MethodFilter::listed("LockLayer", methods);
        self.with_policy(|policy| policy.methods = methods)
    }

    /// See `LockLayer::on_outage`.
    #[must_use]
    pub fn on_outage(self, outage: LockOutage) -> Self {
        self.with_policy(|policy| policy.outage = outage)
    }
}
