//! Connection target of a cluster: the map from shards to cluster nodes, and its refresh.
//!
//! # Why lockgate has its own map
//!
//! redis-rs has a `ClusterConnection`. It repeats calls by itself, both after a redirect and after
//! a broken connection, and cannot be configured to do only the former: a quota would be charged
//! twice. A repeated call may also arrive after later calls, even after its own undo: the lock
//! would stay taken for one lease, without an owner that knows of it. Here a redirect is an
//! ordinary reply: the map learns from it, and the sender repeats the call if its caller still
//! waits. A map of 64 shards is small.
//!
//! # Why an undo never overtakes its call
//!
//! All calls about a shard use one socket to the node that owns it. While its slot moves, a call
//! may be on its way to the old node and its undo on its way to the new one. The new node owns the
//! slot only after the old one has stopped serving it, and scripts do not start for a slot that is
//! migrating ([`KeyNames::slot_guard_key`](crate::store::key_names::KeyNames::slot_guard_key)). So
//! the call either ran before, and its effects have moved along, or it is redirected and never
//! runs. When a replica takes over, later writes of the old master are lost with it.
//!
//! # Masters replaced during a pause
//!
//! A master that resumes runs the commands in its sockets before it learns of its successor.
//! Therefore:
//!
//! - A connection that was silent for half of `cluster-node-timeout` is not used again.
//! - An answer is rejected if the last sign of life is older than `cluster-node-timeout`
//!   (`connection_lanes::liveness`).
//! - A new connection is used only if most nodes, queried after its first answer, consider the node
//!   a master.
//!
//! One gap is left, the milliseconds in which news of a promotion spreads: a node that resumes and
//! is connected to in this time is trusted.
//!
//! # Cost of a slot migration
//!
//! From `SETSLOT MIGRATING` to `SETSLOT NODE`, calls about the slot's shard do not run and are
//! retried until their deadline. No call runs partially. Leases keep expiring: a migration that
//! takes longer than a lease ends the locks of its shard, and their holders are notified.

mod connection_cache;
mod node_config;
mod topology_refresh;
mod topology_view;

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::sync::{Notify, watch};

use self::{
    connection_cache::ConnectionCache, topology_refresh::TopologyRefresh, topology_view::key_slot,
};
use super::{ConnectError, ConnectionSettings, OpenedConnection, SingleServer};
use crate::{key::SHARD_COUNT, store::redis::server_tracker::ServerTracker};

/// Assumed `cluster-node-timeout` if the nodes do not report it: a third of Redis' default. A value
/// below the real one only costs pings on idle connections.
const DEFAULT_NODE_TIMEOUT: Duration = Duration::from_secs(5);

/// Host and port.
pub(in super::super) type Endpoint = (String, u16);

/// Creates the client of a node.
pub(in super::super) type NodeFactory =
    Box<dyn Fn(&Endpoint) -> Result<SingleServer, ConnectError> + Send + Sync>;

/// Clones share the state.
#[derive(Clone)]
pub(in super::super) struct ClusterTarget(Arc<ClusterState>);

struct ClusterState {
    /// Nodes that the application configured.
    seeds: Vec<Endpoint>,
    make_node: NodeFactory,
    shard_slots: Vec<u16>,
    map: Mutex<ClusterShardMap>,
    /// Changes with each change of the map.
    map_version: AtomicU64,
    refresh_state: Mutex<TopologyRefresh>,
    /// Number of the last finished refresh.
    refreshes_done: watch::Sender<u64>,
    /// Starts the next refresh without a pause.
    refresh_signal: Notify,
    connections: ConnectionCache,
    /// False once the nodes refuse `CONFIG GET`.
    is_config_readable: AtomicBool,
    query_timeout: Duration,
    server_tracker: Arc<ServerTracker>,
}

#[derive(Default)]
struct ClusterShardMap {
    /// Owner of each shard, if known.
    owners: Vec<Option<Endpoint>>,
    /// All nodes of the last refresh, masters first.
    nodes: Vec<Endpoint>,
    failure: Option<ConnectError>,
    refresh_count: usize,
    /// The shortest reported `cluster-node-timeout`.
    node_timeout: Option<Duration>,
}

