//! Pacing of a lane's batches: which are in flight, and when the next one may be sent.

use tokio::time::Instant;

use super::{BatchTransport, lane_queue::LaneQueue};

/// Most batches in flight, and most active ones if the server is very far.
pub(super) const MAX_IN_FLIGHT: usize = 64;

/// Times of a batch in flight, and who waits for it.
pub(super) struct InFlightBatch {
    id: u64,
    started_at: Instant,
    /// `None` until the batch takes calls from the queue.
    sent_at: Option<Instant>,
    /// It was in flight before: the callers that have its replies may be about to call again.
    returned: bool,
    /// All of its calls were submitted; no caller waits for them.
    unawaited: bool,
    /// Time by which it is over, unless its runtime is blocked.
    expires_at: Instant,
}

impl<F: BatchTransport> LaneQueue<F> {
    /// Returns the batches that others may wait for. One that takes long may have been answered
    /// already, if its future is not polled or its thread is busy. Others do not wait for that.
    fn active_batches(&self, now: Instant) -> impl Iterator<Item = &InFlightBatch> + Clone {
        let stall = self.stall_timeout.max(4 * self.round_trips.recent_min());
        self.in_flight.iter().filter(move |batch| batch.started_at + stall > now)
    }

    /// Returns true if a call may be sent alone. (If a sender is about to take the queue, the call
    /// has company.)
    pub(super) fn is_idle(&mut self, now: Instant) -> bool {
        self.calls.is_empty()
            && !self.dequeuing
            && self.pending_dequeues(now) == 0
            && self.has_capacity(now, true)
    }

    /// Returns true if few enough batches are active to send another without company. A caller does
    /// not wait for an unawaited batch: a call after a release in the background would otherwise
    /// take two round trips instead of one.
    fn has_capacity(&self, now: Instant, has_caller: bool) -> bool {
        let unawaited = has_caller && self.active_batches(now).any(|batch| batch.unawaited);
        self.in_flight.len() < MAX_IN_FLIGHT
            && self.active_batches(now).count()
                < self.round_trips.max_immediate() + usize::from(unawaited)
    }

    /// Returns how many batches are about to take calls from the queue, without the stalled ones.
    fn pending_dequeues(&mut self, now: Instant) -> usize {
        self.in_flight.retain(|batch| batch.expires_at > now);
        self.active_batches(now).filter(|batch| batch.sent_at.is_none()).count()
    }

    /// Returns true if the queue needs another batch. While a sender takes calls from it, the
    /// answer is no: that sender asks again.
    pub(super) fn needs_batch(&mut self, now: Instant) -> bool {
        if self.calls.is_empty() || self.dequeuing {
            return false;
        }
        let pending = self.pending_dequeues(now);
        let min_calls = if self.active_batches(now).count() - pending == 1 {
            F::PIPELINE_THRESHOLD
        } else {
            F::MAX_WEIGHT
        };
        let is_below_limit = self.in_flight.len() < MAX_IN_FLIGHT
            && self.active_batches(now).count() < self.round_trips.max_active();
        let is_full = is_below_limit && self.calls.len() >= min_calls + F::MAX_WEIGHT * pending;
        is_full
            || (pending == 0
                && self.has_capacity(now, self.calls.iter().any(|call| !call.detached)))
    }

    /// Returns true if the caller of the last call may send the queue now, instead of the task that
    /// was started for it.
    ///
    /// - It does not precede a batch that has returned, which waits for company.
    /// - It sends no calls of other callers. They would get their replies only when this caller is
    ///   polled again, which is not certain. A submitted call is settled once it is on the wire.
    pub(super) fn allows_leader(&self, now: Instant) -> bool {
        if !F::REPEATABLE || self.dequeuing {
            return false;
        }
        let sent = self.active_batches(now).filter(|batch| batch.sent_at.is_some());
        let unawaited = sent.clone().any(|batch| batch.unawaited);
        let has_returned =
            self.active_batches(now).any(|batch| batch.returned && batch.sent_at.is_none());
        if has_returned || sent.count() >= self.round_trips.max_immediate() + usize::from(unawaited)
        {
            return false;
        }
        // From the back: under load the queue is long, and most calls in it have callers.
        let caller_count = self.calls.iter().rev().filter(|call| !call.detached).take(2).count();
        let weight = || self.calls.iter().map(|call| F::weight(&call.command)).sum::<usize>();
        caller_count == 1 && weight() <= F::MAX_WEIGHT
    }

    /// Returns true if there is a batch that will check the queue again.
    pub(super) fn has_in_flight(&self) -> bool {
        !self.in_flight.is_empty()
    }

    /// Adds a batch that is sent now, or one that will take calls from the queue.
    pub(super) fn register_batch(&mut self, is_sent_now: bool, expires_at: Instant) -> u64 {
        self.last_id += 1;
        let now = Instant::now();
        self.in_flight.push(InFlightBatch {
            id: self.last_id,
            started_at: now,
            sent_at: is_sent_now.then_some(now),
            returned: false,
            unawaited: false,
            expires_at,
        });
        self.last_id
    }

    pub(super) fn finish_batch(&mut self, id: u64) {
        let Some(index) = self.in_flight.iter().position(|batch| batch.id == id) else {
            return;
        };
        if let Some(sent_at) = self.in_flight.swap_remove(index).sent_at {
            self.round_trips.record(sent_at.elapsed());
        }
    }

    /// Marks a batch as sent with the calls that it has.
    pub(super) fn mark_sent(&mut self, id: u64, unawaited: bool, expires_at: Instant) {
        self.in_flight.retain(|batch| batch.id != id);
        let now = Instant::now();
        self.in_flight.push(InFlightBatch {
            id,
            started_at: now,
            sent_at: Some(now),
            returned: false,
            unawaited,
            expires_at,
        });
    }

    /// Marks a batch as returned; it will check the queue again.
    pub(super) fn mark_returned(&mut self, id: u64, expires_at: Instant) {
        self.finish_batch(id);
        self.in_flight.push(InFlightBatch {
            id,
            started_at: Instant::now(),
            sent_at: None,
            returned: true,
            unawaited: false,
            expires_at,
        });
    }
}
