//! Connections: a few sockets, many requests on each.
//!
//! A lane is a `bb8` pool of one multiplexed connection. Calls clone its handle, so they pipeline; the
//! pool is asked again when that connection is dead. All calls about one shard go through one lane: that is
//! what orders an undo after the call it undoes. Validity is a flag that is read, never a `PING`: it
//! is set by the disconnect push, by a run of timeouts, and by answers of a server that is no master.
//! In a cluster each node has lanes of its own, and a shard's lane is one of those of the node that has it
//! ([`nodes`](super::nodes)).

use std::{
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{sync::Notify, time::Instant};

use super::{
    Keys,
    incarnation::{Incarnation, Met},
    nodes::{Nodes, Place},
    server::Facts,
    target::{Connection, Failure, Settings, Target},
};
use crate::{
    error::{Error, ErrorKind},
    key::SHARDS,
    store::keys::COMMON,
};

/// Timeouts in a row after which a socket counts as dead: a half-open one would time out for ever.
const TIMEOUTS: u32 = 3;

/// One connection and its flags.
#[derive(Clone)]
pub(super) struct Socket {
    pub(super) connection: Connection,
    /// Where it goes, if it is a node of a cluster.
    pub(super) place: Option<Arc<Place>>,
    dead: Arc<AtomicBool>,
    timeouts: Arc<AtomicU32>,
}

impl Socket {
    pub(super) fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Acquire)
    }

    pub(super) fn condemn(&self) {
        self.dead.store(true, Ordering::Release);
    }

    pub(super) fn answered(&self) {
        if self.timeouts.load(Ordering::Relaxed) != 0 {
            self.timeouts.store(0, Ordering::Relaxed);
        }
    }

    pub(super) fn timed_out(&self) {
        if self.timeouts.fetch_add(1, Ordering::Relaxed) + 1 >= TIMEOUTS {
            self.condemn();
        }
    }
}

pub(super) struct Lanes {
    ways: Ways,
    incarnation: Arc<Incarnation>,
    /// Makes connections that are no lane's.
    probe: Manager,
}

enum Ways {
    /// To one server.
    One(Vec<Lane>),
    Nodes(Nodes),
}

/// A pool of one, and word of the connections that could not be made: `bb8` makes them in a task of its
/// own, and would leave those who wait to their timeout.
pub(super) struct Lane {
    pool: Mutex<Pool>,
    /// The pool's one connection, once it is known.
    socket: Mutex<Option<Socket>>,
    failures: Arc<Failures>,
}

/// A pool, and what tells it from those that were there before.
#[derive(Clone)]
struct Pool {
    pool: bb8::Pool<Manager>,
    manager: Manager,
    number: u64,
}

#[derive(Default)]
struct Failures {
    last: Mutex<Option<Failure>>,
    bell: Notify,
}

impl Failures {
    fn note(&self, failure: Failure) -> Error {
        *self.last.lock() = Some(failure.clone());
        self.bell.notify_waiters();
        failure.error()
    }

    fn last(&self) -> Error {
        self.last.lock().clone().unwrap_or(Failure::Away).error()
    }
}

impl Lanes {
    pub(super) fn new(target: &Target, keys: &Keys, number: usize, deadline: Duration) -> Self {
        let incarnation = match target {
            Target::Cluster(cluster) => Arc::clone(cluster.incarnation()),
            _ => Arc::default(),
        };
        let probe = Manager {
            target: target.clone(),
            meta: keys.meta(),
            deadline,
            failures: Arc::default(),
            incarnation: None,
            place: None,
            making: Arc::default(),
        };
        let manager = || probe.watching(target.clone(), &incarnation, None);
        let ways = match target {
            Target::Cluster(cluster) => {
                let (own, incarnation) = (cluster.clone(), Arc::clone(&incarnation));
                let base = probe.watching(target.clone(), &incarnation, None);
                let lane = move |place: &Arc<Place>| {
                    let node = own.node(&place.address)?;
                    let target = Target::One(node);
                    Ok(Lane::new(base.watching(target, &incarnation, Some(Arc::clone(place)))))
                };
                Ways::Nodes(Nodes::new(cluster.clone(), number, deadline, Box::new(lane)))
            }
            _ => Ways::One((0..number).map(|_| Lane::new(manager())).collect()),
        };
        Self { ways, incarnation, probe }
    }