impl ClusterTarget {
    /// Creates a target from seed nodes; those that answer are asked for the other nodes.
    pub(in super::super) fn new(seeds: Vec<Endpoint>, make: NodeFactory, within: Duration) -> Self {
        let map = ClusterShardMap {
            owners: vec![None; usize::from(SHARD_COUNT)],
            ..ClusterShardMap::default()
        };
        Self(Arc::new(ClusterState {
            seeds,
            make_node: make,
            shard_slots: (0..SHARD_COUNT)
                .map(|shard| key_slot(shard.to_string().as_bytes()))
                .collect(),
            map: Mutex::new(map),
            map_version: AtomicU64::new(0),
            refresh_state: Mutex::default(),
            refreshes_done: watch::Sender::new(0),
            refresh_signal: Notify::new(),
            connections: ConnectionCache::default(),
            is_config_readable: AtomicBool::new(true),
            query_timeout: within,
            server_tracker: Arc::default(),
        }))
    }

    pub(in super::super) fn server_tracker(&self) -> &Arc<ServerTracker> {
        &self.0.server_tracker
    }

    /// Returns how long a connection may be silent and still be used: half of the time after which
    /// a paused node may have a successor.
    pub(in super::super) fn max_silence(&self) -> Duration {
        self.0.map.lock().node_timeout.unwrap_or(DEFAULT_NODE_TIMEOUT) / 2
    }

    /// Returns a number that changes with each change of the map.
    pub(in super::super) fn map_version(&self) -> u64 {
        self.0.map_version.load(Ordering::Acquire)
    }

    /// Returns the owner of a shard. If it is unknown, waits for a topology refresh.
    pub(in super::super) async fn owner(&self, shard: u16) -> Result<Endpoint, ConnectError> {
        if let Some(owner) = self.known_owner(shard) {
            return Ok(owner);
        }
        let mut looked = self.0.refreshes_done.subscribe();
        if self.request_refresh() {
            // The caller has its own deadline.
            let _ = looked.changed().await;
        }
        let unknown = || self.0.map.lock().failure.clone().unwrap_or(ConnectError::Unavailable);
        self.known_owner(shard).ok_or_else(unknown)
    }

    fn known_owner(&self, shard: u16) -> Option<Endpoint> {
        self.0.map.lock().owners.get(usize::from(shard))?.clone()
    }

    /// Returns one shard of each owner, and all shards without a known owner.
    pub(in super::super) fn representative_shards(&self) -> Vec<u16> {
        let map = self.0.map.lock();
        let mut seen = Vec::new();
        let mut first = |owner: &Option<Endpoint>| {
            let new = owner.is_none() || !seen.contains(owner);
            seen.push(owner.clone());
            new
        };
        (0..SHARD_COUNT)
            .zip(&map.owners)
            .filter(|(_, owner)| first(owner))
            .map(|(s, _)| s)
            .collect()
    }

    /// Returns the nodes that own shards.
    pub(in super::super) fn owner_endpoints(&self) -> Vec<Endpoint> {
        let mut owners: Vec<_> = self.0.map.lock().owners.iter().flatten().cloned().collect();
        owners.sort_unstable();
        owners.dedup();
        owners
    }

    /// Returns the nodes that own shards, each with its shards.
    pub(in super::super) fn shards_by_owner(&self) -> Vec<(Endpoint, Vec<u16>)> {
        let map = self.0.map.lock();
        let mut shares = BTreeMap::<_, Vec<u16>>::new();
        for (shard, owner) in (0..SHARD_COUNT).zip(&map.owners) {
            if let Some(owner) = owner {
                shares.entry(owner.clone()).or_default().push(shard);
            }
        }
        shares.into_iter().collect()
    }

