//! Tracker of the servers and the data behind a store's connections.
//!
//! After a restart, a failover or a flush, locks and leases may be gone.

use std::{
    collections::HashMap,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
};

use parking_lot::Mutex;
use tokio::sync::watch;

/// Callback for changes. Weak, so that it ends with its owner.
type ChangeCallback = Weak<dyn Fn() + Send + Sync>;

#[derive(Default)]
pub(super) struct ServerTracker {
    /// By address in a cluster; otherwise under one key.
    servers: Mutex<HashMap<String, TrackedServer>>,
    callbacks: Mutex<Vec<ChangeCallback>>,
    /// Number of changes after the first connection.
    changes: watch::Sender<u64>,
    /// Set once the namespace was found to have the key layout of this version.
    layout_verified: AtomicBool,
    /// See [`Backend::identities`](crate::store::backend::Backend::identities).
    identities: Mutex<Vec<Arc<str>>>,
}

/// Bound on `identities`: each flush of a server adds one.
const MAX_IDENTITIES: usize = 8;

#[derive(Default)]
struct TrackedServer {
    connected_before: bool,
    server_id: Option<String>,
    data: Option<DataIdentity>,
    connections: Vec<ServerConnection>,
}

/// Connection of a lane.
struct ServerConnection {
    server_id: Option<String>,
    /// Flag that marks the connection as dead.
    dead: Weak<AtomicBool>,
}

/// Identity of the data on a server: a random name, stored once by the first connection that finds
/// none. `None` if an earlier version wrote the data, which stored no name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct DataIdentity(pub(super) Option<String>);

/// Change that a new connection reveals about its server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ServerChange {
    FirstContact,
    Unchanged,
    /// Same server, without the data that it had.
    DataLost,
    Replaced,
}

impl ServerTracker {
    pub(super) fn on_change(&self, callback: ChangeCallback) {
        self.callbacks.lock().push(callback);
    }

    /// Returns a receiver that is notified of each later change.
    pub(super) fn subscribe_changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Returns the number of changes after the first connection.
    pub(super) fn server_generation(&self) -> u64 {
        *self.changes.borrow()
    }

    /// Returns true if there were `generation` changes, and the lanes know the server at `address`
    /// by `id`. A server without an id differs from one with an id.
    pub(super) fn is_same_server(&self, generation: u64, address: &str, id: Option<&str>) -> bool {
        let servers = self.servers.lock();
        let last_id = servers.get(address).and_then(|server| server.server_id.as_deref());
        last_id == id && self.server_generation() == generation
    }

    pub(super) fn is_layout_verified(&self) -> bool {
        self.layout_verified.load(Ordering::Acquire)
    }

    pub(super) fn mark_layout_verified(&self) {
        self.layout_verified.store(true, Ordering::Release);
    }

    /// Records a new connection of a lane and returns the change that it reveals.
    ///
    /// `id` is the server's id, if it reports one. `data` is set if the server is the one that
    /// stores the identity of the data. Setting `dead` ends the connection.
    pub(super) fn record_connection(
        &self,
        address: &str,
        id: Option<String>,
        data: Option<DataIdentity>,
        dead: Weak<AtomicBool>,
    ) -> ServerChange {
        let mut servers = self.servers.lock();
        let server = servers.entry(address.to_owned()).or_default();
        let is_other_server = id.is_some() && server.server_id.is_some() && id != server.server_id;
        // Compares identities. If finding none were the criterion, lanes that connect at the same
        // moment would each report the change, and other processes would miss it.
        let is_other_data = data.is_some() && server.data.is_some() && data != server.data;
        let change = match (server.connected_before, is_other_server || is_other_data) {
            (false, _) => ServerChange::FirstContact,
            (true, false) => ServerChange::Unchanged,
            (true, true) if id.is_some() && id == server.server_id => ServerChange::DataLost,
            (true, true) => ServerChange::Replaced,
        };
        if let Some(DataIdentity(Some(identity))) = &data {
            self.record_identity(identity, change);
        }
        let is_change = matches!(change, ServerChange::DataLost | ServerChange::Replaced);
        server.connected_before = true;
        if is_other_server {
            server.close_stale_connections(&id);
        }
        server.connections.retain(|connection| connection.dead.strong_count() > 0);
        server.connections.push(ServerConnection { server_id: id.clone(), dead });
        server.server_id = id.or(server.server_id.take());
        server.data = data.or(server.data.take());
        if is_change {
            self.changes.send_modify(|changes| *changes += 1);
        }
        drop(servers);
        if is_change {
            tracing::warn!("the store is another server than before, or lost its data");
            self.notify_callbacks();
        }
        change
    }

