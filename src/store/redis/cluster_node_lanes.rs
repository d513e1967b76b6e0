//! Lanes to the nodes of a cluster, and the connection of each shard.
//!
//! Each shard has a lane. Its connection is one of those to the cluster node that owns the shard,
//! and is shared with other shards. When the shard moves, its lane moves too.

use std::{collections::HashMap, io, sync::Arc, time::Duration};

use parking_lot::Mutex;
use redis::{ErrorKind as RedisErrorKind, RedisError, ServerErrorKind};
use tokio::time::{Instant, sleep, timeout};

use super::{
    batcher::RETRY_PAUSE,
    call_fault::{CallFault, classify_reply},
    connection_lanes::{ConnectionLane, TrackedConnection, server_responded},
    fence_recovery,
    script_sources::ADVANCE_FENCES_AFTER_FAILOVER,
    target::{ClusterTarget, ConnectError, Endpoint},
};
use crate::error::{Error, ErrorKind};
use crate::store::key_names::KeyNames;

/// Cluster node at one address.
pub(super) struct ClusterNode {
    pub(super) address: Endpoint,
    pub(super) cluster: ClusterTarget,
}

impl ClusterNode {
    pub(super) fn name(&self) -> String {
        let (host, port) = &self.address;
        format!("{host}:{port}")
    }

    /// Reports a call that was not answered in time. The cluster node may have a successor, or get
    /// one.
    pub(super) fn report_timeout(&self) {
        self.cluster.request_refresh();
    }

    /// Refreshes the shard map and returns true if this cluster node still owns shards.
    ///
    /// To be called after it has answered: a node that was suspended until it was replaced answers,
    /// and accepts writes until it learns of its successor.
    pub(super) async fn owns_shards(&self) -> bool {
        self.cluster.refresh_now().await;
        self.cluster.owner_endpoints().contains(&self.address)
    }

    /// Handles a refused call: the shard has another owner, is migrating, or has none.
    pub(super) fn handle_redirect(&self, error: &RedisError) {
        match (error.kind(), error.redirect_node()) {
            (RedisErrorKind::Server(ServerErrorKind::Moved), Some((endpoint, slot))) => {
                self.cluster.record_slot_move(slot, endpoint, Some(&self.address));
            }
            (RedisErrorKind::Server(ServerErrorKind::ClusterDown | ServerErrorKind::Moved), _) => {
                self.cluster.request_refresh();
            }
            // The slot is migrating; nothing can be done until it has arrived.
            _ => {}
        }
    }
}

type LaneFactory =
    Box<dyn Fn(&Arc<ClusterNode>) -> Result<ConnectionLane, ConnectError> + Send + Sync>;

pub(super) struct ClusterNodeLanes {
    cluster: ClusterTarget,
    keys: KeyNames,
    lanes_per_node: usize,
    make_lane: LaneFactory,
    deadline: Duration,
    lanes: Mutex<HashMap<Endpoint, Arc<[ConnectionLane]>>>,
    /// Last connection of each shard.
    shard_connections: Vec<Mutex<Option<ShardConnection>>>,
}

/// Connection to the owner of a shard.
struct ShardConnection {
    connection: TrackedConnection,
    /// Version of the shard map that names this owner.
    map_version: u64,
}

impl ClusterNodeLanes {
    pub(super) fn new(
        cluster: ClusterTarget,
        keys: KeyNames,
        lanes_per_node: usize,
        deadline: Duration,
        make_lane: LaneFactory,
    ) -> Self {
        let shard_connections = (0..crate::key::SHARD_COUNT).map(|_| Mutex::default()).collect();
        Self {
            cluster,
            keys,
            lanes_per_node,
            make_lane,
            deadline,
            lanes: Mutex::default(),
            shard_connections,
        }
    }

    pub(super) fn representative_shards(&self) -> Vec<u16> {
        self.cluster.representative_shards()
    }

    /// Returns the version of the shard map, which changes when shards move.
    #[cfg(any(test, feature = "fsck"))]
    pub(super) fn map_version(&self) -> u64 {
        self.cluster.map_version()
    }

