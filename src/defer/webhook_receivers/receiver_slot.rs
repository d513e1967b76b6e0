//! One call, from its turn to its end.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::time::Instant;

use super::{
    FIRST_ATTEMPT_TIMEOUT, ReceiverTable, SLOW_THRESHOLD, WebhookLimits, WebhookReceivers,
    receiver_health::{LastResponse, ReceiverHealth, ReceiverId, receiver_networks},
};
use crate::key::Key;

/// The turn of one call. It ends when this is dropped.
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
    /// The call counts there.
    networks: Vec<ReceiverId>,
    /// It was called off before it was sent.
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

    /// Bound of the call, below that of whoever makes it: a host that has not answered yet is given little time at first, and
    /// more with each attempt, since a slow one has to be able to answer at last.
    #[cfg_attr(not(any(test, feature = "webhook")), allow(dead_code, reason = "no sender"))]
    pub(in crate::defer) fn attempt_timeout(&self, attempt: u32) -> Option<Duration> {
        (!self.proven).then(|| FIRST_ATTEMPT_TIMEOUT.saturating_mul(attempt.max(1)))
    }

    /// The host has these addresses. False if one of them has no turn: then nothing must be sent.
    #[cfg_attr(not(any(test, feature = "webhook")), allow(dead_code, reason = "no sender"))]
    pub(in crate::defer) fn try_claim_addresses(&self, addresses: &[SocketAddr]) -> bool {
        let (places, mut course) = (receiver_networks(addresses), self.progress.lock());
        let mut state = self.receivers.0.lock();
        if let Some(host) = state.receivers.get_mut(&ReceiverId::Host(Arc::clone(&self.host))) {
            host.networks.clone_from(&places);
        }
        let most = self.limits.max_calls_per_slow_receiver(self.proven);
        let admits = |place| {
            let standing: Option<&ReceiverHealth> = state.receivers.get(place);
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

    /// The call has ended.
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
            // Also of a call that was given up.
            _ if slow => Some(LastResponse::Unresponsive),
            Some(false) => Some(LastResponse::Unknown),
            None => None,
        };
        let mut state = self.receivers.0.lock();
        state.unproven_calls = state.unproven_calls.saturating_sub(usize::from(!self.proven));
        state.end_call(&ReceiverId::Host(Arc::clone(&self.host)), last);
        // What failed at once says nothing of the address: the port may be closed, and others open.
        let of_address = last.filter(|last| *last != LastResponse::Unknown);
        for place in &course.networks {
            state.end_call(place, of_address);
        }
    }
}

impl ReceiverTable {
    /// A call to this place has ended.
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
