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
    agent::Agent,
    backend::{Backend, Node},
    direct_runs::DirectRuns,
    hints::{Hints, Listening},
    memory::Memory,
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
    shared: Arc<Shared>,
}

struct Shared {
    backend: Arc<dyn Backend>,
    node: Node,
    hints: Arc<Hints>,
    agent: Agent,
    /// A handful, and one of them is looked for with every request: sooner found by going through them.
    rooms: Mutex<Vec<(TypeId, Arc<dyn Any + Send + Sync>)>>,
    closing: Mutex<Vec<Arc<Closing>>>,
}

/// What an engine has to give back when the store is shut down.
type Closing = dyn Fn(Store) -> BoxFuture<'static, ()> + Send + Sync;

/// A handle that does not keep the store alive.
#[derive(Clone)]
pub(crate) struct WeakStore(Weak<Shared>);

impl WeakStore {
    pub(crate) fn upgrade(&self) -> Option<Store> {
        self.0.upgrade().map(|shared| Store { shared })
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
        Self::on(Arc::new(Memory::new(clock)))
    }

    /// Another handle on the same data that counts as another process: its own node, waiting lines
    /// and agent. For tests of what several processes do; on Redis it shares the connections and the breaker.
    #[cfg(any(test, feature = "test-kit"))]
    #[must_use]
    pub fn as_another_process(&self) -> Self {
        Self::on(Arc::clone(&self.shared.backend))
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

    /// Waits for requests that run in tasks of their own (`DeferLayer::remember_direct`) and whose clients have left, gives
    /// back what was dropped but is not yet released, and returns when all of it is, or when `deadline` has passed: `true` if nothing was left. What is left then ends with its lease; and so does what a copy of a
    /// call takes that was answered by another connection, and is delivered later.
    ///
    /// Call it last, after the server and the workers have ended: what is taken meanwhile or later is not waited for.
    /// Cancel safe: what was dropped goes on being given back in the background, while there is a runtime.
    pub async fn shutdown(&self, deadline: Duration) -> bool {
        let drained = async {
            // Beside each other: a run that takes long must not keep the engines from giving back.
            let closing = self.shared.closing.lock().clone();
            let closing = join_all(closing.iter().map(|close| close(self.clone())));
            join(closing, self.room::<DirectRuns>().ended()).await;
            loop {
                let settled = self.shared.hints.drain();
                self.shared.agent.drained().await;
                if settled {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(deadline, drained).await.is_ok()
    }

    /// Waits until no remembered request (`DeferLayer::remember_direct`) runs in this process, or until `deadline` has
    /// passed: `true` if none is left. [`Store::shutdown`] waits for them too; call this one before the runtimes end on
    /// which they run, as in actix-web, whose server takes the threads of its handlers along:
    /// `.shutdown_signal(async move { signal.await; store.finish_remembered(limit).await; })`. A run that is cut off
    /// by the end of its runtime counts as crashed.
    ///
    /// Cancel safe: it changes nothing. Requests may begin while it waits.
    pub async fn finish_remembered(&self, deadline: Duration) -> bool {
        tokio::time::timeout(deadline, self.room::<DirectRuns>().ended()).await.is_ok()
    }

    pub(crate) fn on(backend: Arc<dyn Backend>) -> Self {
        let agent = Agent::new(Arc::clone(&backend));
        Self {
            shared: Arc::new(Shared {
                backend,
                node: Node::new(),
                hints: Arc::new(Hints::default()),
                agent,
                rooms: Mutex::default(),
                closing: Mutex::default(),
            }),
        }
    }

    pub(crate) fn backend(&self) -> &dyn Backend {
        &*self.shared.backend
    }

    pub(crate) fn node(&self) -> &Node {
        &self.shared.node
    }

    pub(crate) fn agent(&self) -> &Agent {
        &self.shared.agent
    }

    /// The listeners of this handle; the first call makes the store deliver messages.
    pub(crate) fn hints(&self) -> &Arc<Hints> {
        let hints = &self.shared.hints;
        hints.ensure(|| match self.backend().listen(self.node().clone(), hints) {
            Some(listens) => self.shared.agent.keep(listens).map(Listening::Runs),
            None => Some(Listening::Always),
        });
        self.shared.agent.attend();
        hints
    }

    /// Runs work in the background, on a runtime that lives as long as the store, if there is one and somebody drives it.
    pub(crate) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        if let Some(runtime) = self.shared.agent.runtime() {
            // Boxed, so that the machinery of a task is compiled once for all of them.
            runtime.spawn(Box::pin(work) as BoxFuture<'static, ()>);
        }
    }

    /// Runs what goes on for as long as the store is used beside the agent, wherever that begins: at home it does so at
    /// once, and only where nobody drives that a while later, elsewhere. Dropped if there is no runtime at all.
    pub(crate) fn keep(&self, work: impl Future<Output = ()> + Send + 'static) {
        drop(self.shared.agent.keep(work));
    }

    /// What a step in the background has come to. `None`: it ended without a word, or the runtime that it is on stands still
    /// for longer than a step may take; it goes on then, and nobody is told.
    pub(crate) async fn hear<T>(&self, told: oneshot::Receiver<T>) -> Option<T> {
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
        self.shared.closing.lock().push(Arc::new(close));
    }

    /// Returns true if both are handles on one server, database and namespace. `None` if one of them has
    /// never connected, and so does not know: see [`identify`](Self::identify).
    pub(crate) fn is_same_as(&self, other: &Self) -> Option<bool> {
        if Arc::ptr_eq(&self.shared.backend, &other.shared.backend) {
            return Some(true);
        }
        let (own, others) = (self.backend().spaces(), other.backend().spaces());
        let is_known = !own.is_empty() && !others.is_empty();
        is_known.then(|| own.iter().any(|space| others.contains(space)))
    }

    /// Learns which server, database and namespace this is a handle on, by a connection if it has made none.
    pub(crate) async fn identify(&self) -> Result<(), Error> {
        self.backend().identify().await.map(drop)
    }

    pub(crate) fn downgrade(&self) -> WeakStore {
        WeakStore(Arc::downgrade(&self.shared))
    }

    /// What an engine keeps beside this handle, such as the local waiting lines: one of each type.
    pub(crate) fn room<T: Default + Send + Sync + 'static>(&self) -> Arc<T> {
        let (mut rooms, kind) = (self.shared.rooms.lock(), TypeId::of::<T>());
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
        let Shared { backend, node, .. } = &*self.shared;
        f.debug_struct("Store").field("backend", backend).field("node", node).finish()
    }
}