    /// Returns the identities of the data seen so far, the current one last.
    pub(super) fn identities(&self) -> Vec<Arc<str>> {
        self.identities.lock().clone()
    }

    /// Records an identity that was read without a lane. A lane of that cluster node takes
    /// precedence: an identity that is already recorded stays.
    pub(super) fn learn_identity(&self, identity: &str) {
        let mut identities = self.identities.lock();
        if identities.is_empty() {
            identities.push(identity.into());
        }
    }

    /// Records an identity. Data that replace lost data of a known server belong to the same store.
    /// Data of another server do not, and clear the earlier identities.
    fn record_identity(&self, identity: &str, change: ServerChange) {
        let mut identities = self.identities.lock();
        if identities.last().is_some_and(|current| **current == *identity) {
            return;
        }
        if change == ServerChange::DataLost {
            identities.retain(|earlier| **earlier != *identity);
            if identities.len() == MAX_IDENTITIES {
                identities.remove(0);
            }
        } else {
            identities.clear();
        }
        identities.push(identity.into());
    }

    /// Records a change that was found without a connection: leases may be gone.
    pub(super) fn record_change(&self) {
        self.changes.send_modify(|changes| *changes += 1);
        self.notify_callbacks();
    }

    fn notify_callbacks(&self) {
        let mut live_callbacks = Vec::new();
        self.callbacks.lock().retain(|callback| {
            live_callbacks.extend(callback.upgrade());
            callback.strong_count() > 0
        });
        // Outside of the lock: a callback may use the tracker.
        live_callbacks.iter().for_each(|callback| callback());
    }
}