    pub(super) fn on_new_server(&self, tell: Weak<dyn Fn() + Send + Sync>) {
        self.incarnation.on_change(tell);
    }

    /// Which server the lanes lead to.
    pub(super) fn incarnation(&self) -> &Incarnation {
        &self.incarnation
    }

    /// Whether calls of this lane would be answered. It tells nobody of a new server: calls are still refused.
    pub(super) async fn could_work(&self, lane: usize, keys: &Keys) -> bool {
        match &self.ways {
            // A new connection can be made and written to.
            Ways::One(_) => bb8::ManageConnection::connect(&self.probe).await.is_ok(),
            Ways::Nodes(nodes) => nodes.could_work(lane, keys).await,
        }
    }

    /// How many there are.
    pub(super) fn number(&self) -> usize {
        match &self.ways {
            Ways::One(lanes) => lanes.len(),
            Ways::Nodes(_) => usize::from(SHARDS),
        }
    }

    /// The lane of calls about this shard. In a cluster each has its own: a call is about one.
    pub(super) fn of(&self, shard: u16) -> usize {
        usize::from(shard) % self.number()
    }

    /// A shard of each server that has any, and those that nobody is known to have.
    pub(super) fn representatives(&self) -> Vec<u16> {
        match &self.ways {
            Ways::One(_) => vec![COMMON],
            Ways::Nodes(nodes) => nodes.representatives(),
        }
    }

    /// A lane's connection. While it lives, this asks nobody and does not wait.
    #[expect(clippy::indexing_slicing, reason = "who asks has the lane from `of`")]
    pub(super) async fn socket(&self, lane: usize) -> Result<Socket, Error> {
        match &self.ways {
            Ways::One(lanes) => lanes[lane].socket().await,
            Ways::Nodes(nodes) => nodes.socket(lane).await,
        }
    }
}

impl Lane {
    fn new(manager: Manager) -> Self {
        let failures = Arc::clone(&manager.failures);
        Self { pool: Mutex::new(Pool::new(manager, 0)), socket: Mutex::new(None), failures }
    }

    /// Its connection. While that lives, this asks nobody and does not wait.
    pub(super) async fn socket(&self) -> Result<Socket, Error> {
        let Self { pool, socket: known, failures } = self;
        if let Some(socket) = known.lock().as_ref().filter(|socket| !socket.is_dead()) {
            return Ok(socket.clone());
        }
        let Pool { pool, number, .. } = pool.lock().clone();
        let mut failed = std::pin::pin!(failures.bell.notified());
        failed.as_mut().enable();
        tokio::select! {
            biased;
            socket = pool.get() => match socket {
                Ok(socket) => self.keep(&socket, number).ok_or_else(|| failures.last()),
                Err(_) => {
                    self.revive(number);
                    Err(failures.last())
                }
            },
            () = failed => Err(failures.last()),
        }
    }

    /// Takes a socket for the lane's; not one of a pool that was given up: a lane has one at a time, which
    /// is what orders its calls.
    fn keep(&self, socket: &Socket, number: u64) -> Option<Socket> {
        let pool = self.pool.lock();
        (pool.number == number).then(|| {
            *self.socket.lock() = Some(socket.clone());
            socket.clone()
        })
    }

    /// `bb8` connects on the runtime of whoever asked first. If that ends meanwhile, the pool waits for ever
    /// for a connection that nobody makes.
    fn revive(&self, number: u64) {
        let mut pool = self.pool.lock();
        if pool.number == number && pool.is_forsaken() {
            *pool = Pool::new(pool.manager.clone(), number + 1);
        }
    }
}

impl Pool {
    fn new(manager: Manager, number: u64) -> Self {
        let manager = Manager { making: Arc::default(), ..manager };
        let pool = bb8::Pool::builder()
            .max_size(1)
            .max_lifetime(None)
            .idle_timeout(None)
            .retry_connection(false)
            .connection_timeout(manager.deadline)
            .build_unchecked(manager.clone());
        Self { pool, manager, number }
    }

    /// It has no connection and nobody makes one, or who makes it should have ended long ago: its runtime
    /// stands still.
    fn is_forsaken(&self) -> bool {
        let begun = *self.manager.making.lock();
        let stands = |begun: Instant| begun.elapsed() > self.manager.deadline * 3;
        self.pool.state().connections == 0 && begun.is_none_or(stands)
    }
}

/// An attempt to connect, until it ends or its runtime does.
struct Making<'a>(&'a Mutex<Option<Instant>>);

