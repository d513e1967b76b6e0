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

mod connection_factory;
mod connection_lane;
mod liveness;
mod namespace_layout;

use std::{
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
    time::Duration,
};

pub(super) use self::connection_lane::ConnectionLane;
use self::{connection_factory::ConnectionFactory, liveness::Liveness};
use super::{
    KeyNames,
    call_fault::classify_outcome,
    node_lanes::{ClusterNode, NodeLanes},
    server_tracker::ServerTracker,
    target::{ConnectionTarget, RedisConnection},
};
use crate::{
    error::{Error, ErrorKind},
    key::SHARD_COUNT,
    store::key_names::COMMON_SHARD,
};
use futures_util::future::join_all;
use redis::Cmd;
use tokio::{
    runtime::Handle,
    time::{Instant, timeout},
};

/// Timeouts in a row after which a socket counts as dead: a half-open one would time out for ever.
const MAX_CONSECUTIVE_TIMEOUTS: u32 = 3;

/// One connection and its flags.
#[derive(Clone)]
pub(super) struct TrackedConnection {
    pub(super) connection: RedisConnection,
    /// Where it goes, if it is a node of a cluster.
    pub(super) node: Option<Arc<ClusterNode>>,
    /// Of the node, if it tells.
    pub(super) run_id: Option<Arc<str>>,
    dead: Arc<AtomicBool>,
    consecutive_timeouts: Arc<AtomicU32>,
    /// If its server may be replaced while it stands still.
    liveness: Option<Arc<Liveness>>,
    /// When whoever has this was given it: what he sends is sent later. As long as it has a life.
    checked_out_at: Instant,
    /// As [`ConnectionLanes::connection_resets`].
    connection_resets: Arc<AtomicU64>,
}

impl TrackedConnection {
    pub(super) fn is_dead(&self) -> bool {
        if self.liveness.as_ref().is_some_and(|life| life.is_expired(Instant::now())) {
            self.abandon();
        }
        self.dead.load(Ordering::Acquire)
    }

    /// For somebody who sends something now; `None` if it must not be used.
    pub(super) fn checkout(&self) -> Option<Self> {
        let Some(life) = &self.liveness else { return (!self.is_dead()).then(|| self.clone()) };
        let given = Instant::now();
        if life.is_expired(given) {
            self.abandon();
        }
        (!self.dead.load(Ordering::Acquire)).then(|| Self { checked_out_at: given, ..self.clone() })
    }

    /// It was left, and its server may be one that was replaced: what it says now is not to be believed.
    pub(super) fn is_untrusted(&self) -> bool {
        self.liveness.is_some() && self.dead.load(Ordering::Acquire)
    }

    pub(super) fn mark_dead(&self) {
        self.dead.store(true, Ordering::Release);
    }

    /// A call on it was not answered. It may be delivered yet, by whatever stands between here and there; and is sent again.
    pub(super) fn mark_broken(&self) {
        self.mark_dead();
        self.connection_resets.fetch_add(1, Ordering::AcqRel);
    }

    /// It takes the place of one that has ended.
    fn record_replacement(&self) {
        self.connection_resets.fetch_add(1, Ordering::AcqRel);
    }

    /// What was sent on it is answered, whatever the answer.
    pub(super) fn record_answer(&self) {
        if self.liveness.as_ref().is_some_and(|life| !life.record_answer(self.checked_out_at)) {
            self.abandon();
        }
        if self.consecutive_timeouts.load(Ordering::Relaxed) != 0 {
            self.consecutive_timeouts.store(0, Ordering::Relaxed);
        }
    }

    pub(super) fn record_timeout(&self) {
        let timeouts = self.consecutive_timeouts.fetch_add(1, Ordering::Relaxed) + 1;
        // Calls may lie there, and be run when it wakes.
        if timeouts >= MAX_CONSECUTIVE_TIMEOUTS || self.liveness.is_some() {
            self.abandon();
        }
    }

