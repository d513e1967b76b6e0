//! Connection lanes: few sockets, many concurrent requests on each.
//!
//! A lane is a `bb8` pool of one multiplexed connection. Calls clone its handle, so they are
//! pipelined; the pool is used again only when that connection is dead. All calls about one shard
//! use one lane, which orders an undo after its call. In a cluster, each cluster node has lanes of
//! its own, and a shard uses a lane of its owner ([`node_lanes`](super::node_lanes)).
//!
//! Validity is a flag that is read, never a `PING`. It is cleared by:
//!
//! - the disconnect push;
//! - `MAX_CONSECUTIVE_TIMEOUTS` timeouts in a row;
//! - answers of a server that is no master.
//!
//! Behind sentinels and in a cluster, a server may be replaced while it is paused, and resume as if
//! nothing had happened. There a connection is abandoned at the first timeout and after a silence
//! ([`liveness`]), and its later answers are rejected.

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
    call_fault::classify_outcome,
    node_lanes::{ClusterNode, NodeLanes},
    server_tracker::ServerTracker,
    target::{ConnectionTarget, RedisConnection},
};
use crate::store::key_names::KeyNames;
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

/// Consecutive timeouts after which a socket counts as dead: a half-open one would time out for
/// ever.
const MAX_CONSECUTIVE_TIMEOUTS: u32 = 3;

/// Connection with its flags.
#[derive(Clone)]
pub(super) struct TrackedConnection {
    pub(super) connection: RedisConnection,
    /// Cluster node at the other end, if any.
    pub(super) node: Option<Arc<ClusterNode>>,
    /// Run id of the cluster node, if it reports one.
    pub(super) run_id: Option<Arc<str>>,
    dead: Arc<AtomicBool>,
    consecutive_timeouts: Arc<AtomicU32>,
    /// Present if the server may be replaced while it is paused.
    liveness: Option<Arc<Liveness>>,
    /// Time of the checkout; calls are sent after it. Current only if there is a `liveness`.
    checked_out_at: Instant,
    /// Counter of [`ConnectionLanes::connection_resets`].
    connection_resets: Arc<AtomicU64>,
}

impl TrackedConnection {
    pub(super) fn is_dead(&self) -> bool {
        if self.liveness.as_ref().is_some_and(|life| life.is_expired(Instant::now())) {
            self.abandon();
        }
        self.dead.load(Ordering::Acquire)
    }

    /// Returns a clone to send a call on now; `None` if the connection must not be used.
    pub(super) fn checkout(&self) -> Option<Self> {
        let Some(life) = &self.liveness else { return (!self.is_dead()).then(|| self.clone()) };
        let given = Instant::now();
        if life.is_expired(given) {
            self.abandon();
        }
        (!self.dead.load(Ordering::Acquire)).then(|| Self { checked_out_at: given, ..self.clone() })
    }

    /// Returns true if the connection was abandoned and its server may have been replaced: its
    /// answers must be rejected.
    pub(super) fn is_untrusted(&self) -> bool {
        self.liveness.is_some() && self.dead.load(Ordering::Acquire)
    }

    pub(super) fn mark_dead(&self) {
        self.dead.store(true, Ordering::Release);
    }

    /// Marks the connection as dead after a call without an answer. The call is sent again, but its
    /// first copy may still be delivered by the network.
    pub(super) fn mark_broken(&self) {
        self.mark_dead();
        self.connection_resets.fetch_add(1, Ordering::AcqRel);
    }

    /// Counts a reset, because this connection replaces one that has ended.
    fn record_replacement(&self) {
        self.connection_resets.fetch_add(1, Ordering::AcqRel);
    }

    /// Records an answer of any kind to a call on this connection.
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
        // With a liveness, one timeout is enough: calls may lie in the socket and run when the
        // server resumes.
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

    /// Returns true if the write succeeds as a call would.
    pub(super) async fn accepts_write(mut self, write: &Cmd, within: Duration) -> bool {
        let answer = timeout(within, write.query_async::<u64>(&mut self.connection)).await;
        let Ok(answer) = answer else {
            // The next check uses another connection: this one may be broken although the server is
            // well.
            self.abandon();
            return false;
        };
        classify_outcome(&self, answer).is_ok()
    }

