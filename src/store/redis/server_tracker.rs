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
    /// Server id of each connection, and the flag that marks it dead.
    connections: Vec<(Option<String>, Weak<AtomicBool>)>,
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
    pub(super) fn on_change(&self, tell: ChangeCallback) {
        self.callbacks.lock().push(tell);
    }

    /// Returns a receiver that is notified of each later change.
    pub(super) fn subscribe_changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Returns the number of changes after the first connection.
    pub(super) fn server_generation(&self) -> u64 {
        *self.changes.borrow()
    }

    /// Returns true if there were `count` changes, and the lanes know the server at `place` by
    /// `id`. A server without an id differs from one with an id.
    pub(super) fn is_same_server(&self, count: u64, place: &str, id: Option<&str>) -> bool {
        let places = self.servers.lock();
        let known = places.get(place).and_then(|seen| seen.server_id.as_deref());
        known == id && self.server_generation() == count
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
        place: &str,
        id: Option<String>,
        data: Option<DataIdentity>,
        dead: Weak<AtomicBool>,
    ) -> ServerChange {
        let mut places = self.servers.lock();
        let seen = places.entry(place.to_owned()).or_default();
        let differs = id.is_some() && seen.server_id.is_some() && id != seen.server_id;
        // Compares identities. If finding none were the criterion, lanes that connect at the same
        // moment would each report the change, and other processes would miss it.
        let emptied = data.is_some() && seen.data.is_some() && data != seen.data;
        let met = match (seen.connected_before, differs || emptied) {
            (false, _) => ServerChange::FirstContact,
            (true, false) => ServerChange::Unchanged,
            (true, true) if id.is_some() && id == seen.server_id => ServerChange::DataLost,
            (true, true) => ServerChange::Replaced,
        };
        if let Some(DataIdentity(Some(space))) = &data {
            self.record_identity(space, met);
        }
        let is_change = matches!(met, ServerChange::DataLost | ServerChange::Replaced);
        seen.connected_before = true;
        if differs {
            seen.close_stale_connections(&id);
        }
        seen.connections.retain(|(_, dead)| dead.strong_count() > 0);
        seen.connections.push((id.clone(), dead));
        seen.server_id = id.or(seen.server_id.take());
        seen.data = data.or(seen.data.take());
        if is_change {
            self.changes.send_modify(|changes| *changes += 1);
        }
        drop(places);
        if is_change {
            tracing::warn!("the store is another server than before, or lost its data");
            self.notify_callbacks();
        }
        met
    }

    /// Returns the identities of the data seen so far, the current one last.
    pub(super) fn identities(&self) -> Vec<Arc<str>> {
        self.identities.lock().clone()
    }

    /// Records an identity that was read without a lane. A lane of that cluster node takes
    /// precedence: an identity that is already recorded stays.
    pub(super) fn learn_identity(&self, space: &str) {
        let mut spaces = self.identities.lock();
        if spaces.is_empty() {
            spaces.push(space.into());
        }
    }

    /// Records an identity. Data that replace lost data of a known server belong to the same store.
    /// Data of another server do not, and clear the earlier identities.
    fn record_identity(&self, space: &str, met: ServerChange) {
        let mut spaces = self.identities.lock();
        if spaces.last().is_some_and(|last| **last == *space) {
            return;
        }
        if met == ServerChange::DataLost {
            spaces.retain(|known| **known != *space);
            if spaces.len() == MAX_IDENTITIES {
                spaces.remove(0);
            }
        } else {
            spaces.clear();
        }
        spaces.push(space.into());
    }

    /// Records a change that was found without a connection: leases may be gone.
    pub(super) fn record_change(&self) {
        self.changes.send_modify(|changes| *changes += 1);
        self.notify_callbacks();
    }

    fn notify_callbacks(&self) {
        let mut living = Vec::new();
        self.callbacks.lock().retain(|tell| {
            living.extend(tell.upgrade());
            tell.strong_count() > 0
        });
        // Outside of the lock: a callback may use the tracker.
        living.iter().for_each(|tell| tell());
    }
}