    /// Returns the connection of a shard. As long as it is alive and the shard stays, this neither
    /// waits nor asks a server.
    #[expect(clippy::indexing_slicing, reason = "a shard is below the length")]
    pub(super) async fn connection(&self, shard: usize) -> Result<TrackedConnection, Error> {
        let version = self.cluster.map_version();
        if let Some(last) = &*self.shard_connections[shard].lock()
            && last.map_version == version
            && let Some(connection) = last.connection.checkout()
        {
            return Ok(connection);
        }
        let deadline = Instant::now() + self.deadline;
        loop {
            let map_version = self.cluster.map_version();
            let mut connection = self.connect_shard(shard).await?;
            match self.advance_fences(&mut connection, shard).await {
                Ok(()) => {
                    *self.shard_connections[shard].lock() =
                        Some(ShardConnection { connection: connection.clone(), map_version });
                    return Ok(connection);
                }
                // A node that does not run this command runs no other call about the shard either.
                Err((CallFault::NotExecuted | CallFault::ConnectionLost, _))
                    if Instant::now() < deadline =>
                {
                    sleep(RETRY_PAUSE).await;
                }
                // The caller's command was not sent.
                Err((_, error)) => {
                    return Err(Error::new(
                        ErrorKind::Unavailable,
                        ADVANCE_FENCES_AFTER_FAILOVER.name,
                    )
                    .with_source(error));
                }
            }
        }
    }

    /// Ensures that the cluster node grants no fence below those of its predecessor, after the
    /// shard map has changed.
    async fn advance_fences(
        &self,
        connection: &mut TrackedConnection,
        shard: usize,
    ) -> Result<(), (CallFault, RedisError)> {
        let Some(run_id) = connection.run_id.clone() else { return Ok(()) };
        let shard = u16::try_from(shard).unwrap_or(u16::MAX);
        let command = fence_recovery::shard_command(&self.keys, shard, &run_id);
        let reply =
            timeout(self.deadline * 3 / 4, connection.connection.send_packed_command(&command))
                .await;
        let timed_out = || Err(io::Error::from(io::ErrorKind::TimedOut).into());
        classify_reply(connection, reply.unwrap_or_else(|_| timed_out())).map(drop)
    }

    /// Returns a connection to the owner of the shard.
    #[expect(
        clippy::indexing_slicing,
        reason = "a remainder is below the length, and the list is not empty"
    )]
    async fn connect_shard(&self, shard: usize) -> Result<TrackedConnection, Error> {
        let number = u16::try_from(shard).unwrap_or(u16::MAX);
        let owner = self.cluster.owner(number).await.map_err(ConnectError::into_error)?;
        let lanes = self.lanes_to(owner).map_err(ConnectError::into_error)?;
        lanes[shard % lanes.len()].connection().await.inspect_err(|error| {
            // Another server may have taken over the address and refuse the login. That must not
            // cause a stream of refreshes.
            if error.kind() == ErrorKind::Config {
                self.cluster.request_refresh_throttled();
            } else {
                self.cluster.request_refresh();
            }
        })
    }

    /// Returns the connections to cluster nodes that own shards.
    pub(super) fn connections(&self) -> Vec<TrackedConnection> {
        let owners = self.cluster.owner_endpoints();
        let lanes = self.lanes.lock();
        let used_lanes = owners.iter().filter_map(|owner| lanes.get(owner));
        used_lanes
            .flat_map(|lanes| lanes.iter().filter_map(ConnectionLane::current_connection))
            .collect()
    }

    fn lanes_to(&self, owner: Endpoint) -> Result<Arc<[ConnectionLane]>, ConnectError> {
        let mut node_lanes = self.lanes.lock();
        if let Some(lanes) = node_lanes.get(&owner) {
            return Ok(Arc::clone(lanes));
        }
        let node = Arc::new(ClusterNode { address: owner.clone(), cluster: self.cluster.clone() });
        let lanes: Result<Arc<[_]>, _> =
            (0..self.lanes_per_node).map(|_| (self.make_lane)(&node)).collect();
        let lanes = lanes?;
        // Lanes to nodes without shards close when their last user drops them.
        let owners = self.cluster.owner_endpoints();
        node_lanes.retain(|address, _| owners.contains(address));
        node_lanes.insert(owner, Arc::clone(&lanes));
        Ok(lanes)
    }

    /// Returns true if a call about this shard would be executed, or would fail because of the
    /// configuration. A node that has just been assigned the shard, or is migrating it, executes
    /// none.
    pub(super) async fn is_lane_healthy(&self, shard: usize, keys: &KeyNames) -> bool {
        let connection = match self.connection(shard).await {
            Ok(connection) => connection,
            outcome => return server_responded(&outcome),
        };
        let shard = u16::try_from(shard).unwrap_or(u16::MAX);
        let Some(guard_key) = keys.slot_guard_key(shard) else { return false };
        let mut write = redis::cmd("DEL");
        write.arg(guard_key.concat());
        connection.accepts_write(&write, self.deadline).await
    }
}
