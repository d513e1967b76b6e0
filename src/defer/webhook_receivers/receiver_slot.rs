//! `ReceiverSlot`: the slot of one webhook call, from its start to its end.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::time::Instant;

use super::{
    FIRST_ATTEMPT_TIMEOUT, ReceiverTable, SLOW_THRESHOLD, WebhookLimits, WebhookReceivers,
    receiver_load::{HostOrNetwork, LastResponse, ReceiverLoad, receiver_networks},
};
use crate::key::Key;

/// Slot of one call, released when dropped.
pub(in crate::defer) struct ReceiverSlot {
    receivers: Arc<WebhookReceivers>,
    key: Key,
    host: Arc<str>,
    is_proven: bool,
    limits: WebhookLimits,
    started_at: Instant,
    progress: Mutex<CallProgress>,
}

#[derive(Default)]
struct CallProgress {
    /// Networks that count this call as active.
    networks: Vec<HostOrNetwork>,
    /// The call was given up before anything was sent.
    rejected: bool,
    answered: Option<bool>,
}

impl ReceiverSlot {
    pub(super) fn new(
        receivers: Arc<WebhookReceivers>,
        key: Key,
        host: Arc<str>,
        is_proven: bool,
        limits: WebhookLimits,
    ) -> Self {
        Self {
            receivers,
            key,
            host,
            is_proven,
            limits,
            started_at: Instant::now(),
            progress: Mutex::default(),
        }
    }

    /// Returns the time limit of an attempt at an unproven host, below that of the sender. It grows
    /// with each attempt, so that a slow host can answer at last.
    #[cfg_attr(not(any(test, feature = "webhook")), allow(dead_code, reason = "for webhooks only"))]
    pub(in crate::defer) fn attempt_timeout(&self, attempt: u32) -> Option<Duration> {
        (!self.is_proven).then(|| FIRST_ATTEMPT_TIMEOUT.saturating_mul(attempt.max(1)))
    }

    /// Records the host's addresses. Returns false if one of them has no free slot; then nothing
    /// may be sent.
    #[cfg_attr(not(any(test, feature = "webhook")), allow(dead_code, reason = "for webhooks only"))]
    pub(in crate::defer) fn try_claim_addresses(&self, addresses: &[SocketAddr]) -> bool {
        let (networks, mut progress) = (receiver_networks(addresses), self.progress.lock());
        let mut table = self.receivers.0.lock();
        if let Some(host) = table.receivers.get_mut(&HostOrNetwork::Host(Arc::clone(&self.host))) {
            host.networks.clone_from(&networks);
        }
        let max_calls = self.limits.max_calls_per_slow_receiver(self.is_proven);
        let allows_call = |network| {
            let load: Option<&ReceiverLoad> = table.receivers.get(network);
            load.is_none_or(|load| load.allows_call(max_calls, self.limits.contended))
        };
        if !networks.iter().all(allows_call) {
            progress.rejected = true;
            table.record_rejected_host(&self.key, &self.host);
            return false;
        }
        for network in &networks {
            table.receivers.entry(network.clone()).or_default().active_calls += 1;
        }
        progress.networks = networks;
        true
    }

    /// Records the result of the call.
    pub(in crate::defer) fn record_result(&self, answered: bool) {
        self.progress.lock().answered = Some(answered);
    }
}

impl Drop for ReceiverSlot {
    fn drop(&mut self) {
        let progress = std::mem::take(self.progress.get_mut());
        let is_slow = self.started_at.elapsed() > SLOW_THRESHOLD;
        let response = match progress.answered {
            _ if progress.rejected => None,
            Some(true) if is_slow => Some(LastResponse::Slow),
            Some(true) => Some(LastResponse::Prompt),
            // Includes a call that was dropped.
            _ if is_slow => Some(LastResponse::Unresponsive),
            Some(false) => Some(LastResponse::Unknown),
            None => None,
        };
        let mut table = self.receivers.0.lock();
        table.unproven_calls = table.unproven_calls.saturating_sub(usize::from(!self.is_proven));
        table.end_call(&HostOrNetwork::Host(Arc::clone(&self.host)), response);
        // A fast failure says nothing about the address: the port may be closed while others are
        // open.
        let network_response = response.filter(|response| *response != LastResponse::Unknown);
        for network in &progress.networks {
            table.end_call(network, network_response);
        }
    }
}

impl ReceiverTable {
    /// Records the end of a call to this receiver.
    fn end_call(&mut self, receiver: &HostOrNetwork, response: Option<LastResponse>) {
        let Some(load) = self.receivers.get_mut(receiver) else { return };
        load.active_calls = load.active_calls.saturating_sub(1);
        load.last_response = response.unwrap_or(load.last_response);
        load.last_call_ended_at = Instant::now();
        if load.is_idle() {
            self.receivers.remove(receiver);
        }
        self.evict_oldest();
    }
}
