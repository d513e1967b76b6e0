//! Connection lanes: few sockets, many concurrent requests on each.
//!
//! A lane is a `bb8` pool of one multiplexed connection. Calls clone its handle, so they are
//! pipelined; the pool is used again only when that connection is dead. All calls about one shard
//! use one lane, which orders an undo after its call. In a cluster, each cluster node has lanes of
//! its own, and a shard uses a lane of its owner
//! ([`cluster_node_lanes`](super::cluster_node_lanes)).
//!
//! Validity is a flag that is read, never a `PING`. It is cleared by:
//!
//! - the disconnect push;
//! - `MAX_CONSECUTIVE_TIMEOUTS` timeouts in a row;
//! - answers of a server that is no master.
//!
//! Behind sentinels and in a cluster, a server may be replaced while it is paused, and resume as if
//! nothing had happened. There a connection is abandoned at the first timeout and after a silence
//! ([`connection_silence_guard`]), and its later answers are rejected.

mod connect_failures;
mod connection_factory;
mod connection_lane;
mod connection_silence_guard;
mod namespace_layout;
mod tracked_connection;

use std::{
    sync::{Arc, Weak, atomic::Ordering},
    time::Duration,
};

use self::connection_factory::ConnectionFactory;
pub(super) use self::{connection_lane::ConnectionLane, tracked_connection::TrackedConnection};
use super::{
    cluster_node_lanes::{ClusterNode, ClusterNodeLanes},
    server_tracker::ServerTracker,
    target::ConnectionTarget,
};
use crate::{
    error::{Error, ErrorKind},
    key::SHARD_COUNT,
    store::key_names::{COMMON_SHARD, KeyNames},
};
use futures_util::future::join_all;
use tokio::runtime::Handle;

/// Lanes of a store, to one server or to the nodes of a cluster.
pub(super) struct ConnectionLanes {
    routing: LaneRouting,
    server_tracker: Arc<ServerTracker>,
    /// Makes connections outside of the lanes.
    probe: ConnectionFactory,
}

enum LaneRouting {
    /// Lanes to one server.
    SingleServer(Vec<ConnectionLane>),
    ClusterNodes(ClusterNodeLanes),
}

impl ConnectionLanes {
    pub(super) fn new(
        target: &ConnectionTarget,
        keys: &KeyNames,
        lane_count: usize,
        deadline: Duration,
        writes_on_connect: bool,
    ) -> Self {
        let server_tracker = match target {
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
            writes_on_connect,
            connection_resets: Arc::default(),
            attempt_started_at: Arc::default(),
            home_runtime: Handle::try_current().ok(),
        };
        let factory = || probe.for_target(target.clone(), &server_tracker, None);
        let routing = match target {
            ConnectionTarget::Cluster(cluster) => {
                let base = factory();
                let (target, server_tracker) = (cluster.clone(), Arc::clone(&server_tracker));
                let open_lane = move |node: &Arc<ClusterNode>| {
                    let server = ConnectionTarget::Single(target.server_at(&node.address)?);
                    let node = Some(Arc::clone(node));
                    Ok(ConnectionLane::new(base.for_target(server, &server_tracker, node)))
                };
                LaneRouting::ClusterNodes(ClusterNodeLanes::new(
                    cluster.clone(),
                    keys.clone(),
                    lane_count,
                    deadline,
                    Box::new(open_lane),
                ))
            }
            _ => LaneRouting::SingleServer(
                (0..lane_count).map(|_| ConnectionLane::new(factory())).collect(),
            ),
        };
        Self { routing, server_tracker, probe }
    }

    pub(super) fn on_server_change(&self, listener: Weak<dyn Fn() + Send + Sync>) {
        self.server_tracker.on_change(listener);
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
                let connection =
                    lanes.iter().find_map(|lane| lane.current_connection()?.checkout());
                match connection {
                    // A write refused on this connection would be refused on another one too.
                    Some(connection) => {
                        let mut write = redis::cmd("HDEL");
                        write.arg(keys.namespace_meta()).arg("never");
                        connection.accepts_write(&write, self.probe.deadline).await
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
        let connections: Vec<TrackedConnection> = match &self.routing {
            LaneRouting::SingleServer(lanes) => {
                lanes.iter().filter_map(ConnectionLane::current_connection).collect()
            }
            LaneRouting::ClusterNodes(nodes) => nodes.connections(),
        };
        let pings = connections.into_iter().map(|c| c.ping_if_idle(self.probe.deadline));
        join_all(pings).await;
        self.ping_interval()
    }

    /// Returns the pause between two rounds of pings, if the target needs them.
    pub(super) fn ping_interval(&self) -> Option<Duration> {
        self.probe.max_silence().map(connection_silence_guard::ping_interval)
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
pub(super) fn server_responded<T>(outcome: &Result<T, Error>) -> bool {
    outcome.as_ref().map_or_else(|error| error.kind() == ErrorKind::Config, |_| true)
}
