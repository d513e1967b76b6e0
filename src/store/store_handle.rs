//! `Store`: the handle.

use std::{
    any::{Any, TypeId},
    fmt,
    sync::{Arc, Weak},
    time::Duration,
};

use futures_util::future::{BoxFuture, join, join_all};
use parking_lot::Mutex;
use tokio::{runtime::Handle, sync::oneshot};

use super::{
    backend::{Backend, NodeId},
    direct_run_counter::DirectRunCounter,
    lease_agent::LeaseAgent,
    memory::MemoryBackend,
    wakeups::{SubscriptionState, Wakeups},
};
use crate::{clock::Clock, error::Error};

/// One shared store for all layers, and for locks, quotas and queues used on their own.
///
/// Cloning is cheap, and all clones are one node: they share connections, the local waiting lines and
/// the background agent that renews and gives back leases. [`Store::shutdown`] drains it.
///
/// # Where it comes from
///
/// [`Store::connect`] takes the URL of a Redis or Valkey server; [`Store::memory`] is the embedded
/// default, with the same semantics inside one process.
#[derive(Clone)]
pub struct Store {
    inner: Arc<StoreInner>,
}

struct StoreInner {
    backend: Arc<dyn Backend>,
    node: NodeId,
    wakeups: Arc<Wakeups>,
    agent: LeaseAgent,
    /// A handful, and one of them is looked for with every request: sooner found by going through them.
    extensions: Mutex<Vec<(TypeId, Arc<dyn Any + Send + Sync>)>>,
    shutdown_hooks: Mutex<Vec<Arc<ShutdownHook>>>,
}

/// What an engine has to give back when the store is shut down.
type ShutdownHook = dyn Fn(Store) -> BoxFuture<'static, ()> + Send + Sync;

/// A handle that does not keep the store alive.
#[derive(Clone)]
pub(crate) struct WeakStore(Weak<StoreInner>);

impl WeakStore {
    pub(crate) fn upgrade(&self) -> Option<Store> {
        self.0.upgrade().map(|shared| Store { inner: shared })
    }
}

impl Store {
    /// A store inside this process, empty, that lives as long as its handles. Locks, quotas and
    /// deferred requests in it are gone when the process ends.
    #[must_use]
    pub fn memory() -> Self {
        Self::memory_with_clock(Clock::system())
    }

    /// As [`Store::memory`], with a clock of the caller's.
    #[must_use]
    pub fn memory_with_clock(clock: Clock) -> Self {
        Self::with_backend(Arc::new(MemoryBackend::new(clock)))
    }

    /// Another handle on the same data that counts as another process: its own node, waiting lines
    /// and agent. For tests of what several processes do; on Redis it shares the connections and the breaker.
    #[cfg(any(test, feature = "test-kit"))]
    #[must_use]
    pub fn as_another_process(&self) -> Self {
        Self::with_backend(Arc::clone(&self.inner.backend))
    }

    /// Fails if the store is away or unusable: the answer of a health check.
    ///
    /// Cancel safe: it changes nothing.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unavailable`](crate::ErrorKind) or `Timeout` while it is away, `Config` if it
    /// refuses this process for good.
    pub async fn ping(&self) -> Result<(), Error> {
        self.backend().ping().await
    }

