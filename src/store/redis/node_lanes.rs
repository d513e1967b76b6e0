//! Lanes to each node of a cluster.
//!
//! A shard has a lane of its own in all respects but one: its socket is one of those to the node that has it, which
//! it shares with other shards. When the shard moves, so does its lane.

use std::{collections::HashMap, io, sync::Arc, time::Duration};

use parking_lot::Mutex;
use redis::{ErrorKind as RedisErrorKind, RedisError, ServerErrorKind};
use tokio::time::{Instant, sleep, timeout};

use super::{
    KeyNames,
    batcher::RETRY_PAUSE,
    call_fault::{CallFault, classify_reply},
    connection_lanes::{ConnectionLane, TrackedConnection, server_responded},
    fence_recovery,
    scripts::ADVANCE_FENCES_AFTER_FAILOVER,
    target::{ClusterTarget, ConnectError, Endpoint},
};
use crate::error::{Error, ErrorKind};

/// One node of a cluster.
pub(super) struct ClusterNode {
    pub(super) address: Endpoint,
    pub(super) cluster: ClusterTarget,
}

impl ClusterNode {
    pub(super) fn name(&self) -> String {
        let (host, port) = &self.address;
        format!("{host}:{port}")
    }

    /// It has not answered in time. It may have a successor, or get one.
    pub(super) fn report_timeout(&self) {
        self.cluster.request_refresh();
    }

    /// Whether the cluster still finds that it has shards, now that it has answered. One that stood still until it
    /// had a successor answers, and takes writes until it hears of that.
    pub(super) async fn owns_shards(&self) -> bool {
        self.cluster.refresh_now().await;
        self.cluster.owner_endpoints().contains(&self.address)
    }

    /// It would not run a call: the shard is elsewhere, on its way, or nobody's.
    pub(super) fn handle_redirect(&self, error: &RedisError) {
        match (error.kind(), error.redirect_node()) {
            (RedisErrorKind::Server(ServerErrorKind::Moved), Some((to, slot))) => {
                self.cluster.record_slot_move(slot, to, Some(&self.address));
            }
            (RedisErrorKind::Server(ServerErrorKind::ClusterDown | ServerErrorKind::Moved), _) => {
                self.cluster.request_refresh();
            }
            // Until it has arrived, nobody can do anything about it.
            _ => {}
        }
    }
}

type LaneFactory =
    Box<dyn Fn(&Arc<ClusterNode>) -> Result<ConnectionLane, ConnectError> + Send + Sync>;

pub(super) struct NodeLanes {
    cluster: ClusterTarget,
    keys: KeyNames,
    /// Sockets to each of them.
    lanes_per_node: usize,
    make_lane: LaneFactory,
    deadline: Duration,
    lanes: Mutex<HashMap<Endpoint, Arc<[ConnectionLane]>>>,
    /// The socket of each shard, and which map that was by.
    shard_connections: Vec<Mutex<Option<(u64, TrackedConnection)>>>,
}

impl NodeLanes {
    pub(super) fn new(
        cluster: ClusterTarget,
        keys: KeyNames,
        number: usize,
        within: Duration,
        make: LaneFactory,
    ) -> Self {
        let known = (0..crate::key::SHARD_COUNT).map(|_| Mutex::default()).collect();
        Self {
            cluster,
            keys,
            lanes_per_node: number,
            make_lane: make,
            deadline: within,
            lanes: Mutex::default(),
            shard_connections: known,
        }
    }

    pub(super) fn representative_shards(&self) -> Vec<u16> {
        self.cluster.representative_shards()
    }

    /// Another one after shards have moved.
    #[cfg(any(test, feature = "fsck"))]
    pub(super) fn map_version(&self) -> u64 {
        self.cluster.map_version()
    }

