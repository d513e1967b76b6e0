//! Turns of callbacks, by how the host and its addresses answered last time.
//!
//! Clients choose where calls go, and a client can have many names, ports and paths for one machine. So a call is
//! judged twice: by host and port, before anything is resolved, and by each address that the host has.

mod place;
mod turn;

use std::{collections::HashMap, sync::Arc, time::Duration};

use parking_lot::{Mutex, MutexGuard};

use self::place::{Place, Standing};
pub(super) use self::turn::Turn;
use crate::key::Key;

/// A call that takes longer is slow: an acknowledgement is a matter of milliseconds.
const SLOW: Duration = Duration::from_secs(1);

/// Most hosts and addresses that are remembered while no call to them is under way, and most calls of which the host is
/// remembered until they have a turn: clients choose both.
const KNOWN: usize = 1_000;

/// Timeout of a first attempt at a host that has not answered yet; that of the n-th attempt is n times as long.
const FIRST: Duration = Duration::from_millis(2_500);

/// How soon a call without a turn is due again. It is not claimed before its host has one.
const AGAIN: Duration = Duration::from_secs(1);

/// The hosts of one worker's calls.
#[derive(Default)]
pub(super) struct Hosts(Mutex<State>);

#[derive(Default)]
struct State {
    places: HashMap<Place, Standing>,
    /// Calls under way to hosts that did not answer in time when they were called last, or never were.
    unproven: usize,
    /// Hosts of calls that had no turn.
    refused: HashMap<Key, Arc<str>>,
}

/// The room that calls share.
#[derive(Debug, Clone, Copy)]
pub(super) struct CallRoom {
    /// Calls at once.
    pub(super) most: usize,
    /// Others wait.
    pub(super) crowded: bool,
}

impl CallRoom {
    /// The other half is reserved for hosts that answered in time when they were called last.
    fn unproven(self) -> usize {
        (self.most / 2).max(1)
    }

    /// Calls at once to one place that is slow or silent: half of what its kind has.
    fn of_slow(self, proven: bool) -> usize {
        let kind = if proven { self.most } else { self.unproven() };
        (kind / 2).max(1)
    }
}

impl Hosts {
    /// Begins a call. `None` if its host has no turn: [`Hosts::delay`] says when it is due again.
    pub(super) fn enter(self: &Arc<Self>, key: &Key, url: &str, room: CallRoom) -> Option<Turn> {
        let host: Arc<str> = authority(url).into();
        let mut state = self.0.lock();
        if !state.admits(&host, room) {
            state.remember(key, &host);
            return None;
        }
        state.refused.remove(key);
        let standing = state.places.entry(Place::Host(Arc::clone(&host))).or_default();
        standing.calls += 1;
        let proven = standing.is_proven();
        state.unproven += usize::from(!proven);
        Some(Turn::new(Arc::clone(self), key.clone(), host, proven, room))
    }

    /// How soon a call that had no turn is due again: `by_age` if its host could not be remembered, so that it is not
    /// claimed in vain again and again.
    pub(super) fn delay(&self, key: &Key, by_age: Duration) -> Duration {
        if self.0.lock().refused.contains_key(key) { AGAIN } else { by_age }
    }

    /// Which calls have a turn now, for as long as this is kept.
    pub(super) fn turns(&self, room: CallRoom) -> Turns<'_> {
        Turns { state: self.0.lock(), room }
    }
}

/// A look at all hosts.
pub(super) struct Turns<'a> {
    state: MutexGuard<'a, State>,
    room: CallRoom,
}

impl Turns<'_> {
    /// Whether a call is worth its claim: its host is not known yet, or has a turn.
    pub(super) fn has(&self, key: &Key) -> bool {
        self.state.refused.get(key).is_none_or(|host| self.state.admits(host, self.room))
    }
}

impl State {
    fn admits(&self, host: &Arc<str>, room: CallRoom) -> bool {
        let standing = self.places.get(&Place::Host(Arc::clone(host)));
        let proven = standing.is_some_and(Standing::is_proven);
        if !proven && self.unproven >= room.unproven() {
            return false;
        }
        let Some(standing) = standing else { return true };
        let most = room.of_slow(proven);
        let addresses = standing.addresses.iter().filter_map(|place| self.places.get(place));
        addresses.chain([standing]).all(|place| place.admits(most, room.crowded))
    }

    fn remember(&mut self, key: &Key, host: &Arc<str>) {
        if self.refused.len() >= KNOWN && !self.refused.contains_key(key) {
            // Some of them may have been called by another worker since. Those that wait are learned anew.
            self.refused.clear();
        }
        self.refused.insert(key.clone(), Arc::clone(host));
    }

    /// Forgets the place that was called longest ago, if there are too many.
    fn forget_one(&mut self) {
        if self.places.len() <= KNOWN {
            return;
        }
        let idle = self.places.iter().filter(|(_, standing)| standing.calls == 0);
        let oldest =
            idle.min_by_key(|(_, standing)| standing.called).map(|(place, _)| place.clone());
        if let Some(oldest) = oldest {
            self.places.remove(&oldest);
        }
    }
}

/// Host and port, as far as a URL says so plainly. One that says it in another way is a host of its own; its addresses are
/// what they are.
fn authority(url: &str) -> String {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    rest.split(['/', '?', '#']).next().unwrap_or_default().to_ascii_lowercase()
}

#[cfg(test)]
mod tests;
