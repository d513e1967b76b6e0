//! A cluster: which node has which shard, and how that is found out.
//!
//! # Why a map of our own
//!
//! redis-rs has a `ClusterConnection`. It sends again by itself, after a redirect and after a connection that
//! broke, and cannot be told to do one without the other: a quota would be charged twice. What it sends again
//! may come after what was called later, also after the undo of the very call, which may leave a lock held by
//! nobody for a lease. Here a redirect is an answer like any other: the map learns from it, and whoever sent the
//! call sends it again, if somebody still waits for it. 64 shards are a small map.
//!
//! # Why an undo still never overtakes what it undoes
//!
//! All calls about a shard go over one socket to the node that has it. When its slot moves, a call may be on its way
//! to the old node while its undo goes to the new one. The new one owns the slot only when the old one has stopped to
//! serve it: for a slot on its way, scripts are not begun ([`Keys::slot_guard_key`](crate::store::keys::Keys::slot_guard_key)), so
//! the call has either run before, and what it did has moved along, or it is redirected and never runs. When a
//! replica takes over, what the old master did after that is lost with it.
//!
//! # A master that is replaced while it stands still
//!
//! When it wakes, it runs what lies in its sockets before it hears of its successor. So a connection that was silent for
//! half of `cluster-node-timeout` is not used again, what is answered later than that after a sign of life is not believed
//! (`connect::life`), and a connection that is made to a node is used when most nodes find, asked after it has answered,
//! that it is a master. What is left is the time that the word of a promotion takes from node to node, milliseconds:
//! a node that wakes in it, and is connected to in it, is believed.
//!
//! # What a slot on its way costs
//!
//! From `SETSLOT MIGRATING` to `SETSLOT NODE` calls about its shard are not run, and are tried again until their
//! deadline. Nothing runs half. Leases go on: a slot that is on its way for longer than a lease costs the
//! locks of its shard their holders, who are told.

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

/// What `cluster-node-timeout` is taken for where nodes do not tell: a third of Redis' default. What is shorter than in
/// truth costs signs of life of idle connections.
const DEFAULT_NODE_TIMEOUT: Duration = Duration::from_secs(5);

/// Host and port.
pub(in super::super) type Endpoint = (String, u16);

/// How a node is reached.
pub(in super::super) type NodeFactory =
    Box<dyn Fn(&Endpoint) -> Result<SingleServer, ConnectError> + Send + Sync>;

/// Clones share it.
#[derive(Clone)]
pub(in super::super) struct ClusterTarget(Arc<ClusterState>);

struct ClusterState {
    /// What the application has named.
    seeds: Vec<Endpoint>,
    make_node: NodeFactory,
    shard_slots: Vec<u16>,
    map: Mutex<ClusterShardMap>,
    /// Another one after each change.
    map_version: AtomicU64,
    refresh_state: Mutex<TopologyRefresh>,
    /// Number of the last look that is over.
    refreshes_done: watch::Sender<u64>,
    /// The next one is to begin at once.
    refresh_signal: Notify,
    connections: ConnectionCache,
    /// Nodes may be asked for their settings, as far as is known.
    is_config_readable: AtomicBool,
    query_timeout: Duration,
    server_tracker: Arc<ServerTracker>,
}

#[derive(Default)]
struct ClusterShardMap {
    /// Of each shard, as far as is known.
    owners: Vec<Option<Endpoint>>,
    /// All nodes that were named with them, masters first.
    nodes: Vec<Endpoint>,
    failure: Option<ConnectError>,
    refresh_count: usize,
    /// The shortest of `cluster-node-timeout` that nodes have told.
    node_timeout: Option<Duration>,
}

impl ClusterTarget {
    /// Of these nodes, those that answer are asked for the others.
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

    /// How long a connection may have been silent, and still be used: half of the time after which a node that stands
    /// still may have a successor.
    pub(in super::super) fn max_silence(&self) -> Duration {
        self.0.map.lock().node_timeout.unwrap_or(DEFAULT_NODE_TIMEOUT) / 2
    }

    /// Another one after each change of the map.
    pub(in super::super) fn map_version(&self) -> u64 {
        self.0.map_version.load(Ordering::Acquire)
    }

    /// Where a shard is. If nobody knows, this looks first.
    pub(in super::super) async fn owner(&self, shard: u16) -> Result<Endpoint, ConnectError> {
        if let Some(owner) = self.known_owner(shard) {
            return Ok(owner);
        }
        let mut looked = self.0.refreshes_done.subscribe();
        if self.request_refresh() {
            // Whoever waits has a deadline of his own.
            let _ = looked.changed().await;
        }
        let unknown = || self.0.map.lock().failure.clone().unwrap_or(ConnectError::Unavailable);
        self.known_owner(shard).ok_or_else(unknown)
    }

    fn known_owner(&self, shard: u16) -> Option<Endpoint> {
        self.0.map.lock().owners.get(usize::from(shard))?.clone()
    }

    /// One shard of each node that has any, and those that nobody has.
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

    /// Nodes that have shards.
    pub(in super::super) fn owner_endpoints(&self) -> Vec<Endpoint> {
        let mut owners: Vec<_> = self.0.map.lock().owners.iter().flatten().cloned().collect();
        owners.sort_unstable();
        owners.dedup();
        owners
    }

    /// Those nodes, each with its shards.
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

    /// The node at `from` says that a slot is elsewhere.
    pub(in super::super) fn record_slot_move(&self, slot: u16, to: &str, from: Option<&Endpoint>) {
        let Some(to) = parse_redirect_target(to, from) else {
            // Others may know.
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
            // Others may have moved with it.
            self.request_refresh();
        }
    }

    pub(in super::super) fn server_at(
        &self,
        node: &Endpoint,
    ) -> Result<SingleServer, ConnectError> {
        (self.0.make_node)(node)
    }

    /// A connection to the node that has this shard.
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
    /// True if that changed anything.
    fn update_owners(&self, map: &mut ClusterShardMap, owners: Vec<Option<Endpoint>>) -> bool {
        let known = map.owners.iter().any(Option::is_some);
        let changed = map.owners != owners;
        map.owners = owners;
        if changed {
            self.map_version.fetch_add(1, Ordering::AcqRel);
        }
        changed && known
    }

    /// Some shards are elsewhere. If a replica has taken over, what was held may be gone.
    fn notify_change(&self) {
        self.server_tracker.record_change();
    }
}

/// `host:port`, where an IPv6 address may have no brackets; without a host it is that of who says so, and `?` is a
/// node whose name he does not know.
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