    /// A shard's connection. While it lives and the shard stays, this asks nobody and does not wait.
    #[expect(clippy::indexing_slicing, reason = "a shard is below their number")]
    pub(super) async fn connection(&self, shard: usize) -> Result<TrackedConnection, Error> {
        let version = self.cluster.map_version();
        if let Some((seen, socket)) = &*self.shard_connections[shard].lock()
            && *seen == version
            && let Some(socket) = socket.checkout()
        {
            return Ok(socket);
        }
        let until = Instant::now() + self.deadline;
        loop {
            let version = self.cluster.map_version();
            let mut socket = self.connect_shard(shard).await?;
            match self.advance_fences(&mut socket, shard).await {
                Ok(()) => {
                    *self.shard_connections[shard].lock() = Some((version, socket.clone()));
                    return Ok(socket);
                }
                // What would not run this would run nothing else about the shard.
                Err((CallFault::NotExecuted | CallFault::ConnectionLost, _))
                    if Instant::now() < until =>
                {
                    sleep(RETRY_PAUSE).await;
                }
                // No call was sent.
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

    /// Sees that the node gives no fence below those of the one before, since the map has changed.
    async fn advance_fences(
        &self,
        socket: &mut TrackedConnection,
        shard: usize,
    ) -> Result<(), (CallFault, RedisError)> {
        let Some(run_id) = socket.run_id.clone() else { return Ok(()) };
        let shard = u16::try_from(shard).unwrap_or(u16::MAX);
        let command = fence_recovery::shard_command(&self.keys, shard, &run_id);
        let answer =
            timeout(self.deadline * 3 / 4, socket.connection.send_packed_command(&command)).await;
        let late = || Err(io::Error::from(io::ErrorKind::TimedOut).into());
        classify_reply(socket, answer.unwrap_or_else(|_| late())).map(drop)
    }

    /// A connection to the node that has the shard.
    #[expect(
        clippy::indexing_slicing,
        reason = "a remainder below their number, of which there is one"
    )]
    async fn connect_shard(&self, shard: usize) -> Result<TrackedConnection, Error> {
        let number = u16::try_from(shard).unwrap_or(u16::MAX);
        let owner = self.cluster.owner(number).await.map_err(ConnectError::into_error)?;
        let lanes = self.lanes_to(owner).map_err(ConnectError::into_error)?;
        lanes[shard % lanes.len()].connection().await.inspect_err(|error| {
            // Who refuses the login may be another one at that address: that is no reason to be refused all the time.
            if error.kind() == ErrorKind::Config {
                self.cluster.request_refresh_throttled();
            } else {
                self.cluster.request_refresh();
            }
        })
    }

    /// Those to nodes that have shards.
    pub(super) fn connections(&self) -> Vec<TrackedConnection> {
        let owners = self.cluster.owner_endpoints();
        let lanes = self.lanes.lock();
        let used = owners.iter().filter_map(|owner| lanes.get(owner));
        used.flat_map(|lanes| lanes.iter().filter_map(ConnectionLane::current_connection)).collect()
    }

    fn lanes_to(&self, owner: Endpoint) -> Result<Arc<[ConnectionLane]>, ConnectError> {
        let mut all = self.lanes.lock();
        if let Some(lanes) = all.get(&owner) {
            return Ok(Arc::clone(lanes));
        }
        let place = Arc::new(ClusterNode { address: owner.clone(), cluster: self.cluster.clone() });
        let lanes: Result<Arc<[_]>, _> =
            (0..self.lanes_per_node).map(|_| (self.make_lane)(&place)).collect();
        let lanes = lanes?;
        // Those that have no shards any more are left to close when nobody uses them.
        let owners = self.cluster.owner_endpoints();
        all.retain(|address, _| owners.contains(address));
        all.insert(owner, Arc::clone(&lanes));
        Ok(lanes)
    }

    /// Whether a call about this shard would be answered. A node that has just been told that it has the shard, or that
    /// is giving it away, would not.
    pub(super) async fn is_lane_healthy(&self, shard: usize, keys: &KeyNames) -> bool {
        let socket = match self.connection(shard).await {
            Ok(socket) => socket,
            met => return server_responded(&met),
        };
        let shard = u16::try_from(shard).unwrap_or(u16::MAX);
        let Some(never) = keys.slot_guard_key(shard) else { return false };
        let mut write = redis::cmd("DEL");
        write.arg(never.concat());
        socket.accepts_write(&write, self.deadline).await
    }
}
