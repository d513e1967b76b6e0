//! Connections: a few sockets, many requests on each.
//!
//! A lane is a `bb8` pool of one multiplexed connection. Calls clone its handle, so they pipeline; the
//! pool is asked again when that connection is dead. All calls about one shard go through one lane: that is
//! what orders an undo after the call it undoes. Validity is a flag that is read, never a `PING`: it
//! is set by the disconnect push, by a run of timeouts, and by answers of a server that is no master.
//! In a cluster each node has lanes of its own, and a shard's lane is one of those of the node that has it
//! ([`nodes`](super::nodes)).
//!
//! Where a server may be replaced while it stands still (behind sentinels, in a cluster), and wake as if nothing had
//! happened, a connection is left at the first timeout and when it has been silent for too long ([`life`]), and what it
//! answers afterwards is not believed.

mod lane;
mod layout;
mod life;
mod manager;

use std::{
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
    time::Duration,
};

pub(super) use self::lane::Lane;
use self::{life::Life, manager::Manager};
use super::{
    KeyNames,
    fault::judged,
    incarnation::Incarnation,
    nodes::{Nodes, Place},
    target::{Connection, Target},
};
use crate::{
    error::{Error, ErrorKind},
    key::SHARDS,
    store::key_names::COMMON,
};
use futures_util::future::join_all;
use redis::Cmd;
use tokio::{
    runtime::Handle,
    time::{Instant, timeout},
};

/// Timeouts in a row after which a socket counts as dead: a half-open one would time out for ever.
const TIMEOUTS: u32 = 3;

/// One connection and its flags.
#[derive(Clone)]
pub(super) struct Socket {
    pub(super) connection: Connection,
    /// Where it goes, if it is a node of a cluster.
    pub(super) place: Option<Arc<Place>>,
    /// Of the node, if it tells.
    pub(super) run_id: Option<Arc<str>>,
    dead: Arc<AtomicBool>,
    timeouts: Arc<AtomicU32>,
    /// If its server may be replaced while it stands still.
    life: Option<Arc<Life>>,
    /// When whoever has this was given it: what he sends is sent later. As long as it has a life.
    given: Instant,
    /// As [`Lanes::silences`].
    silences: Arc<AtomicU64>,
}

impl Socket {
    pub(super) fn is_dead(&self) -> bool {
        if self.life.as_ref().is_some_and(|life| life.is_too_quiet(Instant::now())) {
            self.leave_in_silence();
        }
        self.dead.load(Ordering::Acquire)
    }

    /// For somebody who sends something now; `None` if it must not be used.
    pub(super) fn give(&self) -> Option<Self> {
        let Some(life) = &self.life else { return (!self.is_dead()).then(|| self.clone()) };
        let given = Instant::now();
        if life.is_too_quiet(given) {
            self.leave_in_silence();
        }
        (!self.dead.load(Ordering::Acquire)).then(|| Self { given, ..self.clone() })
    }

    /// It was left, and its server may be one that was replaced: what it says now is not to be believed.
    pub(super) fn is_in_doubt(&self) -> bool {
        self.life.is_some() && self.dead.load(Ordering::Acquire)
    }

    pub(super) fn condemn(&self) {
        self.dead.store(true, Ordering::Release);
    }

    /// A call on it was not answered. It may be delivered yet, by whatever stands between here and there; and is sent again.
    pub(super) fn broke(&self) {
        self.condemn();
        self.silences.fetch_add(1, Ordering::AcqRel);
    }

    /// It takes the place of one that has ended.
    fn took_over(&self) {
        self.silences.fetch_add(1, Ordering::AcqRel);
    }

    /// What was sent on it is answered, whatever the answer.
    pub(super) fn answered(&self) {
        if self.life.as_ref().is_some_and(|life| !life.answers(self.given)) {
            self.leave_in_silence();
        }
        if self.timeouts.load(Ordering::Relaxed) != 0 {
            self.timeouts.store(0, Ordering::Relaxed);
        }
    }

    pub(super) fn timed_out(&self) {
        let timeouts = self.timeouts.fetch_add(1, Ordering::Relaxed) + 1;
        // Calls may lie there, and be run when it wakes.
        if timeouts >= TIMEOUTS || self.life.is_some() {
            self.leave_in_silence();
        }
    }

    fn leave_in_silence(&self) {
        if self.dead.swap(true, Ordering::AcqRel) {
            return;
        }
        self.silences.fetch_add(1, Ordering::AcqRel);
        if let Some(place) = &self.place {
            place.is_silent();
        }
    }