    fn abandon(&self) {
        if self.dead.swap(true, Ordering::AcqRel) {
            return;
        }
        self.connection_resets.fetch_add(1, Ordering::AcqRel);
        if let Some(place) = &self.node {
            place.report_timeout();
        }
    }

    /// Whether it is answered as a call would be that writes this.
    pub(super) async fn accepts_write(mut self, write: &Cmd, within: Duration) -> bool {
        let answer = timeout(within, write.query_async::<u64>(&mut self.connection)).await;
        let Ok(answer) = answer else {
            // The next look is for another one: this may be broken where the server is well.
            self.abandon();
            return false;
        };
        classify_outcome(&self, answer).is_ok()
    }

    /// Asks for a sign of life, if there was none for a while and one is needed.
    async fn ping_if_idle(self, within: Duration) {
        let Some(mut own) = self.checkout() else { return };
        let Some(life) = own.liveness.clone().filter(|life| life.needs_ping(own.checked_out_at))
        else {
            return;
        };
        let within = within.min(life.max_silence);
        let ping = redis::cmd("PING");
        match timeout(within, own.connection.send_packed_command(&ping)).await {
            Ok(Ok(_)) => own.record_answer(),
            // Whatever is wrong, the next one is made to whoever is the master then.
            Ok(Err(_)) => own.mark_dead(),
            Err(_) => own.record_timeout(),
        }
    }
}

pub(super) struct ConnectionLanes {
    routing: LaneRouting,
    server_tracker: Arc<ServerTracker>,
    /// Makes connections that are no lane's.
    probe: ConnectionFactory,
}

enum LaneRouting {
    /// To one server.
    SingleServer(Vec<ConnectionLane>),
    ClusterNodes(NodeLanes),
}

impl ConnectionLanes {
    pub(super) fn new(
        target: &ConnectionTarget,
        keys: &KeyNames,
        number: usize,
        deadline: Duration,
    ) -> Self {
        let incarnation = match target {
            ConnectionTarget::Cluster(cluster) => Arc::clone(cluster.server_tracker()),
            _ => Arc::default(),
        };
        let probe = ConnectionFactory {
            target: target.clone(),
            keys: keys.clone(),
            deadline,
            failures: Arc::default(),
            server_tracker: None,
            node: None,
            connection_resets: Arc::default(),
            attempt_started_at: Arc::default(),
            home_runtime: Handle::try_current().ok(),
        };
        let manager = || probe.for_target(target.clone(), &incarnation, None);
        let ways = match target {
            ConnectionTarget::Cluster(cluster) => {
                let (own, incarnation) = (cluster.clone(), Arc::clone(&incarnation));
                let base = probe.for_target(target.clone(), &incarnation, None);
                let lane = move |place: &Arc<ClusterNode>| {
                    let node = own.server_at(&place.address)?;
                    let target = ConnectionTarget::Single(node);
                    Ok(ConnectionLane::new(base.for_target(
                        target,
                        &incarnation,
                        Some(Arc::clone(place)),
                    )))
                };
                let (cluster, keys) = (cluster.clone(), keys.clone());
                LaneRouting::ClusterNodes(NodeLanes::new(
                    cluster,
                    keys,
                    number,
                    deadline,
                    Box::new(lane),
                ))
            }
            _ => LaneRouting::SingleServer(
                (0..number).map(|_| ConnectionLane::new(manager())).collect(),
            ),
        };
        Self { routing: ways, server_tracker: incarnation, probe }
    }

    pub(super) fn on_server_change(&self, tell: Weak<dyn Fn() + Send + Sync>) {
        self.server_tracker.on_change(tell);
    }

    /// How many of their connections were left because they were silent, and how many calls met one that broke. What had
    /// been sent on them may arrive yet, behind what is sent on others now.
    pub(super) fn connection_resets(&self) -> u64 {
        self.probe.connection_resets.load(Ordering::Acquire)
    }

    /// Which server the lanes lead to.
    pub(super) fn server_tracker(&self) -> &ServerTracker {
        &self.server_tracker
    }

