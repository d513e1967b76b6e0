//! `ClusterTarget`: the nodes of a cluster, and which node owns which shard.

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

use super::super::{
    ConnectError, OpenedConnection, TimeoutAndDisconnectFlag, single_server::SingleServer,
};
use super::{
    topology_query_connections::IdleTopologyConnections, topology_refresh::TopologyRefresh,
    topology_view::key_slot,
};
use crate::{key::SHARD_COUNT, store::redis::server_tracker::ServerTracker};

/// Assumed `cluster-node-timeout` if the nodes do not report it: a third of Redis' default. A value
/// below the real one only costs pings on idle connections.
pub(super) const DEFAULT_NODE_TIMEOUT: Duration = Duration::from_secs(5);

/// Host and port.
pub(in crate::store::redis) type Endpoint = (String, u16);

/// Creates the client of a node.
pub(in crate::store::redis) type NodeFactory =
    Box<dyn Fn(&Endpoint) -> Result<SingleServer, ConnectError> + Send + Sync>;

/// Clones share the state.
#[derive(Clone)]
pub(in crate::store::redis) struct ClusterTarget(pub(super) Arc<ClusterState>);

pub(super) struct ClusterState {
    /// Nodes that the application configured.
    pub(super) seeds: Vec<Endpoint>,
    make_node: NodeFactory,
    pub(super) shard_slots: Vec<u16>,
    pub(super) map: Mutex<ClusterShardMap>,
    /// Changes with each change of the map.
    map_version: AtomicU64,
    pub(super) refresh_state: Mutex<TopologyRefresh>,
    /// Number of the last finished refresh.
    pub(super) refreshes_done: watch::Sender<u64>,
    /// Starts the next refresh without a pause.
    pub(super) refresh_signal: Notify,
    pub(super) connections: IdleTopologyConnections,
    /// False once the nodes refuse `CONFIG GET`.
    pub(super) is_config_readable: AtomicBool,
    pub(super) query_timeout: Duration,
    server_tracker: Arc<ServerTracker>,
}

#[derive(Default)]
pub(super) struct ClusterShardMap {
    /// Owner of each shard, if known.
    owners: Vec<Option<Endpoint>>,
    /// All nodes of the last refresh, masters first.
    pub(super) nodes: Vec<Endpoint>,
    pub(super) failure: Option<ConnectError>,
    pub(super) refresh_count: usize,
    /// The shortest reported `cluster-node-timeout`.
    pub(super) node_timeout: Option<Duration>,
}

impl ClusterTarget {
    /// Creates a target from seed nodes; those that answer are asked for the other nodes.
    pub(in crate::store::redis) fn new(
        seeds: Vec<Endpoint>,
        make_node: NodeFactory,
        query_timeout: Duration,
    ) -> Self {
        let map = ClusterShardMap {
            owners: vec![None; usize::from(SHARD_COUNT)],
            ..ClusterShardMap::default()
        };
        Self(Arc::new(ClusterState {
            seeds,
            make_node,
            shard_slots: (0..SHARD_COUNT)
                .map(|shard| key_slot(shard.to_string().as_bytes()))
                .collect(),
            map: Mutex::new(map),
            map_version: AtomicU64::new(0),
            refresh_state: Mutex::default(),
            refreshes_done: watch::Sender::new(0),
            refresh_signal: Notify::new(),
            connections: IdleTopologyConnections::default(),
            is_config_readable: AtomicBool::new(true),
            query_timeout,
            server_tracker: Arc::default(),
        }))
    }

    pub(in crate::store::redis) fn server_tracker(&self) -> &Arc<ServerTracker> {
        &self.0.server_tracker
    }

    /// Returns how long a connection may be silent and still be used: half of the time after which
    /// a paused node may have a successor.
    pub(in crate::store::redis) fn max_silence(&self) -> Duration {
        self.0.map.lock().node_timeout.unwrap_or(DEFAULT_NODE_TIMEOUT) / 2
    }

    /// Returns a number that changes with each change of the map.
    pub(in crate::store::redis) fn map_version(&self) -> u64 {
        self.0.map_version.load(Ordering::Acquire)
    }

    /// Returns the owner of a shard. If it is unknown, waits for a topology refresh.
    pub(in crate::store::redis) async fn owner(
        &self,
        shard: u16,
    ) -> Result<Endpoint, ConnectError> {
        if let Some(owner) = self.cached_owner(shard) {
            return Ok(owner);
        }
        let mut refreshes = self.0.refreshes_done.subscribe();
        if self.request_refresh() {
            // The caller has its own deadline.
            let _ = refreshes.changed().await;
        }
        let error = || self.0.map.lock().failure.clone().unwrap_or(ConnectError::Unavailable);
        self.cached_owner(shard).ok_or_else(error)
    }

    fn cached_owner(&self, shard: u16) -> Option<Endpoint> {
        self.0.map.lock().owners.get(usize::from(shard))?.clone()
    }