    /// Waits for requests that run in tasks of their own (`DeferLayer::idempotent_direct`) and whose clients have left, gives
    /// back what was dropped but is not yet released, and returns when all of it is, or when `deadline` has passed: `true` if nothing was left. What is left then ends with its lease; and so does what a copy of a
    /// call takes that was answered by another connection, and is delivered later.
    ///
    /// Call it last, after the server and the workers have ended: what is taken meanwhile or later is not waited for.
    /// Cancel safe: what was dropped goes on being given back in the background, while there is a runtime.
    pub async fn shutdown(&self, deadline: Duration) -> bool {
        let drained = async {
            // Beside each other: a run that takes long must not keep the engines from giving back.
            let closing = self.inner.shutdown_hooks.lock().clone();
            let closing = join_all(closing.iter().map(|close| close(self.clone())));
            join(closing, self.extension::<DirectRunCounter>().wait_until_idle()).await;
            loop {
                let settled = self.inner.wakeups.drain();
                self.inner.agent.wait_until_drained().await;
                if settled {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(deadline, drained).await.is_ok()
    }

    /// Waits until no remembered request (`DeferLayer::idempotent_direct`) runs in this process, or until `deadline` has
    /// passed: `true` if none is left. [`Store::shutdown`] waits for them too; call this one before the runtimes end on
    /// which they run, as in actix-web, whose server takes the threads of its handlers along:
    /// `.shutdown_signal(async move { signal.await; store.wait_for_direct_runs(limit).await; })`. A run that is cut off
    /// by the end of its runtime counts as crashed.
    ///
    /// Cancel safe: it changes nothing. Requests may begin while it waits.
    pub async fn wait_for_direct_runs(&self, deadline: Duration) -> bool {
        tokio::time::timeout(deadline, self.extension::<DirectRunCounter>().wait_until_idle())
            .await
            .is_ok()
    }

    pub(crate) fn with_backend(backend: Arc<dyn Backend>) -> Self {
        let agent = LeaseAgent::new(Arc::clone(&backend));
        Self {
            inner: Arc::new(StoreInner {
                backend,
                node: NodeId::new(),
                wakeups: Arc::new(Wakeups::default()),
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

    pub(crate) fn agent(&self) -> &LeaseAgent {
        &self.inner.agent
    }

    /// The listeners of this handle; the first call makes the store deliver messages.
    pub(crate) fn wakeups(&self) -> &Arc<Wakeups> {
        let hints = &self.inner.wakeups;
        hints.ensure_subscribed(|| match self.backend().subscribe(self.node().clone(), hints) {
            Some(listens) => {
                self.inner.agent.spawn_long_running(listens).map(SubscriptionState::Task)
            }
            None => Some(SubscriptionState::BuiltIn),
        });
        self.inner.agent.ensure_started();
        hints
    }

    /// Runs work in the background, on a runtime that lives as long as the store, if there is one and somebody drives it.
    pub(crate) fn spawn_background(&self, work: impl Future<Output = ()> + Send + 'static) {
        if let Some(runtime) = self.inner.agent.runtime_handle() {
            // Boxed, so that the machinery of a task is compiled once for all of them.
            runtime.spawn(Box::pin(work) as BoxFuture<'static, ()>);
        }
    }

    /// Runs what goes on for as long as the store is used beside the agent, wherever that begins: at home it does so at
    /// once, and only where nobody drives that a while later, elsewhere. Dropped if there is no runtime at all.
    pub(crate) fn spawn_long_running(&self, work: impl Future<Output = ()> + Send + 'static) {
        drop(self.inner.agent.spawn_long_running(work));
    }

    /// What a step in the background has come to. `None`: it ended without a word, or the runtime that it is on stands still
    /// for longer than a step may take; it goes on then, and nobody is told.
    pub(crate) async fn await_reply<T>(&self, told: oneshot::Receiver<T>) -> Option<T> {
        // Its own end comes first, where its runtime lives.
        let patience = self.backend().deadline() * 2;
        if Handle::try_current().is_err() {
            return told.await.ok();
        }
        tokio::time::timeout(patience, told).await.ok()?.ok()
    }

    /// Has this done by every shutdown.
    pub(crate) fn on_shutdown(
        &self,
        close: impl Fn(Self) -> BoxFuture<'static, ()> + Send + Sync + 'static,
    ) {
        self.inner.shutdown_hooks.lock().push(Arc::new(close));
    }

    /// Returns true if both are handles on one server, database and namespace. `None` if one of them has
    /// never connected, and so does not know: see [`identify`](Self::identify).
    pub(crate) fn is_same_as(&self, other: &Self) -> Option<bool> {
        if Arc::ptr_eq(&self.inner.backend, &other.inner.backend) {
            return Some(true);
        }
        let (own, others) = (self.backend().identities(), other.backend().identities());
        let is_known = !own.is_empty() && !others.is_empty();
        is_known.then(|| own.iter().any(|space| others.contains(space)))
    }

    /// Learns which server, database and namespace this is a handle on, by a connection if it has made none.
    pub(crate) async fn identify(&self) -> Result<(), Error> {
        self.backend().identify().await.map(drop)
    }

    pub(crate) fn downgrade(&self) -> WeakStore {
        WeakStore(Arc::downgrade(&self.inner))
    }

    /// What an engine keeps beside this handle, such as the local waiting lines: one of each type.
    pub(crate) fn extension<T: Default + Send + Sync + 'static>(&self) -> Arc<T> {
        let (mut rooms, kind) = (self.inner.extensions.lock(), TypeId::of::<T>());
        if let Some((_, room)) = rooms.iter().find(|(of, _)| *of == kind) {
            let room = Arc::clone(room).downcast();
            #[expect(clippy::unreachable, reason = "it was put there under the name of its type")]
            return room.unwrap_or_else(|_| unreachable!("it stands beside its type"));
        }
        let room = Arc::new(T::default());
        rooms.push((kind, Arc::clone(&room) as _));
        room
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let StoreInner { backend, node, .. } = &*self.inner;
        f.debug_struct("Store").field("backend", backend).field("node", node).finish()
    }
}
