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
//! serve it: for a slot on its way, scripts are not begun ([`Keys::never`](crate::store::keys::Keys::never)), so
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

mod kept;
mod look;
mod slots;
mod told;

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

use self::{kept::Kept, look::Looking, slots::slot};
use super::{Failure, One, Opened, Settings};
use crate::{key::SHARDS, store::redis::incarnation::Incarnation};

/// What `cluster-node-timeout` is taken for where nodes do not tell: a third of Redis' default. What is shorter than in
/// truth costs signs of life of idle connections.
const ASSUMED: Duration = Duration::from_secs(5);

/// Host and port.
pub(in super::super) type Endpoint = (String, u16);

/// How a node is reached.
pub(in super::super) type MakeNode = Box<dyn Fn(&Endpoint) -> Result<One, Failure> + Send + Sync>;

/// Clones share it.
#[derive(Clone)]
pub(in super::super) struct Cluster(Arc<Shared>);

struct Shared {
    /// What the application has named.
    seeds: Vec<Endpoint>,
    make: MakeNode,
    slots: Vec<u16>,
    map: Mutex<Map>,
    /// Another one after each change.
    version: AtomicU64,
    looking: Mutex<Looking>,
    /// Number of the last look that is over.
    looked: watch::Sender<u64>,
    /// The next one is to begin at once.
    hurry: Notify,
    kept: Kept,
    /// Nodes may be asked for their settings, as far as is known.
    tells: AtomicBool,
    within: Duration,
    incarnation: Arc<Incarnation>,
}

#[derive(Default)]
struct Map {
    /// Of each shard, as far as is known.
    owners: Vec<Option<Endpoint>>,
    /// All nodes that were named with them, masters first.
    nodes: Vec<Endpoint>,
    failure: Option<Failure>,
    looks: usize,
    /// The shortest of `cluster-node-timeout` that nodes have told.
    timeout: Option<Duration>,
}

impl Cluster {
    /// Of these nodes, those that answer are asked for the others.
    pub(in super::super) fn new(seeds: Vec<Endpoint>, make: MakeNode, within: Duration) -> Self {
        let map = Map { owners: vec![None; usize::from(SHARDS)], ..Map::default() };
        Self(Arc::new(Shared {
            seeds,
            make,
            slots: (0..SHARDS).map(|shard| slot(shard.to_string().as_bytes())).collect(),
            map: Mutex::new(map),
            version: AtomicU64::new(0),
            looking: Mutex::default(),
            looked: watch::Sender::new(0),
            hurry: Notify::new(),
            kept: Kept::default(),
            tells: AtomicBool::new(true),
            within,
            incarnation: Arc::default(),
        }))
    }

    pub(in super::super) fn incarnation(&self) -> &Arc<Incarnation> {
        &self.0.incarnation
    }

    /// How long a connection may have been silent, and still be used: half of the time after which a node that stands
    /// still may have a successor.
    pub(in super::super) fn patience(&self) -> Duration {
        self.0.map.lock().timeout.unwrap_or(ASSUMED) / 2
    }

    /// Another one after each change of the map.
    pub(in super::super) fn version(&self) -> u64 {
        self.0.version.load(Ordering::Acquire)
    }

    /// Where a shard is. If nobody knows, this looks first.
    pub(in super::super) async fn owner(&self, shard: u16) -> Result<Endpoint, Failure> {
        if let Some(owner) = self.known(shard) {
            return Ok(owner);
        }
        let mut looked = self.0.looked.subscribe();
        if self.look_again() {
            // Whoever waits has a deadline of his own.
            let _ = looked.changed().await;
        }
        let unknown = || self.0.map.lock().failure.clone().unwrap_or(Failure::Away);
        self.known(shard).ok_or_else(unknown)
    }

    fn known(&self, shard: u16) -> Option<Endpoint> {
        self.0.map.lock().owners.get(usize::from(shard))?.clone()
    }

    /// One shard of each node that has any, and those that nobody has.
    pub(in super::super) fn representatives(&self) -> Vec<u16> {
        let map = self.0.map.lock();
        let mut seen = Vec::new();
        let mut first = |owner: &Option<Endpoint>| {
            let new = owner.is_none() || !seen.contains(owner);
            seen.push(owner.clone());
            new
        };
        (0..SHARDS).zip(&map.owners).filter(|(_, owner)| first(owner)).map(|(s, _)| s).collect()
    }

    /// Nodes that have shards.
    pub(in super::super) fn owners(&self) -> Vec<Endpoint> {
        let mut owners: Vec<_> = self.0.map.lock().owners.iter().flatten().cloned().collect();
        owners.sort_unstable();
        owners.dedup();
        owners
    }

