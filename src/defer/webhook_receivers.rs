//! Receivers of webhooks, and the slots that they get by the result of their last call.
//!
//! Clients choose where webhooks go, and a client can have many names, ports and paths for one
//! machine. A call is therefore judged twice: by host and port before anything is resolved, and by
//! each address of the host.

mod receiver_load;
mod receiver_slot;

use std::{collections::HashMap, sync::Arc, time::Duration};

use parking_lot::{Mutex, MutexGuard};

use self::receiver_load::{ReceiverId, ReceiverLoad};
pub(super) use self::receiver_slot::ReceiverSlot;
use crate::key::Key;

/// Duration after which a call counts as slow: an acknowledgement takes milliseconds.
const SLOW_THRESHOLD: Duration = Duration::from_secs(1);

/// Most hosts and networks that are remembered without an active call, and most webhooks for which
/// the host is remembered until they get a slot. Clients choose both.
const MAX_REMEMBERED: usize = 1_000;

/// Timeout of the first attempt at an unproven host. The n-th attempt gets n times as long.
const FIRST_ATTEMPT_TIMEOUT: Duration = Duration::from_millis(2_500);

/// Delay before a webhook without a slot is due again. It is not claimed before its host has a free
/// slot.
const NO_SLOT_RETRY_DELAY: Duration = Duration::from_secs(1);

/// Receivers of one worker's webhooks.
#[derive(Default)]
pub(super) struct WebhookReceivers(Mutex<ReceiverTable>);

#[derive(Default)]
struct ReceiverTable {
    receivers: HashMap<ReceiverId, ReceiverLoad>,
    /// Active calls to unproven hosts: their last call was not answered in time, or there was none.
    unproven_calls: usize,
    /// Hosts of webhooks that found no slot.
    rejected_hosts: HashMap<Key, Arc<str>>,
}

/// Capacity that all calls share.
#[derive(Debug, Clone, Copy)]
pub(super) struct WebhookLimits {
    /// Most calls at once.
    pub(super) max_calls: usize,
    /// True while other webhooks wait.
    pub(super) contended: bool,
}

impl WebhookLimits {
    /// Half of the calls. The other half is reserved for proven hosts, which answered their last
    /// call in time.
    fn max_unproven_calls(self) -> usize {
        (self.max_calls / 2).max(1)
    }

    /// Returns the most calls at once to one slow or unresponsive receiver: half of the calls of
    /// its kind.
    fn max_calls_per_slow_receiver(self, proven: bool) -> usize {
        let kind = if proven { self.max_calls } else { self.max_unproven_calls() };
        (kind / 2).max(1)
    }
}

impl WebhookReceivers {
    /// Starts a call. Returns `None` if its host has no free slot;
    /// [`WebhookReceivers::retry_delay`] returns the time until it is due again.
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

    /// Returns the delay before a webhook without a slot is due again. If its host could not be
    /// remembered, the delay is `by_age`, so that it is not claimed in vain again and again.
    pub(super) fn retry_delay(&self, key: &Key, by_age: Duration) -> Duration {
        if self.0.lock().rejected_hosts.contains_key(key) { NO_SLOT_RETRY_DELAY } else { by_age }
    }

    /// Returns a view of the receivers' free slots. It holds the lock of the table.
    pub(super) fn availability(&self, room: WebhookLimits) -> FreeSlotView<'_> {
        FreeSlotView { table: self.0.lock(), limits: room }
    }
}

/// View of the free slots of all receivers.
pub(super) struct FreeSlotView<'a> {
    table: MutexGuard<'a, ReceiverTable>,
    limits: WebhookLimits,
}

impl FreeSlotView<'_> {
    /// Returns true if a webhook is worth a claim: its host is unknown yet, or has a free slot.
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
        let proven = standing.is_some_and(ReceiverLoad::is_proven);
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
            // Other workers may have delivered some of them. Webhooks that still wait are recorded
            // again.
            self.rejected_hosts.clear();
        }
        self.rejected_hosts.insert(key.clone(), Arc::clone(host));
    }

    /// Removes the receiver with the oldest last call if there are more than `MAX_REMEMBERED`.
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

/// Returns host and port of a URL, as they are written. Another spelling counts as another host,
/// but resolves to the same addresses.
fn url_authority(url: &str) -> String {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    rest.split(['/', '?', '#']).next().unwrap_or_default().to_ascii_lowercase()
}

#[cfg(test)]
mod tests;