    /// Returns one shard of each owner, and all shards without a known owner.
    pub(in crate::store::redis) fn representative_shards(&self) -> Vec<u16> {
        let map = self.0.map.lock();
        let mut seen = Vec::new();
        let mut is_first = |owner: &Option<Endpoint>| {
            let is_new = owner.is_none() || !seen.contains(owner);
            seen.push(owner.clone());
            is_new
        };
        (0..SHARD_COUNT)
            .zip(&map.owners)
            .filter(|(_, owner)| is_first(owner))
            .map(|(shard, _)| shard)
            .collect()
    }

    /// Returns the nodes that own shards.
    pub(in crate::store::redis) fn owner_endpoints(&self) -> Vec<Endpoint> {
        let mut owners: Vec<_> = self.0.map.lock().owners.iter().flatten().cloned().collect();
        owners.sort_unstable();
        owners.dedup();
        owners
    }

    /// Returns the nodes that own shards, each with its shards.
    pub(in crate::store::redis) fn shards_by_owner(&self) -> Vec<(Endpoint, Vec<u16>)> {
        let map = self.0.map.lock();
        let mut shards_by_owner = BTreeMap::<_, Vec<u16>>::new();
        for (shard, owner) in (0..SHARD_COUNT).zip(&map.owners) {
            if let Some(owner) = owner {
                shards_by_owner.entry(owner.clone()).or_default().push(shard);
            }
        }
        shards_by_owner.into_iter().collect()
    }

    /// Records a redirect to `target` by the node `redirected_by`: the slot has moved.
    pub(in crate::store::redis) fn record_slot_move(
        &self,
        slot: u16,
        target: &str,
        redirected_by: Option<&Endpoint>,
    ) {
        let Some(new_owner) = parse_redirect_target(target, redirected_by) else {
            // Other nodes may know the new owner.
            self.request_refresh();
            return;
        };
        let mut map = self.0.map.lock();
        let mut owners = map.owners.clone();
        let shards = owners.iter_mut().zip(&self.0.shard_slots).filter(|(_, s)| **s == slot);
        shards.for_each(|(owner, _)| *owner = Some(new_owner.clone()));
        let changed = self.0.update_owners(&mut map, owners);
        drop(map);
        if changed {
            self.0.notify_change();
            // Other slots may have moved with it.
            self.request_refresh();
        }
    }

    pub(in crate::store::redis) fn server_at(
        &self,
        node: &Endpoint,
    ) -> Result<SingleServer, ConnectError> {
        (self.0.make_node)(node)
    }

    /// Opens a connection to the owner of a shard.
    pub(in crate::store::redis) async fn open(
        &self,
        shard: u16,
        settings: &TimeoutAndDisconnectFlag,
    ) -> Result<OpenedConnection, ConnectError> {
        let owner = self.owner(shard).await?;
        let opened = self.server_at(&owner)?.open(settings).await;
        let connection = opened.inspect_err(|_| _ = self.request_refresh())?;
        Ok(OpenedConnection { connection, endpoint: Some(owner) })
    }
}

impl ClusterState {
    /// Replaces the owners. Returns true if owners were known before and have changed.
    pub(super) fn update_owners(
        &self,
        map: &mut ClusterShardMap,
        owners: Vec<Option<Endpoint>>,
    ) -> bool {
        let had_owners = map.owners.iter().any(Option::is_some);
        let changed = map.owners != owners;
        map.owners = owners;
        if changed {
            self.map_version.fetch_add(1, Ordering::AcqRel);
        }
        changed && had_owners
    }

    /// Reports that shards have moved. If a replica took over, leases may be lost.
    pub(super) fn notify_change(&self) {
        self.server_tracker.record_change();
    }
}

/// Parses `host:port`. An IPv6 address may lack brackets. An empty host is the host of the
/// redirecting node, and `?` is a node that it knows no name of.
pub(super) fn parse_redirect_target(
    text: &str,
    redirected_by: Option<&Endpoint>,
) -> Option<Endpoint> {
    let (host, port) = text.rsplit_once(':')?;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let host = if host.is_empty() { &redirected_by?.0 } else { host };
    Some((host.to_owned(), port.parse().ok()?)).filter(|(host, _)| host != "?")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn empty_cluster_target() -> ClusterTarget {
        ClusterTarget::new(
            Vec::new(),
            Box::new(|_| Err(ConnectError::Unavailable)),
            Duration::from_millis(10),
        )
    }

    #[test]
    fn redirect_target_is_parsed() {
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
    fn redirect_moves_one_shard_and_changes_map_once() {
        let cluster = empty_cluster_target();
        let slot = cluster.0.shard_slots[7];
        cluster.record_slot_move(slot, "h:1", None);
        let first = cluster.map_version();
        assert_eq!(cluster.owner_endpoints(), [("h".to_owned(), 1)]);
        assert_eq!(cluster.cached_owner(8), None);
        cluster.record_slot_move(slot, "h:1", None);
        assert_eq!(cluster.map_version(), first);
        cluster.record_slot_move(slot, "h:2", None);
        assert_ne!(cluster.map_version(), first);
        assert_eq!(cluster.cached_owner(7), Some(("h".to_owned(), 2)));
        assert_eq!(cluster.shards_by_owner(), [(("h".to_owned(), 2), vec![7])]);
        assert_eq!(cluster.representative_shards().len(), usize::from(SHARD_COUNT));
    }
}