    /// Those nodes, each with its shards.
    pub(in super::super) fn shares(&self) -> Vec<(Endpoint, Vec<u16>)> {
        let map = self.0.map.lock();
        let mut shares = BTreeMap::<_, Vec<u16>>::new();
        for (shard, owner) in (0..SHARDS).zip(&map.owners) {
            if let Some(owner) = owner {
                shares.entry(owner.clone()).or_default().push(shard);
            }
        }
        shares.into_iter().collect()
    }

    /// The node at `from` says that a slot is elsewhere.
    pub(in super::super) fn moved(&self, slot: u16, to: &str, from: Option<&Endpoint>) {
        let Some(to) = address(to, from) else {
            // Others may know.
            self.look_again();
            return;
        };
        let mut map = self.0.map.lock();
        let mut owners = map.owners.clone();
        let shards = owners.iter_mut().zip(&self.0.slots).filter(|(_, its)| **its == slot);
        shards.for_each(|(owner, _)| *owner = Some(to.clone()));
        let changed = self.0.adopt(&mut map, owners);
        drop(map);
        if changed {
            self.0.has_changed();
            // Others may have moved with it.
            self.look_again();
        }
    }

    pub(in super::super) fn node(&self, node: &Endpoint) -> Result<One, Failure> {
        (self.0.make)(node)
    }

    /// A connection to the node that has this shard.
    pub(in super::super) async fn open(
        &self,
        shard: u16,
        settings: &Settings,
    ) -> Result<Opened, Failure> {
        let owner = self.owner(shard).await?;
        let opened = self.node(&owner)?.open(settings).await;
        let connection = opened.inspect_err(|_| _ = self.look_again())?;
        Ok(Opened { connection, at: Some(owner) })
    }
}

impl Shared {
    /// True if that changed anything.
    fn adopt(&self, map: &mut Map, owners: Vec<Option<Endpoint>>) -> bool {
        let known = map.owners.iter().any(Option::is_some);
        let changed = map.owners != owners;
        map.owners = owners;
        if changed {
            self.version.fetch_add(1, Ordering::AcqRel);
        }
        changed && known
    }

    /// Some shards are elsewhere. If a replica has taken over, what was held may be gone.
    fn has_changed(&self) {
        self.incarnation.changed();
    }
}

/// `host:port`, where an IPv6 address may have no brackets; without a host it is that of who says so, and `?` is a
/// node whose name he does not know.
fn address(text: &str, from: Option<&Endpoint>) -> Option<Endpoint> {
    let (host, port) = text.rsplit_once(':')?;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let host = if host.is_empty() { &from?.0 } else { host };
    Some((host.to_owned(), port.parse().ok()?)).filter(|(host, _)| host != "?")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cluster() -> Cluster {
        Cluster::new(Vec::new(), Box::new(|_| Err(Failure::Away)), Duration::from_millis(10))
    }

    #[test]
    fn a_redirect_names_a_node() {
        let from = ("10.0.0.1".to_owned(), 6379);
        let parsed = |text| address(text, Some(&from));
        assert_eq!(parsed("10.0.0.2:6380"), Some(("10.0.0.2".to_owned(), 6380)));
        assert_eq!(parsed("::1:6380"), Some(("::1".to_owned(), 6380)));
        assert_eq!(parsed("[::1]:6380"), Some(("::1".to_owned(), 6380)));
        assert_eq!(parsed(":6380"), Some(("10.0.0.1".to_owned(), 6380)));
        assert_eq!(parsed("nonsense"), None);
        assert_eq!(parsed("?:6380"), None);
        assert_eq!(address(":6380", None), None);
    }

    #[test]
    fn a_redirect_is_about_one_shard_and_told_once() {
        let cluster = cluster();
        let slot = cluster.0.slots[7];
        cluster.moved(slot, "h:1", None);
        let first = cluster.version();
        assert_eq!(cluster.owners(), [("h".to_owned(), 1)]);
        assert_eq!(cluster.known(8), None);
        cluster.moved(slot, "h:1", None);
        assert_eq!(cluster.version(), first);
        cluster.moved(slot, "h:2", None);
        assert_ne!(cluster.version(), first);
        assert_eq!(cluster.known(7), Some(("h".to_owned(), 2)));
        assert_eq!(cluster.shares(), [(("h".to_owned(), 2), vec![7])]);
        assert_eq!(cluster.representatives().len(), usize::from(SHARDS));
    }
}
