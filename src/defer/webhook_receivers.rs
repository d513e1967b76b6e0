//! `WebhookReceivers`: the receivers of webhooks, and the slots that they get by the result of
//! their last call.
//!
//! Clients choose where webhooks go, and a client can have many names, ports and paths for one
//! machine. A call is therefore judged twice: by host and port before anything is resolved, and by
//! each address of the host.

mod receiver_load;
mod receiver_slot;

use std::{collections::HashMap, sync::Arc, time::Duration};

use parking_lot::{Mutex, MutexGuard};

use self::receiver_load::{HostOrNetwork, ReceiverLoad};
pub(super) use self::receiver_slot::ReceiverSlot;
use crate::key::Key;

/// Duration after which a call counts as slow: an acknowledgement takes milliseconds.
const SLOW_THRESHOLD: Duration = Duration::from_secs(1);

/// Most hosts and networks that are recorded without an active call, and most webhooks for which
/// the host is recorded until they get a slot. Clients choose both.
const MAX_RECORDED: usize = 1_000;

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
    receivers: HashMap<HostOrNetwork, ReceiverLoad>,
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
    fn max_calls_per_slow_receiver(self, is_proven: bool) -> usize {
        let max_calls = if is_proven { self.max_calls } else { self.max_unproven_calls() };
        (max_calls / 2).max(1)
    }
}

impl WebhookReceivers {
    /// Starts a call. Returns `None` if its host has no free slot;
    /// [`WebhookReceivers::retry_delay`] returns the time until it is due again.
    pub(super) fn try_acquire_slot(
        self: &Arc<Self>,
        key: &Key,
        url: &str,
        limits: WebhookLimits,
    ) -> Option<ReceiverSlot> {
        let host: Arc<str> = url_authority(url).into();
        let mut table = self.0.lock();
        if !table.allows_call(&host, limits) {
            table.record_rejected_host(key, &host);
            return None;
        }
        table.rejected_hosts.remove(key);
        let load = table.receivers.entry(HostOrNetwork::Host(Arc::clone(&host))).or_default();
        load.active_calls += 1;
        let is_proven = load.is_proven();
        table.unproven_calls += usize::from(!is_proven);
        Some(ReceiverSlot::new(Arc::clone(self), key.clone(), host, is_proven, limits))
    }

    /// Returns the delay before a webhook without a slot is due again. If its host could not be
    /// recorded, the delay is `age_backoff`, so that it is not claimed in vain again and again.
    pub(super) fn retry_delay(&self, key: &Key, age_backoff: Duration) -> Duration {
        let is_recorded = self.0.lock().rejected_hosts.contains_key(key);
        if is_recorded { NO_SLOT_RETRY_DELAY } else { age_backoff }
    }

    /// Returns a view of the receivers' free slots. It holds the lock of the table.
    pub(super) fn free_slots(&self, limits: WebhookLimits) -> FreeSlotView<'_> {
        FreeSlotView { table: self.0.lock(), limits }
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
    fn allows_call(&self, host: &Arc<str>, limits: WebhookLimits) -> bool {
        let load = self.receivers.get(&HostOrNetwork::Host(Arc::clone(host)));
        let is_proven = load.is_some_and(ReceiverLoad::is_proven);
        if !is_proven && self.unproven_calls >= limits.max_unproven_calls() {
            return false;
        }
        let Some(load) = load else { return true };
        let max_calls = limits.max_calls_per_slow_receiver(is_proven);
        let network_loads = load.networks.iter().filter_map(|network| self.receivers.get(network));
        network_loads.chain([load]).all(|load| load.allows_call(max_calls, limits.contended))
    }

    fn record_rejected_host(&mut self, key: &Key, host: &Arc<str>) {
        if self.rejected_hosts.len() >= MAX_RECORDED && !self.rejected_hosts.contains_key(key) {
            // Other workers may have delivered some of them. Webhooks that still wait are recorded
            // again.
            self.rejected_hosts.clear();
        }
        self.rejected_hosts.insert(key.clone(), Arc::clone(host));
    }

    /// Removes the receiver with the oldest last call if there are more than `MAX_RECORDED`.
    fn evict_oldest(&mut self) {
        if self.receivers.len() <= MAX_RECORDED {
            return;
        }
        let idle = self.receivers.iter().filter(|(_, load)| load.active_calls == 0);
        let oldest = idle
            .min_by_key(|(_, load)| load.last_call_ended_at)
            .map(|(receiver, _)| receiver.clone());
        if let Some(oldest) = oldest {
            self.receivers.remove(&oldest);
        }
    }
}

/// Returns host and port of a URL, as they are written. Another spelling counts as another host,
/// but resolves to the same addresses.
fn url_authority(url: &str) -> String {
    let after_scheme = url.split_once("://").map_or(url, |(_, after_scheme)| after_scheme);
    after_scheme.split(['/', '?', '#']).next().unwrap_or_default().to_ascii_lowercase()
}

#[cfg(test)]
mod tests;
