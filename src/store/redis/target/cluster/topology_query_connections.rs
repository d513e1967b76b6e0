//! `IdleTopologyConnections`: idle connections to single cluster nodes, kept for further topology
//! queries: while one node is unavailable, the others are queried repeatedly.

use std::{collections::HashMap, time::Duration};

use parking_lot::Mutex;
use tokio::time::Instant;

use super::Endpoint;
use crate::store::redis::target::RedisConnection;

/// Maximum idle time of a cached connection: a middlebox may have dropped it after that.
pub(super) const MAX_IDLE: Duration = Duration::from_secs(10);

/// Cache of one connection for each node. A connection is taken out while in use, so that a
/// cancelled query leaves none that may be dead.
#[derive(Default)]
pub(super) struct IdleTopologyConnections(Mutex<HashMap<Endpoint, (Instant, RedisConnection)>>);

impl IdleTopologyConnections {
    pub(super) fn take(&self, node: &Endpoint) -> Option<RedisConnection> {
        let cached = self.0.lock().remove(node);
        cached
            .filter(|(idle_since, _)| idle_since.elapsed() < MAX_IDLE)
            .map(|(_, connection)| connection)
    }

    pub(super) fn put_back(&self, node: &Endpoint, connection: RedisConnection) {
        self.0.lock().insert(node.clone(), (Instant::now(), connection));
    }

    /// Closes connections that have been idle for `MAX_IDLE`.
    pub(super) fn close_idle(&self) {
        self.0.lock().retain(|_, (idle_since, _)| idle_since.elapsed() < MAX_IDLE);
    }

    /// Closes connections to all other nodes.
    pub(super) fn retain_nodes(&self, nodes: &[Endpoint]) {
        self.0.lock().retain(|node, _| nodes.contains(node));
    }
}
