//! `Store`: the handle on the shared state.

use std::{
    any::{Any, TypeId},
    fmt,
    sync::{Arc, OnceLock, Weak},
    time::Duration,
};

use futures_util::future::{BoxFuture, join, join_all};
use parking_lot::Mutex;
use tokio::{runtime::Handle, sync::oneshot};

use super::{
    backend::{Backend, NodeId},
    inspection::{FleetResponder, InquiryListener, uptime},
    lease_agent::LeaseAgent,
    live_stores::{count_live_store, uncount_live_store},
    local_direct_run_tracker::LocalDirectRunTracker,
    memory::MemoryBackend,
    wakeup_listeners::{SubscriptionState, WakeupListeners},
};
use crate::{
    clock::Clock,
    error::Error,
    instruments::{StoreCounters, StoreStats},
};

/// Store shared by all layers, and by locks, quotas and queues used on their own.
///
/// Cloning is cheap. All clones are one node: they share connections, local queues, and the
/// background agent that renews and releases leases. [`Store::shutdown`] drains it.
///
/// # Backends
///
/// [`Store::connect`] takes the URL of a Redis or Valkey server. [`Store::memory`] is the embedded
/// default, with the same semantics inside one process.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use lockgate::Store;
/// let store = Store::memory(); // or Store::connect("redis://127.0.0.1/").await?
/// let guard = store.lock("import").acquire().await?;
/// store.queue::<String>("emails").push(&"ada@example.org".to_owned()).await?;
/// guard.release().await;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Store {
    inner: Arc<StoreInner>,
}

struct StoreInner {
    backend: Arc<dyn Backend>,
    node: NodeId,
    counters: Arc<StoreCounters>,
    wakeups: Arc<WakeupListeners>,
    /// Answers operators' inquiries, once this handle receives messages.
    fleet_responder: OnceLock<Arc<FleetResponder>>,
    agent: LeaseAgent,
    /// A handful of values, of which each request looks one up: a linear search is fastest.
    extensions: Mutex<Vec<(TypeId, Arc<dyn Any + Send + Sync>)>>,
    shutdown_hooks: Mutex<Vec<Arc<ShutdownHook>>>,
}

impl Drop for StoreInner {
    fn drop(&mut self) {
        uncount_live_store();
    }
}

/// Function by which an engine releases its locks when the store is shut down.
type ShutdownHook = dyn Fn(Store) -> BoxFuture<'static, ()> + Send + Sync;

/// Handle that does not keep the store alive.
#[derive(Clone)]
pub(crate) struct WeakStore(Weak<StoreInner>);

impl WeakStore {
    pub(crate) fn upgrade(&self) -> Option<Store> {
        self.0.upgrade().map(|inner| Store { inner })
    }
}

impl Store {
    /// Creates an empty store inside this process. It lives as long as its handles. Its locks,
    /// quotas and deferred requests are lost when the process ends.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), lockgate::AcquireError> {
    /// # use lockgate::Store;
    /// let store = Store::memory();
    /// let _guard = store.lock("import").acquire().await?;
    /// assert!(store.clone().lock("import").acquire().await.is_err()); // the same locks
    /// assert!(Store::memory().lock("import").acquire().await.is_ok()); // another store
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn memory() -> Self {
        Self::memory_with_clock(Clock::system())
    }

    /// Like [`Store::memory`], with the clock of the caller.
    #[must_use]
    pub fn memory_with_clock(clock: Clock) -> Self {
        Self::with_backend(Arc::new(MemoryBackend::new(clock)))
    }

    /// Returns another handle on the same data that counts as another process: it has its own node,
    /// local queues and agent. For tests with several processes. On Redis it shares the connections
    /// and the circuit breaker.
    #[cfg(any(test, feature = "test-kit"))]
    #[must_use]
    pub fn as_another_process(&self) -> Self {
        Self::with_backend(Arc::clone(&self.inner.backend))
    }

