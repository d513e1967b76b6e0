//! `LaneQueue`: calls that wait for a lane, its batches in flight, and when the next one is sent.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{
    BatchTransport, CallOutcome, deadline_timer::DeadlineTimer, in_doubt_error,
    outcome_cell::OutcomeCell, round_trip_stats::RoundTripStats,
};
use crate::error::{Error, ErrorKind};

/// Most batches in flight, and most active ones if the server is very far.
pub(super) const MAX_IN_FLIGHT: usize = 64;

/// Command, and the cell of its caller.
pub(super) struct QueuedCall<F: BatchTransport> {
    pub(super) command: F::Command,
    pub(super) cell: Arc<OutcomeCell<CallOutcome<F>>>,
    pub(super) deadline: Instant,
    /// It was submitted, and is sent even if the caller is gone.
    pub(super) detached: bool,
    /// Number of times that it was sent and may have run.
    pub(super) attempts: u32,
}

impl<F: BatchTransport> QueuedCall<F> {
    pub(super) fn fail(&self, script_name: &'static str, error: Error) {
        self.cell.complete(Err(in_doubt_error(script_name, self.attempts, error)));
    }

    /// Fails the call with the error of its last attempt.
    pub(super) fn fail_last_attempt(mut self, script_name: &'static str, error: &Error) {
        if matches!(error.kind(), ErrorKind::Timeout | ErrorKind::Protocol) {
            // It may have run. The cell stays marked as sent, for a caller that is dropped before
            // it gets this error.
            self.attempts -= 1;
        } else {
            self.undo_attempt();
        }
        self.fail(script_name, error.clone());
    }

    /// Takes back an attempt that was not sent, or has not run.
    pub(super) fn undo_attempt(&mut self) {
        self.attempts -= 1;
        if self.attempts == 0 {
            self.cell.mark_unsent();
        }
    }

    /// Returns true if the call may be put on the wire now, and marks it as sent.
    pub(super) fn try_mark_sent(&mut self, script_name: &'static str, now: Instant) -> bool {
        if now >= self.deadline {
            // The caller's timer is late, or its future is not polled.
            self.fail(script_name, Error::new(ErrorKind::Unavailable, script_name));
            return false;
        }
        let is_sent = self.cell.mark_sent();
        self.attempts += u32::from(is_sent);
        is_sent
    }
}

pub(super) struct LaneQueue<F: BatchTransport> {
    pub(super) calls: VecDeque<QueuedCall<F>>,
    pub(super) timer: DeadlineTimer<F>,
    in_flight: Vec<InFlightBatch>,
    /// A sender has taken calls that are not on the wire yet.
    dequeuing: bool,
    last_id: u64,
    round_trips: RoundTripStats,
    /// Time after which a batch no longer holds up others.
    stall_timeout: Duration,
}

struct InFlightBatch {
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
    pub(super) fn new(stall_timeout: Duration) -> Self {
        Self {
            calls: VecDeque::new(),
            timer: DeadlineTimer::default(),
            in_flight: Vec::new(),
            dequeuing: false,
            last_id: 0,
            round_trips: RoundTripStats::default(),
            stall_timeout,
        }
    }

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

    /// Begins to take calls; false if another sender does.
    pub(super) fn begin_dequeue(&mut self) -> bool {
        !std::mem::replace(&mut self.dequeuing, true)
    }

    /// Called when the taken calls are on the wire.
    pub(super) fn end_dequeue(&mut self) {
        self.dequeuing = false;
    }

    /// Takes the front of the queue, as much as fits in one batch.
    pub(super) fn drain_batch(&mut self) -> Vec<QueuedCall<F>> {
        let (mut count, mut weight) = (0, 0);
        for call in &self.calls {
            weight += F::weight(&call.command);
            if weight > F::MAX_WEIGHT {
                break;
            }
            count += 1;
        }
        self.calls.drain(..count).collect()
    }
}