    /// Whether it is answered as a call would be that writes this.
    pub(super) async fn takes(mut self, write: &Cmd, within: Duration) -> bool {
        let answer = timeout(within, write.query_async::<u64>(&mut self.connection)).await;
        let Ok(answer) = answer else {
            // The next look is for another one: this may be broken where the server is well.
            self.leave_in_silence();
            return false;
        };
        judged(&self, answer).is_ok()
    }

    /// Asks for a sign of life, if there was none for a while and one is needed.
    async fn beat(self, within: Duration) {
        let Some(mut own) = self.give() else { return };
        let Some(life) = own.life.clone().filter(|life| life.is_quiet(own.given)) else { return };
        let within = within.min(life.patience);
        let ping = redis::cmd("PING");
        match timeout(within, own.connection.send_packed_command(&ping)).await {
            Ok(Ok(_)) => own.answered(),
            // Whatever is wrong, the next one is made to whoever is the master then.
            Ok(Err(_)) => own.condemn(),
            Err(_) => own.timed_out(),
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

impl Lanes {
    pub(super) fn new(target: &Target, keys: &KeyNames, number: usize, deadline: Duration) -> Self {
        let incarnation = match target {
            Target::Cluster(cluster) => Arc::clone(cluster.incarnation()),
            _ => Arc::default(),
        };
        let probe = Manager {
            target: target.clone(),
            keys: keys.clone(),
            deadline,
            failures: Arc::default(),
            incarnation: None,
            place: None,
            silences: Arc::default(),
            making: Arc::default(),
            home: Handle::try_current().ok(),
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
                let (cluster, keys) = (cluster.clone(), keys.clone());
                Ways::Nodes(Nodes::new(cluster, keys, number, deadline, Box::new(lane)))
            }
            _ => Ways::One((0..number).map(|_| Lane::new(manager())).collect()),
        };
        Self { ways, incarnation, probe }
    }

    pub(super) fn on_new_server(&self, tell: Weak<dyn Fn() + Send + Sync>) {
        self.incarnation.on_change(tell);
    }

    /// How many of their connections were left because they were silent, and how many calls met one that broke. What had
    /// been sent on them may arrive yet, behind what is sent on others now.
    pub(super) fn silences(&self) -> u64 {
        self.probe.silences.load(Ordering::Acquire)
    }

    /// Which server the lanes lead to.
    pub(super) fn incarnation(&self) -> &Incarnation {
        &self.incarnation
    }

    /// Whether calls of this lane would be answered. It tells nobody of a new server: calls are still refused.
    pub(super) async fn could_work(&self, lane: usize, keys: &KeyNames) -> bool {
        match &self.ways {
            Ways::One(lanes) => {
                let living = lanes.iter().find_map(|lane| lane.known()?.give());
                match living {
                    // What is refused there is refused on another one, too.
                    Some(socket) => {
                        let mut write = redis::cmd("HDEL");
                        write.arg(keys.namespace_meta()).arg("never");
                        socket.takes(&write, self.probe.deadline).await
                    }
                    // A new connection can be made and written to.
                    None => is_there(&bb8::ManageConnection::connect(&self.probe).await),
                }
            }
            Ways::Nodes(nodes) => nodes.could_work(lane, keys).await,
        }
    }

    /// Why the server takes no connections, if it said so.
    pub(super) fn refusal(&self) -> Option<Error> {
        match &self.ways {
            Ways::One(lanes) => lanes.iter().find_map(Lane::refusal),
            Ways::Nodes(_) => None,
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

    /// Another one after shards have moved.
    #[cfg(any(test, feature = "fsck"))]
    pub(super) fn map(&self) -> u64 {
        match &self.ways {
            Ways::One(_) => 0,
            Ways::Nodes(nodes) => nodes.map(),
        }
    }

    /// Asks all connections that have been silent for a sign of life, if any is needed: how long to wait before the
    /// next time.
    pub(super) async fn beat(&self) -> Option<Duration> {
        let sockets: Vec<Socket> = match &self.ways {
            Ways::One(lanes) => lanes.iter().filter_map(Lane::known).collect(),
            Ways::Nodes(nodes) => nodes.sockets(),
        };
        join_all(sockets.into_iter().map(|socket| socket.beat(self.probe.deadline))).await;
        self.pause()
    }

    /// Between two rounds of signs of life, if any is needed.
    pub(super) fn pause(&self) -> Option<Duration> {
        self.probe.patience().map(life::pause)
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

/// Whether there is somebody to tell callers how it is: what is configured wrongly is no outage.
pub(super) fn is_there<T>(met: &Result<T, Error>) -> bool {
    met.as_ref().map_or_else(|error| error.kind() == ErrorKind::Config, |_| true)
}