impl TrackedServer {
    /// Marks the connections to earlier servers as dead. Such a server may still answer reads, from
    /// the data that it had when it was replaced.
    fn close_stale_connections(&self, id: &Option<String>) {
        let others = self.connections.iter().filter(|(other, _)| other.is_some() && other != id);
        for dead in others.filter_map(|(_, dead)| dead.upgrade()) {
            dead.store(true, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, atomic::AtomicUsize};

    use super::*;

    fn count_changes(
        incarnation: &ServerTracker,
    ) -> (Arc<AtomicUsize>, Arc<dyn Fn() + Send + Sync>) {
        let times = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&times);
        let tell: Arc<dyn Fn() + Send + Sync> = Arc::new(move || {
            count.fetch_add(1, Ordering::SeqCst);
        });
        incarnation.on_change(Arc::downgrade(&tell));
        (times, tell)
    }

    #[test]
    fn learned_identity_is_replaced_by_connected_one() {
        let incarnation = ServerTracker::default();
        let met = |space: &str| {
            let data = Some(DataIdentity(Some(space.to_owned())));
            incarnation.record_connection("", Some("a".to_owned()), data, Weak::new())
        };
        incarnation.learn_identity("x");
        assert_eq!(incarnation.identities(), [Arc::<str>::from("x")]);
        assert_eq!(met("y"), ServerChange::FirstContact);
        assert_eq!(incarnation.identities(), [Arc::<str>::from("y")]);
        incarnation.learn_identity("x");
        assert_eq!(incarnation.identities(), [Arc::<str>::from("y")]);
    }

    #[test]
    fn server_change_is_reported_once_to_live_listeners() {
        let incarnation = ServerTracker::default();
        let (times, _alive) = count_changes(&incarnation);
        let (never, dead) = count_changes(&incarnation);
        drop(dead);
        let told = || times.load(Ordering::SeqCst);
        let id = |id: &str| Some(id.to_owned());
        let data = |name: &str| Some(DataIdentity(Some(name.to_owned())));
        let met = |id, data| incarnation.record_connection("", id, data, Weak::new());
        // The first of all, and another lane.
        met(id("a"), data("x"));
        met(id("a"), data("x"));
        assert_eq!(told(), 0);
        // Started anew, and with it goes what it had; whichever of its lanes is the first to know.
        assert_eq!((met(id("b"), data("y")), told()), (ServerChange::Replaced, 1));
        assert_eq!((met(id("b"), data("y")), told()), (ServerChange::Unchanged, 1));
        // A server that does not tell its id: only that it has lost its data.
        assert_eq!((met(None, data("y")), told()), (ServerChange::Unchanged, 1));
        assert_eq!((met(None, data("z")), told()), (ServerChange::Replaced, 2));
        met(id("b"), data("z"));
        assert_eq!(told(), 2);
        // The same server, which has lost its data: leases are gone, its identity stays.
        assert_eq!((met(id("b"), data("u")), told()), (ServerChange::DataLost, 3));
        // By a version that gives them no name, and back.
        assert_eq!((met(id("b"), Some(DataIdentity(None))), told()), (ServerChange::DataLost, 4));
        assert_eq!((met(id("b"), Some(DataIdentity(None))), told()), (ServerChange::Unchanged, 4));
        assert_eq!((met(id("b"), data("v")), told()), (ServerChange::DataLost, 5));
        assert_eq!(never.load(Ordering::SeqCst), 0);
        // Another node of a cluster is no change; nor are the data that it is given to name.
        incarnation.record_connection("b:1", id("c"), None, Weak::new());
        incarnation.record_connection("b:1", id("c"), data("v"), Weak::new());
        incarnation.record_connection("b:1", id("c"), None, Weak::new());
        assert_eq!(told(), 5);
        incarnation.record_connection("b:1", id("d"), None, Weak::new());
        assert_eq!(told(), 6);
    }

    #[test]
    fn connections_to_replaced_server_are_marked_dead() {
        let incarnation = ServerTracker::default();
        let flags: [Arc<AtomicBool>; 4] = Default::default();
        let changes = incarnation.subscribe_changes();
        let met = |id: Option<&str>, flag: usize| {
            incarnation.record_connection(
                "",
                id.map(str::to_owned),
                None,
                Arc::downgrade(&flags[flag]),
            )
        };
        let dead = || flags.each_ref().map(|flag| flag.load(Ordering::SeqCst));
        assert_eq!(met(Some("a"), 0), ServerChange::FirstContact);
        assert_eq!(met(Some("a"), 1), ServerChange::Unchanged);
        // Of one that does not say who it is nothing is known.
        assert_eq!(met(None, 2), ServerChange::Unchanged);
        assert_eq!((dead(), *changes.borrow()), ([false; 4], 0));
        assert_eq!(met(Some("b"), 3), ServerChange::Replaced);
        assert_eq!((dead(), *changes.borrow()), ([true, true, false, false], 1));
        let still = |count, id| incarnation.is_same_server(count, "", id);
        assert!(still(1, Some("b")));
        assert!(!still(1, Some("a")) && !still(0, Some("b")) && !still(1, None));
        let nobody_tells = ServerTracker::default();
        nobody_tells.record_connection("", None, None, Weak::new());
        assert!(
            nobody_tells.is_same_server(0, "", None)
                && !nobody_tells.is_same_server(0, "", Some("a"))
        );
    }

    #[test]
    fn identities_of_lost_data_stay_with_same_server() {
        let incarnation = ServerTracker::default();
        let met = |id: &str, name: &str| {
            let data = Some(DataIdentity(Some(name.to_owned())));
            incarnation.record_connection("", Some(id.to_owned()), data, Weak::new())
        };
        let spaces = || -> Vec<String> {
            incarnation.identities().iter().map(ToString::to_string).collect()
        };
        assert_eq!(spaces(), [""; 0].map(String::from).to_vec());
        met("a", "x");
        // Flushed, and met by two lanes.
        met("a", "y");
        met("a", "y");
        assert_eq!(spaces(), ["x", "y"].map(String::from).to_vec());
        // A replica that took over has them too.
        met("b", "y");
        assert_eq!(spaces(), ["x", "y"].map(String::from).to_vec());
        // Another server has none of them.
        met("c", "z");
        assert_eq!(spaces(), ["z"].map(String::from).to_vec());
        for n in 0..20 {
            met("c", &n.to_string());
        }
        assert_eq!(incarnation.identities().len(), MAX_IDENTITIES);
        assert_eq!(incarnation.identities().last().map(|last| &**last), Some("19"));
    }
}