    /// Checks that the store is available and usable, for a health check.
    ///
    /// Cancel safe: it changes nothing.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// # let store = lockgate::Store::memory();
    /// let status = if store.ping().await.is_ok() { 200 } else { 503 };
    /// # assert_eq!(status, 200);
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unavailable`](crate::ErrorKind) or `Timeout` while the store is unavailable,
    /// `Config` if it refuses this process permanently.
    pub async fn ping(&self) -> Result<(), Error> {
        self.backend().ping().await
    }

    /// Releases everything that was dropped, and waits until nothing is left or `deadline` has
    /// passed. Returns true if nothing was left.
    ///
    /// - It waits for requests that run in tasks of their own (`DeferLayer::idempotent_direct`),
    ///   also after their clients have disconnected.
    /// - Locks that are left expire with their leases. So do locks that a late copy of a call takes
    ///   after another connection has answered the call.
    ///
    /// Call it last, after the server and the workers have ended: it does not wait for locks that
    /// are taken meanwhile or later.
    ///
    /// Cancel safe: the background agent continues to release dropped locks while there is a
    /// runtime.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), lockgate::AcquireError> {
    /// # use std::time::Duration;
    /// # let store = lockgate::Store::memory();
    /// let guard = store.lock("import").acquire().await?;
    /// drop(guard); // is released in the background
    /// assert!(store.shutdown(Duration::from_secs(1)).await);
    /// # Ok(()) }
    /// ```
    pub async fn shutdown(&self, deadline: Duration) -> bool {
        let drained = async {
            // Concurrently: a long run must not keep the engines from releasing their locks.
            let hooks = self.inner.shutdown_hooks.lock().clone();
            let hooks_done = join_all(hooks.iter().map(|hook| hook(self.clone())));
            join(hooks_done, self.extension::<LocalDirectRunTracker>().wait_until_idle()).await;
            loop {
                let is_drained = self.inner.wakeups.drain();
                self.inner.agent.wait_until_drained().await;
                if is_drained {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(deadline, drained).await.is_ok()
    }

    /// Waits until no direct run (`DeferLayer::idempotent_direct`) is left in this process, or
    /// until `deadline` has passed. Returns true if none is left.
    ///
    /// [`Store::shutdown`] waits for direct runs too. Call this method before their runtimes end,
    /// as in actix-web, where the server ends the threads of its handlers: `.shutdown_signal(async
    /// move { signal.await; store.wait_for_direct_runs(limit).await; })`. A run that is cut off by
    /// the end of its runtime counts as crashed.
    ///
    /// Cancel safe: it changes nothing. New runs may begin while it waits.
    pub async fn wait_for_direct_runs(&self, deadline: Duration) -> bool {
        tokio::time::timeout(deadline, self.extension::<LocalDirectRunTracker>().wait_until_idle())
            .await
            .is_ok()
    }

    pub(crate) fn with_backend(backend: Arc<dyn Backend>) -> Self {
        count_live_store();
        let agent = LeaseAgent::new(Arc::clone(&backend));
        Self {
            inner: Arc::new(StoreInner {
                backend,
                node: NodeId::new(),
                counters: Arc::default(),
                wakeups: Arc::new(WakeupListeners::default()),
                fleet_responder: OnceLock::new(),
                agent,
                extensions: Mutex::default(),
                shutdown_hooks: Mutex::default(),
            }),
        }
    }

    pub(crate) fn backend(&self) -> &dyn Backend {
        &*self.inner.backend
    }

    pub(crate) fn node(&self) -> &NodeId {
        &self.inner.node
    }

    /// Returns the counters of this handle and its clones.
    pub(crate) fn counters(&self) -> &Arc<StoreCounters> {
        &self.inner.counters
    }

    /// Returns what this process has done through this handle and its clones.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), lockgate::AcquireError> {
    /// let store = lockgate::Store::memory();
    /// let _guard = store.lock("import").acquire().await?;
    /// assert_eq!((store.stats().locks_granted, store.stats().locks_held), (1, 1));
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn stats(&self) -> StoreStats {
        self.counters().read(self.agent().tracked_lease_count() as u64)
    }

    #[cfg(feature = "metrics")]
    pub(crate) fn pending_undo_count(&self) -> usize {
        self.agent().pending_undo_count()
    }

    pub(crate) fn agent(&self) -> &LeaseAgent {
        &self.inner.agent
    }

    /// Returns the listeners of this handle. The first call subscribes to the store's messages.
    pub(crate) fn wakeups(&self) -> &Arc<WakeupListeners> {
        let wakeups = &self.inner.wakeups;
        self.inner.fleet_responder.get_or_init(|| {
            uptime();
            let responder = FleetResponder::new(self.downgrade());
            let listener: Arc<dyn InquiryListener> = Arc::clone(&responder) as _;
            wakeups.set_inquiry_listener(Arc::downgrade(&listener));
            responder
        });
        wakeups.ensure_subscribed(|| {
            match self.backend().subscribe(self.node().clone(), wakeups) {
                Some(subscription) => {
                    self.inner.agent.spawn_long_running(subscription).map(SubscriptionState::Task)
                }
                None => Some(SubscriptionState::BuiltIn),
            }
        });
        self.inner.agent.ensure_started();
        wakeups
    }

    /// Returns true while an operator has drained this process.
    pub(crate) fn is_drained(&self) -> bool {
        self.inner.wakeups.is_drained()
    }

    /// Starts to receive messages, unless this handle does so already: a process with locks or
    /// limits answers operators, and is told of a forced release.
    pub(crate) fn ensure_listening(&self) {
        if self.inner.fleet_responder.get().is_none() {
            self.wakeups();
        }
    }

    /// Runs work in the background, on a runtime that lives as long as the store, if there is one
    /// and it is driven. Without any runtime the work is dropped.
    pub(crate) fn spawn_background(&self, work: impl Future<Output = ()> + Send + 'static) {
        if let Some(runtime) = self.inner.agent.runtime_handle() {
            // Boxed, so that the code of a task is compiled once for all kinds of work.
            runtime.spawn(Box::pin(work) as BoxFuture<'static, ()>);
        }
    }

    /// Runs work beside the agent for as long as the store is used. It starts at once on the home
    /// runtime, or, if that is not driven, a little later on another one. Without any runtime it is
    /// dropped.
    pub(crate) fn spawn_long_running(&self, work: impl Future<Output = ()> + Send + 'static) {
        drop(self.inner.agent.spawn_long_running(work));
    }

    /// Waits for the reply of a background operation. Returns `None` if it ended without a reply,
    /// or if its runtime has stalled for longer than an operation may take; the operation then
    /// continues unobserved.
    pub(crate) async fn await_reply<T>(&self, reply: oneshot::Receiver<T>) -> Option<T> {
        // The operation's own deadline passes first, unless its runtime has stalled.
        let max_wait = self.backend().deadline() * 2;
        if Handle::try_current().is_err() {
            return reply.await.ok();
        }
        tokio::time::timeout(max_wait, reply).await.ok()?.ok()
    }

    /// Adds a hook that every shutdown runs.
    pub(crate) fn on_shutdown(
        &self,
        hook: impl Fn(Self) -> BoxFuture<'static, ()> + Send + Sync + 'static,
    ) {
        self.inner.shutdown_hooks.lock().push(Arc::new(hook));
    }

    /// Returns true if both are handles on one server, database and namespace. Returns `None` if
    /// one of them has never connected, and so has no identity yet: see
    /// [`identify`](Self::identify).
    pub(crate) fn is_same_as(&self, other: &Self) -> Option<bool> {
        if Arc::ptr_eq(&self.inner.backend, &other.inner.backend) {
            return Some(true);
        }
        let own_identities = self.backend().identities();
        let other_identities = other.backend().identities();
        let have_connected = !own_identities.is_empty() && !other_identities.is_empty();
        have_connected
            .then(|| own_identities.iter().any(|identity| other_identities.contains(identity)))
    }

    /// Fetches the identity of the server, database and namespace, and connects first if necessary.
    pub(crate) async fn identify(&self) -> Result<(), Error> {
        self.backend().identify().await.map(drop)
    }

    /// Returns true if both are clones of one handle.
    #[cfg(feature = "serve")]
    pub(crate) fn is_same_handle(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    pub(crate) fn downgrade(&self) -> WeakStore {
        WeakStore(Arc::downgrade(&self.inner))
    }

    /// Returns the value that an engine keeps with this handle, such as its local queues. There is
    /// one value of each type.
    pub(crate) fn extension<T: Default + Send + Sync + 'static>(&self) -> Arc<T> {
        let (mut extensions, type_id) = (self.inner.extensions.lock(), TypeId::of::<T>());
        if let Some((_, value)) = extensions.iter().find(|(id, _)| *id == type_id) {
            let value = Arc::clone(value).downcast();
            #[expect(
                clippy::unreachable,
                reason = "each value is stored with the id of its type"
            )]
            return value.unwrap_or_else(|_| unreachable!("the value has the type of its id"));
        }
        let value = Arc::new(T::default());
        extensions.push((type_id, Arc::clone(&value) as _));
        value
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let StoreInner { backend, node, .. } = &*self.inner;
        f.debug_struct("Store").field("backend", backend).field("node", node).finish()
    }
}