    /// Sends a `PING` if the connection has been silent and needs a sign of life.
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
            // After any error, the next connection goes to the master of that time.
            Ok(Err(_)) => own.mark_dead(),
            Err(_) => own.record_timeout(),
        }
    }
}

pub(super) struct ConnectionLanes {
    routing: LaneRouting,
    server_tracker: Arc<ServerTracker>,
    /// Makes connections outside of the lanes.
    probe: ConnectionFactory,
}

enum LaneRouting {
    /// Lanes to one server.
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

    /// Returns the number of connections abandoned after a silence, plus the number of calls on
    /// connections that broke. Calls sent on them may still arrive, after calls that are sent on
    /// others now.
    pub(super) fn connection_resets(&self) -> u64 {
        self.probe.connection_resets.load(Ordering::Acquire)
    }

    /// Returns the tracker of the servers that the lanes lead to.
    pub(super) fn server_tracker(&self) -> &ServerTracker {
        &self.server_tracker
    }

    /// Returns true if calls on this lane would be answered. Does not report a new server, because
    /// calls are still refused.
    pub(super) async fn is_lane_healthy(&self, lane: usize, keys: &KeyNames) -> bool {
        match &self.routing {
            LaneRouting::SingleServer(lanes) => {
                let living = lanes.iter().find_map(|lane| lane.current_connection()?.checkout());
                match living {
                    // A write refused on this connection would be refused on another one too.
                    Some(socket) => {
                        let mut write = redis::cmd("HDEL");
                        write.arg(keys.namespace_meta()).arg("never");
                        socket.accepts_write(&write, self.probe.deadline).await
                    }
                    // Without a live connection, a new one must be accepted and pass its checks,
                    // which include a write.
                    None => server_responded(&bb8::ManageConnection::connect(&self.probe).await),
                }
            }
            LaneRouting::ClusterNodes(nodes) => nodes.is_lane_healthy(lane, keys).await,
        }
    }

    /// Returns the reason with which the server refuses connections, if it gave one.
    pub(super) fn last_refusal(&self) -> Option<Error> {
        match &self.routing {
            LaneRouting::SingleServer(lanes) => lanes.iter().find_map(ConnectionLane::last_refusal),
            LaneRouting::ClusterNodes(_) => None,
        }
    }

    pub(super) fn lane_count(&self) -> usize {
        match &self.routing {
            LaneRouting::SingleServer(lanes) => lanes.len(),
            LaneRouting::ClusterNodes(_) => usize::from(SHARD_COUNT),
        }
    }

    /// Returns the lane of a shard. In a cluster, each shard has a lane of its own, since a call is
    /// about one shard.
    pub(super) fn lane_of_shard(&self, shard: u16) -> usize {
        usize::from(shard) % self.lane_count()
    }

    /// Returns one shard of each server that owns any, and the shards without a known owner.
    pub(super) fn representative_shards(&self) -> Vec<u16> {
        match &self.routing {
            LaneRouting::SingleServer(_) => vec![COMMON_SHARD],
            LaneRouting::ClusterNodes(nodes) => nodes.representative_shards(),
        }
    }

    /// Returns a number that changes when shards have moved.
    #[cfg(any(test, feature = "fsck"))]
    pub(super) fn map_version(&self) -> u64 {
        match &self.routing {
            LaneRouting::SingleServer(_) => 0,
            LaneRouting::ClusterNodes(nodes) => nodes.map_version(),
        }
    }

    /// Pings all connections that have been silent, if the target needs it. Returns the pause until
    /// the next round.
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

    /// Returns the pause between two rounds of pings, if the target needs them.
    pub(super) fn ping_interval(&self) -> Option<Duration> {
        self.probe.max_silence().map(liveness::ping_interval)
    }

    /// Returns the connection of a lane, without a call or a wait while it is alive.
    #[expect(clippy::indexing_slicing, reason = "callers have the lane from `lane_of_shard`")]
    pub(super) async fn connection(&self, lane: usize) -> Result<TrackedConnection, Error> {
        match &self.routing {
            LaneRouting::SingleServer(lanes) => lanes[lane].connection().await,
            LaneRouting::ClusterNodes(nodes) => nodes.connection(lane).await,
        }
    }
}

/// Returns true if a server answered: a configuration error is no outage.
pub(super) fn server_responded<T>(met: &Result<T, Error>) -> bool {
    met.as_ref().map_or_else(|error| error.kind() == ErrorKind::Config, |_| true)
}
