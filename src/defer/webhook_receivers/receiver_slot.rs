//! Slot of one webhook call, from its start to its end.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::time::Instant;

use super::{
    FIRST_ATTEMPT_TIMEOUT, ReceiverTable, SLOW_THRESHOLD, WebhookLimits, WebhookReceivers,
    receiver_load::{LastResponse, ReceiverId, ReceiverLoad, receiver_networks},
};
use crate::key::Key;

/// Slot of one call, released when dropped.
pub(in crate::defer) struct ReceiverSlot {
    receivers: Arc<WebhookReceivers>,
    key: Key,
    host: Arc<str>,
    proven: bool,
    limits: WebhookLimits,
    started_at: Instant,
    progress: Mutex<CallProgress>,
}

#[derive(Default)]
struct CallProgress {
    /// Networks that count this call as active.
    networks: Vec<ReceiverId>,
    /// The call was given up before anything was sent.
    rejected: bool,
    answered: Option<bool>,
}

impl ReceiverSlot {
    pub(super) fn new(
        hosts: Arc<WebhookReceivers>,
        key: Key,
        host: Arc<str>,
        proven: bool,
        room: WebhookLimits,
    ) -> Self {
        let (since, course) = (Instant::now(), Mutex::default());
        Self {
            receivers: hosts,
            key,
            host,
            proven,
            limits: room,
            started_at: since,
            progress: course,
        }
    }

    /// Returns the time limit of an attempt at an unproven host, below that of the sender. It grows
    /// with each attempt, so that a slow host can answer at last.
    #[cfg_attr(not(any(test, feature = "webhook")), allow(dead_code, reason = "for webhooks only"))]
    pub(in crate::defer) fn attempt_timeout(&self, attempt: u32) -> Option<Duration> {
        (!self.proven).then(|| FIRST_ATTEMPT_TIMEOUT.saturating_mul(attempt.max(1)))
    }

    /// Records the host's addresses. Returns false if one of them has no free slot; then nothing
    /// may be sent.
    #[cfg_attr(not(any(test, feature = "webhook")), allow(dead_code, reason = "for webhooks only"))]
    pub(in crate::defer) fn try_claim_addresses(&self, addresses: &[SocketAddr]) -> bool {
        let (places, mut course) = (receiver_networks(addresses), self.progress.lock());
        let mut state = self.receivers.0.lock();
        if let Some(host) = state.receivers.get_mut(&ReceiverId::Host(Arc::clone(&self.host))) {
            host.networks.clone_from(&places);
        }
        let most = self.limits.max_calls_per_slow_receiver(self.proven);
        let admits = |place| {
            let standing: Option<&ReceiverLoad> = state.receivers.get(place);
            standing.is_none_or(|standing| standing.allows_call(most, self.limits.contended))
        };
        if !places.iter().all(admits) {
            course.rejected = true;
            state.record_rejected_host(&self.key, &self.host);
            return false;
        }
        for place in &places {
            state.receivers.entry(place.clone()).or_default().active_calls += 1;
        }
        course.networks = places;
        true
    }

    /// Records the result of the call.
    pub(in crate::defer) fn record_result(&self, answered: bool) {
        self.progress.lock().answered = Some(answered);
    }
}

impl Drop for ReceiverSlot {
    fn drop(&mut self) {
        let course = std::mem::take(self.progress.get_mut());
        let slow = self.started_at.elapsed() > SLOW_THRESHOLD;
        let last = match course.answered {
            _ if course.rejected => None,
            Some(true) if slow => Some(LastResponse::Slow),
            Some(true) => Some(LastResponse::Prompt),
            // Includes a call that was dropped.
            _ if slow => Some(LastResponse::Unresponsive),
            Some(false) => Some(LastResponse::Unknown),
            None => None,
        };
        let mut state = self.receivers.0.lock();
        state.unproven_calls = state.unproven_calls.saturating_sub(usize::from(!self.proven));
        state.end_call(&ReceiverId::Host(Arc::clone(&self.host)), last);
        // A fast failure says nothing about the address: the port may be closed while others are
        // open.
        let of_address = last.filter(|last| *last != LastResponse::Unknown);
        for place in &course.networks {
            state.end_call(place, of_address);
        }
    }
}

impl ReceiverTable {
    /// Records the end of a call to this receiver.
    fn end_call(&mut self, place: &ReceiverId, last: Option<LastResponse>) {
        let Some(standing) = self.receivers.get_mut(place) else { return };
        standing.active_calls = standing.active_calls.saturating_sub(1);
        standing.last_response = last.unwrap_or(standing.last_response);
        standing.last_call_ended_at = Instant::now();
        if standing.is_idle() {
            self.receivers.remove(place);
        }
        self.evict_oldest();
    }
}