    /// Whether calls of this lane would be answered. It tells nobody of a new server: calls are still refused.
    pub(super) async fn is_lane_healthy(&self, lane: usize, keys: &KeyNames) -> bool {
        match &self.routing {
            LaneRouting::SingleServer(lanes) => {
                let living = lanes.iter().find_map(|lane| lane.current_connection()?.checkout());
                match living {
                    // What is refused there is refused on another one, too.
                    Some(socket) => {
                        let mut write = redis::cmd("HDEL");
                        write.arg(keys.namespace_meta()).arg("never");
                        socket.accepts_write(&write, self.probe.deadline).await
                    }
                    // A new connection can be made and written to.
                    None => server_responded(&bb8::ManageConnection::connect(&self.probe).await),
                }
            }
            LaneRouting::ClusterNodes(nodes) => nodes.is_lane_healthy(lane, keys).await,
        }
    }

    /// Why the server takes no connections, if it said so.
    pub(super) fn last_refusal(&self) -> Option<Error> {
        match &self.routing {
            LaneRouting::SingleServer(lanes) => lanes.iter().find_map(ConnectionLane::last_refusal),
            LaneRouting::ClusterNodes(_) => None,
        }
    }

    /// How many there are.
    pub(super) fn lane_count(&self) -> usize {
        match &self.routing {
            LaneRouting::SingleServer(lanes) => lanes.len(),
            LaneRouting::ClusterNodes(_) => usize::from(SHARD_COUNT),
        }
    }

    /// The lane of calls about this shard. In a cluster each has its own: a call is about one.
    pub(super) fn lane_of_shard(&self, shard: u16) -> usize {
        usize::from(shard) % self.lane_count()
    }

    /// A shard of each server that has any, and those that nobody is known to have.
    pub(super) fn representative_shards(&self) -> Vec<u16> {
        match &self.routing {
            LaneRouting::SingleServer(_) => vec![COMMON_SHARD],
            LaneRouting::ClusterNodes(nodes) => nodes.representative_shards(),
        }
    }

    /// Another one after shards have moved.
    #[cfg(any(test, feature = "fsck"))]
    pub(super) fn map_version(&self) -> u64 {
        match &self.routing {
            LaneRouting::SingleServer(_) => 0,
            LaneRouting::ClusterNodes(nodes) => nodes.map_version(),
        }
    }

    /// Asks all connections that have been silent for a sign of life, if any is needed: how long to wait before the
    /// next time.
    pub(super) async fn ping_idle_connections(&self) -> Option<Duration> {
        let sockets: Vec<TrackedConnection> = match &self.routing {
            LaneRouting::SingleServer(lanes) => {
                lanes.iter().filter_map(ConnectionLane::current_connection).collect()
            }
            LaneRouting::ClusterNodes(nodes) => nodes.connections(),
        };
        join_all(sockets.into_iter().map(|socket| socket.ping_if_idle(self.probe.deadline))).await;
        self.ping_interval()
    }

    /// Between two rounds of signs of life, if any is needed.
    pub(super) fn ping_interval(&self) -> Option<Duration> {
        self.probe.max_silence().map(liveness::ping_interval)
    }

    /// A lane's connection. While it lives, this asks nobody and does not wait.
    #[expect(clippy::indexing_slicing, reason = "who asks has the lane from `of`")]
    pub(super) async fn connection(&self, lane: usize) -> Result<TrackedConnection, Error> {
        match &self.routing {
            LaneRouting::SingleServer(lanes) => lanes[lane].connection().await,
            LaneRouting::ClusterNodes(nodes) => nodes.connection(lane).await,
        }
    }
}

/// Whether there is somebody to tell callers how it is: what is configured wrongly is no outage.
pub(super) fn server_responded<T>(met: &Result<T, Error>) -> bool {
    met.as_ref().map_or_else(|error| error.kind() == ErrorKind::Config, |_| true)
}
