//! Turns of callbacks, by how the host and its addresses answered last time.
//!
//! Clients choose where calls go, and a client can have many names, ports and paths for one machine. So a call is
//! judged twice: by host and port, before anything is resolved, and by each address that the host has.

mod receiver_health;
mod receiver_slot;

use std::{collections::HashMap, sync::Arc, time::Duration};

use parking_lot::{Mutex, MutexGuard};

use self::receiver_health::{ReceiverHealth, ReceiverId};
pub(super) use self::receiver_slot::ReceiverSlot;
use crate::key::Key;

/// A call that takes longer is slow: an acknowledgement is a matter of milliseconds.
const SLOW_THRESHOLD: Duration = Duration::from_secs(1);

/// Most hosts and addresses that are remembered while no call to them is under way, and most calls of which the host is
/// remembered until they have a turn: clients choose both.
const MAX_REMEMBERED: usize = 1_000;

/// Timeout of a first attempt at a host that has not answered yet; that of the n-th attempt is n times as long.
const FIRST_ATTEMPT_TIMEOUT: Duration = Duration::from_millis(2_500);

/// How soon a call without a turn is due again. It is not claimed before its host has one.
const NO_SLOT_RETRY_DELAY: Duration = Duration::from_secs(1);

/// The hosts of one worker's calls.
#[derive(Default)]
pub(super) struct WebhookReceivers(Mutex<ReceiverTable>);

#[derive(Default)]
struct ReceiverTable {
    receivers: HashMap<ReceiverId, ReceiverHealth>,
    /// Calls under way to hosts that did not answer in time when they were called last, or never were.
    unproven_calls: usize,
    /// Hosts of calls that had no turn.
    rejected_hosts: HashMap<Key, Arc<str>>,
}

/// The room that calls share.
#[derive(Debug, Clone, Copy)]
pub(super) struct WebhookLimits {
    /// Calls at once.
    pub(super) max_calls: usize,
    /// Others wait.
    pub(super) contended: bool,
}

impl WebhookLimits {
    /// The other half is reserved for hosts that answered in time when they were called last.
    fn max_unproven_calls(self) -> usize {
        (self.max_calls / 2).max(1)
    }

    /// Calls at once to one place that is slow or silent: half of what its kind has.
    fn max_calls_per_slow_receiver(self, proven: bool) -> usize {
        let kind = if proven { self.max_calls } else { self.max_unproven_calls() };
        (kind / 2).max(1)
    }
}

impl WebhookReceivers {
    /// Begins a call. `None` if its host has no turn: [`WebhookReceivers::retry_delay`] says when it is due again.
    pub(super) fn try_acquire_slot(
        self: &Arc<Self>,
        key: &Key,
        url: &str,
        room: WebhookLimits,
    ) -> Option<ReceiverSlot> {
        let host: Arc<str> = url_authority(url).into();
        let mut state = self.0.lock();
        if !state.allows_call(&host, room) {
            state.record_rejected_host(key, &host);
            return None;
        }
        state.rejected_hosts.remove(key);
        let standing = state.receivers.entry(ReceiverId::Host(Arc::clone(&host))).or_default();
        standing.active_calls += 1;
        let proven = standing.is_proven();
        state.unproven_calls += usize::from(!proven);
        Some(ReceiverSlot::new(Arc::clone(self), key.clone(), host, proven, room))
    }

    /// How soon a call that had no turn is due again: `by_age` if its host could not be remembered, so that it is not
    /// claimed in vain again and again.
    pub(super) fn retry_delay(&self, key: &Key, by_age: Duration) -> Duration {
        if self.0.lock().rejected_hosts.contains_key(key) { NO_SLOT_RETRY_DELAY } else { by_age }
    }

    /// Which calls have a turn now, for as long as this is kept.
    pub(super) fn availability(&self, room: WebhookLimits) -> ReceiverAvailability<'_> {
        ReceiverAvailability { table: self.0.lock(), limits: room }
    }
}

/// A look at all hosts.
pub(super) struct ReceiverAvailability<'a> {
    table: MutexGuard<'a, ReceiverTable>,
    limits: WebhookLimits,
}

impl ReceiverAvailability<'_> {
    /// Whether a call is worth its claim: its host is not known yet, or has a turn.
    pub(super) fn allows(&self, key: &Key) -> bool {
        self.table
            .rejected_hosts
            .get(key)
            .is_none_or(|host| self.table.allows_call(host, self.limits))
    }
}

impl ReceiverTable {
    fn allows_call(&self, host: &Arc<str>, room: WebhookLimits) -> bool {
        let standing = self.receivers.get(&ReceiverId::Host(Arc::clone(host)));
        let proven = standing.is_some_and(ReceiverHealth::is_proven);
        if !proven && self.unproven_calls >= room.max_unproven_calls() {
            return false;
        }
        let Some(standing) = standing else { return true };
        let most = room.max_calls_per_slow_receiver(proven);
        let addresses = standing.networks.iter().filter_map(|place| self.receivers.get(place));
        addresses.chain([standing]).all(|place| place.allows_call(most, room.contended))
    }

    fn record_rejected_host(&mut self, key: &Key, host: &Arc<str>) {
        if self.rejected_hosts.len() >= MAX_REMEMBERED && !self.rejected_hosts.contains_key(key) {
            // Some of them may have been called by another worker since. Those that wait are learned anew.
            self.rejected_hosts.clear();
        }
        self.rejected_hosts.insert(key.clone(), Arc::clone(host));
    }

    /// Forgets the place that was called longest ago, if there are too many.
    fn evict_oldest(&mut self) {
        if self.receivers.len() <= MAX_REMEMBERED {
            return;
        }
        let idle = self.receivers.iter().filter(|(_, standing)| standing.active_calls == 0);
        let oldest = idle
            .min_by_key(|(_, standing)| standing.last_call_ended_at)
            .map(|(place, _)| place.clone());
        if let Some(oldest) = oldest {
            self.receivers.remove(&oldest);
        }
    }
}

/// Host and port, as far as a URL says so plainly. One that says it in another way is a host of its own; its addresses are
/// what they are.
fn url_authority(url: &str) -> String {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    rest.split(['/', '?', '#']).next().unwrap_or_default().to_ascii_lowercase()
}

#[cfg(test)]
mod tests;
