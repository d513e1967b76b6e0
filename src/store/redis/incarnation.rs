//! Which server it is: after a restart or a failover, what was held may be gone.

use std::{
    collections::HashMap,
    sync::{
        Weak,
        atomic::{AtomicBool, Ordering},
    },
};

use parking_lot::Mutex;
use tokio::sync::watch;

/// Who wants to know.
type Tell = Weak<dyn Fn() + Send + Sync>;

#[derive(Default)]
pub(super) struct Incarnation {
    /// By address, if there are several.
    seen: Mutex<HashMap<String, Seen>>,
    tell: Mutex<Vec<Tell>>,
    /// How many there have been after the first.
    changes: watch::Sender<u64>,
}

#[derive(Default)]
struct Seen {
    /// There has been a connection before.
    any: bool,
    id: Option<String>,
    /// Of each connection: to whom, and what makes it dead.
    connections: Vec<(Option<String>, Weak<AtomicBool>)>,
}

/// What is new about the server that a connection leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Met {
    First,
    Known,
    /// Without the data it had, or another lane of ours has met it between our writing there and now.
    Emptied,
    Other,
}

impl Incarnation {
    pub(super) fn on_change(&self, tell: Tell) {
        self.tell.lock().push(tell);
    }

    /// Tells of each change from now on.
    pub(super) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// How many there have been after the first.
    pub(super) fn count(&self) -> u64 {
        *self.changes.borrow()
    }

    /// Whether the lanes still lead where they did at that count, and this is the server they know there. One that is
    /// known is not one that does not say who it is.
    pub(super) fn is_still(&self, count: u64, place: &str, id: Option<&str>) -> bool {
        let places = self.seen.lock();
        let known = places.get(place).and_then(|seen| seen.id.as_deref());
        known == id && self.count() == count
    }

    /// A lane has a new connection, which ends when `dead` is set: to the server of this id, if it tells, and
    /// without our data, if `blank`.
    pub(super) fn met(
        &self,
        place: &str,
        id: Option<String>,
        blank: bool,
        dead: Weak<AtomicBool>,
    ) -> Met {
        let mut places = self.seen.lock();
        let seen = places.entry(place.to_owned()).or_default();
        let differs = id.is_some() && seen.id.is_some() && id != seen.id;
        let met = match (seen.any, differs || blank) {
            (false, _) => Met::First,
            (true, false) => Met::Known,
            (true, true) if id.is_some() && id == seen.id => Met::Emptied,
            (true, true) => Met::Other,
        };
        let is_change = matches!(met, Met::Emptied | Met::Other);
        seen.any = true;
        if differs {
            seen.leave(&id);
        }
        seen.connections.retain(|(_, dead)| dead.strong_count() > 0);
        seen.connections.push((id.clone(), dead));
        seen.id = id.or(seen.id.take());
        if is_change {
            self.changes.send_modify(|changes| *changes += 1);
        }
        drop(places);
        if is_change {
            tracing::warn!("the store is another server than before, or has lost its data");
            self.tell();
        }
        met
    }

    /// Something is elsewhere than it was, and what was held may be gone.
    pub(super) fn changed(&self) {
        self.changes.send_modify(|changes| *changes += 1);
        self.tell();
    }

    fn tell(&self) {
        let mut living = Vec::new();
        self.tell.lock().retain(|tell| {
            living.extend(tell.upgrade());
            tell.strong_count() > 0
        });
        // Outside the lock: they may do what they like.
        living.iter().for_each(|tell| tell());
    }
}

impl Seen {
    /// Ends the connections to the server before this one. It may still answer reads, out of what it had when
    /// it was replaced.
    fn leave(&self, id: &Option<String>) {
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

    fn counted(incarnation: &Incarnation) -> (Arc<AtomicUsize>, Arc<dyn Fn() + Send + Sync>) {
        let times = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&times);
        let tell: Arc<dyn Fn() + Send + Sync> = Arc::new(move || {
            count.fetch_add(1, Ordering::SeqCst);
        });
        incarnation.on_change(Arc::downgrade(&tell));
        (times, tell)
    }

    #[test]
    fn another_server_is_told_once_and_to_those_who_live() {
        let incarnation = Incarnation::default();
        let (times, _alive) = counted(&incarnation);
        let (never, dead) = counted(&incarnation);
        drop(dead);
        let told = || times.load(Ordering::SeqCst);
        let id = |id: &str| Some(id.to_owned());
        let met = |id, blank| incarnation.met("", id, blank, Weak::new());
        // The first of all, blank as it is, and another lane.
        met(id("a"), true);
        met(id("a"), false);
        assert_eq!(told(), 0);
        met(id("b"), false);
        assert_eq!(told(), 1);
        met(id("b"), false);
        assert_eq!(told(), 1);
        // A server that does not tell its id: only that it is empty.
        met(None, false);
        assert_eq!(told(), 1);
        assert_eq!((met(None, true), told()), (Met::Other, 2));
        met(id("b"), false);
        assert_eq!(told(), 2);
        // The same server, which has lost its data: what was held is gone, but all else of it is known.
        assert_eq!((met(id("b"), true), told()), (Met::Emptied, 3));
        assert_eq!(never.load(Ordering::SeqCst), 0);
        // Another node of a cluster is no change.
        incarnation.met("b:1", id("c"), false, Weak::new());
        assert_eq!(told(), 3);
        incarnation.met("b:1", id("d"), false, Weak::new());
        assert_eq!(told(), 4);
    }

    #[test]
    fn connections_to_the_server_before_are_ended() {
        let incarnation = Incarnation::default();
        let flags: [Arc<AtomicBool>; 4] = Default::default();
        let changes = incarnation.changes();
        let met = |id: Option<&str>, flag: usize| {
            incarnation.met("", id.map(str::to_owned), false, Arc::downgrade(&flags[flag]))
        };
        let dead = || flags.each_ref().map(|flag| flag.load(Ordering::SeqCst));
        assert_eq!(met(Some("a"), 0), Met::First);
        assert_eq!(met(Some("a"), 1), Met::Known);
        // Of one that does not say who it is nothing is known.
        assert_eq!(met(None, 2), Met::Known);
        assert_eq!((dead(), *changes.borrow()), ([false; 4], 0));
        assert_eq!(met(Some("b"), 3), Met::Other);
        assert_eq!((dead(), *changes.borrow()), ([true, true, false, false], 1));
        let still = |count, id| incarnation.is_still(count, "", id);
        assert!(still(1, Some("b")));
        assert!(!still(1, Some("a")) && !still(0, Some("b")) && !still(1, None));
        let nobody_tells = Incarnation::default();
        nobody_tells.met("", None, false, Weak::new());
        assert!(nobody_tells.is_still(0, "", None) && !nobody_tells.is_still(0, "", Some("a")));
    }
}