impl<'a> Making<'a> {
    fn begun(making: &'a Mutex<Option<Instant>>) -> Self {
        *making.lock() = Some(Instant::now());
        Self(making)
    }
}

impl Drop for Making<'_> {
    fn drop(&mut self) {
        *self.0.lock() = None;
    }
}

#[derive(Clone)]
pub(super) struct Manager {
    target: Target,
    meta: String,
    deadline: Duration,
    failures: Arc<Failures>,
    incarnation: Option<Arc<Incarnation>>,
    place: Option<Arc<Place>>,
    /// Since when its pool's connection is being made.
    making: Arc<Mutex<Option<Instant>>>,
}

impl bb8::ManageConnection for Manager {
    type Connection = Socket;
    type Error = Error;

    async fn connect(&self) -> Result<Socket, Error> {
        let _making = Making::begun(&self.making);
        // Bounded as a whole: an attempt that never ends would keep its lane from making another.
        let opened = tokio::time::timeout(self.deadline * 2, self.open()).await;
        opened.unwrap_or(Err(Failure::Away)).map_err(|failure| self.failures.note(failure))
    }

    async fn is_valid(&self, socket: &mut Socket) -> Result<(), Error> {
        if socket.is_dead() {
            Err(Error::new(ErrorKind::Unavailable, "connection"))
        } else {
            Ok(())
        }
    }

    fn has_broken(&self, socket: &mut Socket) -> bool {
        socket.is_dead()
    }
}

impl Manager {
    /// For a lane to this target.
    fn watching(
        &self,
        target: Target,
        incarnation: &Arc<Incarnation>,
        place: Option<Arc<Place>>,
    ) -> Self {
        let incarnation = Some(Arc::clone(incarnation));
        Self { target, failures: Arc::default(), incarnation, place, ..self.clone() }
    }

    async fn open(&self) -> Result<Socket, Failure> {
        let settings = Settings { within: Some(self.deadline), ..Settings::default() };
        let mut connection = self.target.open(COMMON, &settings).await?;
        let facts = Facts::ask(&mut connection).await;
        facts.check(self.place.is_some())?;
        let blank = self.check_layout(&mut connection).await?;
        if let Some(incarnation) = &self.incarnation {
            let dead = Arc::downgrade(&settings.gone);
            let place = self.place.as_ref().map(|place| place.name()).unwrap_or_default();
            if incarnation.met(&place, facts.id.clone(), blank, dead) != Met::Known {
                facts.warn(&mut connection).await;
            }
        }
        let place = self.place.clone();
        Ok(Socket { connection, place, dead: settings.gone, timeouts: Arc::default() })
    }

    /// The number of shards is part of every key: processes that disagree would not see each other. True
    /// if nobody had written it before. (A probe leaves that to the lanes: they tell of a new server by it.)
    async fn check_layout(&self, connection: &mut Connection) -> Result<bool, Failure> {
        let mut pipe = redis::pipe();
        // A write, which a replica refuses. One that a server without room takes: calls that make room go through here.
        pipe.cmd("HDEL").arg(&self.meta).arg("never").ignore();
        pipe.cmd("HGET").arg(&self.meta).arg("shards");
        let answer: Result<(Option<u16>,), _> = pipe.query_async(connection).await;
        let known = match answer {
            // Another node of the cluster has it, or nobody now.
            Err(error) if self.place.is_some() && error.is_cluster_error() => return Ok(false),
            answer => answer.map_err(|error| Failure::of(&error))?.0,
        };
        let (blank, shards) = match known {
            Some(shards) => (false, shards),
            None if self.incarnation.is_none() => return Ok(true),
            None => self.write_layout(connection).await?,
        };
        if shards == SHARDS {
            return Ok(blank);
        }
        Err(Failure::Config(format!(
            "this namespace was made with {shards} shards and this version has {SHARDS}; use another ?ns="
        )))
    }

    /// Whether nobody else was faster, and what is written.
    async fn write_layout(&self, connection: &mut Connection) -> Result<(bool, u16), Failure> {
        let mut pipe = redis::pipe();
        pipe.cmd("HSETNX").arg(&self.meta).arg("shards").arg(SHARDS);
        pipe.cmd("HGET").arg(&self.meta).arg("shards");
        pipe.query_async(connection).await.map_err(|error| Failure::of(&error))
    }
}