    /// Records a redirect by the node `from`: the slot has moved.
    pub(in super::super) fn record_slot_move(&self, slot: u16, to: &str, from: Option<&Endpoint>) {
        let Some(to) = parse_redirect_target(to, from) else {
            // Other nodes may know the new owner.
            self.request_refresh();
            return;
        };
        let mut map = self.0.map.lock();
        let mut owners = map.owners.clone();
        let shards = owners.iter_mut().zip(&self.0.shard_slots).filter(|(_, its)| **its == slot);
        shards.for_each(|(owner, _)| *owner = Some(to.clone()));
        let changed = self.0.update_owners(&mut map, owners);
        drop(map);
        if changed {
            self.0.notify_change();
            // Other slots may have moved with it.
            self.request_refresh();
        }
    }

    pub(in super::super) fn server_at(
        &self,
        node: &Endpoint,
    ) -> Result<SingleServer, ConnectError> {
        (self.0.make_node)(node)
    }

    /// Opens a connection to the owner of a shard.
    pub(in super::super) async fn open(
        &self,
        shard: u16,
        settings: &ConnectionSettings,
    ) -> Result<OpenedConnection, ConnectError> {
        let owner = self.owner(shard).await?;
        let opened = self.server_at(&owner)?.open(settings).await;
        let connection = opened.inspect_err(|_| _ = self.request_refresh())?;
        Ok(OpenedConnection { connection, endpoint: Some(owner) })
    }
}

impl ClusterState {
    /// Replaces the owners. Returns true if owners were known before and have changed.
    fn update_owners(&self, map: &mut ClusterShardMap, owners: Vec<Option<Endpoint>>) -> bool {
        let known = map.owners.iter().any(Option::is_some);
        let changed = map.owners != owners;
        map.owners = owners;
        if changed {
            self.map_version.fetch_add(1, Ordering::AcqRel);
        }
        changed && known
    }

    /// Reports that shards have moved. If a replica took over, leases may be lost.
    fn notify_change(&self) {
        self.server_tracker.record_change();
    }
}

/// Parses `host:port`. An IPv6 address may lack brackets. An empty host is the host of the
/// redirecting node, and `?` is a node that it knows no name of.
fn parse_redirect_target(text: &str, from: Option<&Endpoint>) -> Option<Endpoint> {
    let (host, port) = text.rsplit_once(':')?;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let host = if host.is_empty() { &from?.0 } else { host };
    Some((host.to_owned(), port.parse().ok()?)).filter(|(host, _)| host != "?")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cluster() -> ClusterTarget {
        ClusterTarget::new(
            Vec::new(),
            Box::new(|_| Err(ConnectError::Unavailable)),
            Duration::from_millis(10),
        )
    }

    #[test]
    fn a_redirect_names_a_node() {
        let from = ("10.0.0.1".to_owned(), 6379);
        let parsed = |text| parse_redirect_target(text, Some(&from));
        assert_eq!(parsed("10.0.0.2:6380"), Some(("10.0.0.2".to_owned(), 6380)));
        assert_eq!(parsed("::1:6380"), Some(("::1".to_owned(), 6380)));
        assert_eq!(parsed("[::1]:6380"), Some(("::1".to_owned(), 6380)));
        assert_eq!(parsed(":6380"), Some(("10.0.0.1".to_owned(), 6380)));
        assert_eq!(parsed("nonsense"), None);
        assert_eq!(parsed("?:6380"), None);
        assert_eq!(parse_redirect_target(":6380", None), None);
    }

    #[test]
    fn a_redirect_is_about_one_shard_and_told_once() {
        let cluster = cluster();
        let slot = cluster.0.shard_slots[7];
        cluster.record_slot_move(slot, "h:1", None);
        let first = cluster.map_version();
        assert_eq!(cluster.owner_endpoints(), [("h".to_owned(), 1)]);
        assert_eq!(cluster.known_owner(8), None);
        cluster.record_slot_move(slot, "h:1", None);
        assert_eq!(cluster.map_version(), first);
        cluster.record_slot_move(slot, "h:2", None);
        assert_ne!(cluster.map_version(), first);
        assert_eq!(cluster.known_owner(7), Some(("h".to_owned(), 2)));
        assert_eq!(cluster.shards_by_owner(), [(("h".to_owned(), 2), vec![7])]);
        assert_eq!(cluster.representative_shards().len(), usize::from(SHARD_COUNT));
    }
}