impl TrackedServer {
    /// Marks the connections to earlier servers as dead. Such a server may still answer reads, from
    /// the data that it had when it was replaced.
    fn close_stale_connections(&self, id: &Option<String>) {
        let stale = self
            .connections
            .iter()
            .filter(|connection| connection.server_id.is_some() && connection.server_id != *id);
        for dead in stale.filter_map(|connection| connection.dead.upgrade()) {
            dead.store(true, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, atomic::AtomicUsize};

    use super::*;

    fn count_changes(tracker: &ServerTracker) -> (Arc<AtomicUsize>, Arc<dyn Fn() + Send + Sync>) {
        let call_count = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&call_count);
        let callback: Arc<dyn Fn() + Send + Sync> = Arc::new(move || {
            count.fetch_add(1, Ordering::SeqCst);
        });
        tracker.on_change(Arc::downgrade(&callback));
        (call_count, callback)
    }

    #[test]
    fn learned_identity_is_replaced_by_connected_one() {
        let tracker = ServerTracker::default();
        let connect = |identity: &str| {
            let data = Some(DataIdentity(Some(identity.to_owned())));
            tracker.record_connection("", Some("a".to_owned()), data, Weak::new())
        };
        tracker.learn_identity("x");
        assert_eq!(tracker.identities(), [Arc::<str>::from("x")]);
        assert_eq!(connect("y"), ServerChange::FirstContact);
        assert_eq!(tracker.identities(), [Arc::<str>::from("y")]);
        tracker.learn_identity("x");
        assert_eq!(tracker.identities(), [Arc::<str>::from("y")]);
    }

    #[test]
    fn server_change_is_reported_once_to_live_listeners() {
        let tracker = ServerTracker::default();
        let (call_count, _alive) = count_changes(&tracker);
        let (never, dead) = count_changes(&tracker);
        drop(dead);
        let change_count = || call_count.load(Ordering::SeqCst);
        let id = |id: &str| Some(id.to_owned());
        let data = |name: &str| Some(DataIdentity(Some(name.to_owned())));
        let connect = |id, data| tracker.record_connection("", id, data, Weak::new());
        // The first of all, and another lane.
        connect(id("a"), data("x"));
        connect(id("a"), data("x"));
        assert_eq!(change_count(), 0);
        // Started anew, and with it goes what it had; whichever of its lanes is the first to know.
        assert_eq!((connect(id("b"), data("y")), change_count()), (ServerChange::Replaced, 1));
        assert_eq!((connect(id("b"), data("y")), change_count()), (ServerChange::Unchanged, 1));
        // A server that does not tell its id: only that it has lost its data.
        assert_eq!((connect(None, data("y")), change_count()), (ServerChange::Unchanged, 1));
        assert_eq!((connect(None, data("z")), change_count()), (ServerChange::Replaced, 2));
        connect(id("b"), data("z"));
        assert_eq!(change_count(), 2);
        // The same server, which has lost its data: leases are gone, its identity stays.
        assert_eq!((connect(id("b"), data("u")), change_count()), (ServerChange::DataLost, 3));
        // By a version that gives them no name, and back.
        assert_eq!(
            (connect(id("b"), Some(DataIdentity(None))), change_count()),
            (ServerChange::DataLost, 4)
        );
        assert_eq!(
            (connect(id("b"), Some(DataIdentity(None))), change_count()),
            (ServerChange::Unchanged, 4)
        );
        assert_eq!((connect(id("b"), data("v")), change_count()), (ServerChange::DataLost, 5));
        assert_eq!(never.load(Ordering::SeqCst), 0);
        // Another node of a cluster is no change; nor are the data that it is given to name.
        tracker.record_connection("b:1", id("c"), None, Weak::new());
        tracker.record_connection("b:1", id("c"), data("v"), Weak::new());
        tracker.record_connection("b:1", id("c"), None, Weak::new());
        assert_eq!(change_count(), 5);
        tracker.record_connection("b:1", id("d"), None, Weak::new());
        assert_eq!(change_count(), 6);
    }

    #[test]
    fn connections_to_replaced_server_are_marked_dead() {
        let tracker = ServerTracker::default();
        let flags: [Arc<AtomicBool>; 4] = Default::default();
        let changes = tracker.subscribe_changes();
        let connect = |id: Option<&str>, flag: usize| {
            tracker.record_connection("", id.map(str::to_owned), None, Arc::downgrade(&flags[flag]))
        };
        let dead = || flags.each_ref().map(|flag| flag.load(Ordering::SeqCst));
        assert_eq!(connect(Some("a"), 0), ServerChange::FirstContact);
        assert_eq!(connect(Some("a"), 1), ServerChange::Unchanged);
        // Of one that does not say who it is nothing is known.
        assert_eq!(connect(None, 2), ServerChange::Unchanged);
        assert_eq!((dead(), *changes.borrow()), ([false; 4], 0));
        assert_eq!(connect(Some("b"), 3), ServerChange::Replaced);
        assert_eq!((dead(), *changes.borrow()), ([true, true, false, false], 1));
        let is_same = |count, id| tracker.is_same_server(count, "", id);
        assert!(is_same(1, Some("b")));
        assert!(!is_same(1, Some("a")) && !is_same(0, Some("b")) && !is_same(1, None));
        let anonymous_tracker = ServerTracker::default();
        anonymous_tracker.record_connection("", None, None, Weak::new());
        assert!(
            anonymous_tracker.is_same_server(0, "", None)
                && !anonymous_tracker.is_same_server(0, "", Some("a"))
        );
    }

    #[test]
    fn identities_of_lost_data_stay_with_same_server() {
        let tracker = ServerTracker::default();
        let connect = |id: &str, name: &str| {
            let data = Some(DataIdentity(Some(name.to_owned())));
            tracker.record_connection("", Some(id.to_owned()), data, Weak::new())
        };
        let identities =
            || -> Vec<String> { tracker.identities().iter().map(ToString::to_string).collect() };
        assert_eq!(identities(), [""; 0].map(String::from).to_vec());
        connect("a", "x");
        // Flushed, and met by two lanes.
        connect("a", "y");
        connect("a", "y");
        assert_eq!(identities(), ["x", "y"].map(String::from).to_vec());
        // A replica that took over has them too.
        connect("b", "y");
        assert_eq!(identities(), ["x", "y"].map(String::from).to_vec());
        // Another server has none of them.
        connect("c", "z");
        assert_eq!(identities(), ["z"].map(String::from).to_vec());
        for n in 0..20 {
            connect("c", &n.to_string());
        }
        assert_eq!(tracker.identities().len(), MAX_IDENTITIES);
        assert_eq!(tracker.identities().last().map(|last| &**last), Some("19"));
    }
}
