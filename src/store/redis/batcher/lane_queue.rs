//! Queue of a lane, and its batches in flight.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{
    BatchTransport, CallOutcome, deadline_timer::DeadlineTimer, in_doubt_error,
    outcome_cell::OutcomeCell,
};
use crate::error::{Error, ErrorKind};

/// Most batches in flight, and most active ones if the server is very far.
const MAX_IN_FLIGHT: usize = 64;

/// Most active batches if the server is near: one that it executes, and those that it reads next.
/// More would only fill the buffers of the connection, and calls that time out there are in doubt.
/// Calls that time out in the queue were not sent.
const MIN_ACTIVE_LIMIT: usize = 4;

/// Additional active batches for each millisecond of round trip.
const ACTIVE_PER_RTT_MS: usize = 4;

/// Most batches in flight without waiting for company, if the server is very far.
const MAX_IMMEDIATE: usize = 8;

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
    pub(super) fn fail(&self, name: &'static str, error: Error) {
        self.cell.complete(Err(in_doubt_error(name, self.attempts, error)));
    }

    /// Fails the call with the error of its last attempt.
    pub(super) fn fail_last_attempt(mut self, name: &'static str, error: &Error) {
        if matches!(error.kind(), ErrorKind::Timeout | ErrorKind::Protocol) {
            // It may have run. The cell stays marked as sent, for a caller that is dropped before
            // it gets this error.
            self.attempts -= 1;
        } else {
            self.undo_attempt();
        }
        self.fail(name, error.clone());
    }

    /// Takes back an attempt that was not sent, or has not run.
    pub(super) fn undo_attempt(&mut self) {
        self.attempts -= 1;
        if self.attempts == 0 {
            self.cell.mark_unsent();
        }
    }

    /// Returns true if the call may be put on the wire now, and marks it as sent.
    pub(super) fn try_mark_sent(&mut self, name: &'static str, now: Instant) -> bool {
        if now >= self.deadline {
            // The caller's timer is late, or its future is not polled.
            self.fail(name, Error::new(ErrorKind::Unavailable, name));
            return false;
        }
        let goes = self.cell.mark_sent();
        self.attempts += u32::from(goes);
        goes
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

/// Shortest durations of recent batches: the round trip, without the work of a busy server or
/// process.
#[derive(Default)]
struct RoundTripStats {
    window_min: Option<Duration>,
    previous_min: Option<Duration>,
    samples: u32,
    /// Of all batches: a busy server does not lengthen the round trip.
    overall_min: Option<Duration>,
}

impl RoundTripStats {
    fn record(&mut self, flight: Duration) {
        self.window_min = Some(self.window_min.map_or(flight, |least| least.min(flight)));
        self.overall_min = self.window_min.into_iter().chain(self.overall_min).min();
        self.samples += 1;
        if self.samples.is_multiple_of(64) {
            self.previous_min = self.window_min.take();
        }
    }

    fn recent_min(&self) -> Duration {
        self.window_min.into_iter().chain(self.previous_min).min().unwrap_or_default()
    }

    /// Returns the most active batches.
    fn max_active(&self) -> usize {
        let millis = self.overall_min.unwrap_or_default().as_millis();
        let more =
            usize::try_from(millis).unwrap_or(MAX_IN_FLIGHT).saturating_mul(ACTIVE_PER_RTT_MS);
        MIN_ACTIVE_LIMIT.saturating_add(more).min(MAX_IN_FLIGHT)
    }

    /// Returns the number of batches in flight up to which no call waits for company. Waiting for a
    /// batch that returns within a millisecond saves the server more than it costs the caller. With
    /// a longer round trip it is the other way round.
    fn max_immediate(&self) -> usize {
        let millis = usize::try_from(self.recent_min().as_millis()).unwrap_or(usize::MAX);
        millis.saturating_add(1).min(MAX_IMMEDIATE)
    }
}

impl<F: BatchTransport> LaneQueue<F> {
    pub(super) fn new(stall: Duration) -> Self {
        let (queue, under_way, way) = (VecDeque::new(), Vec::new(), RoundTripStats::default());
        Self {
            calls: queue,
            timer: DeadlineTimer::default(),
            in_flight: under_way,
            dequeuing: false,
            last_id: 0,
            round_trips: way,
            stall_timeout: stall,
        }
    }

    /// Returns the batches that others may wait for. One that takes long may have been answered
    /// already, if its future is not polled or its thread is busy. Others do not wait for that.
    fn active_batches(&self, now: Instant) -> impl Iterator<Item = &InFlightBatch> + Clone {
        let stall = self.stall_timeout.max(4 * self.round_trips.recent_min());
        self.in_flight.iter().filter(move |flight| flight.started_at + stall > now)
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
    fn has_capacity(&self, now: Instant, for_a_caller: bool) -> bool {
        let unawaited = for_a_caller && self.active_batches(now).any(|flight| flight.unawaited);
        self.in_flight.len() < MAX_IN_FLIGHT
            && self.active_batches(now).count()
                < self.round_trips.max_immediate() + usize::from(unawaited)
    }

    /// Returns how many batches are about to take calls from the queue, without the stalled ones.
    fn pending_dequeues(&mut self, now: Instant) -> usize {
        self.in_flight.retain(|flight| flight.expires_at > now);
        self.active_batches(now).filter(|flight| flight.sent_at.is_none()).count()
    }

    /// Returns true if the queue needs another batch. While a sender takes calls from it, the
    /// answer is no: that sender asks again.
    pub(super) fn needs_batch(&mut self, now: Instant) -> bool {
        if self.calls.is_empty() || self.dequeuing {
            return false;
        }
        let coming = self.pending_dequeues(now);
        let enough = if self.active_batches(now).count() - coming == 1 {
            F::PIPELINE_THRESHOLD
        } else {
            F::MAX_WEIGHT
        };
        let room = self.in_flight.len() < MAX_IN_FLIGHT
            && self.active_batches(now).count() < self.round_trips.max_active();
        let full = room && self.calls.len() >= enough + F::MAX_WEIGHT * coming;
        full || (coming == 0
            && self.has_capacity(now, self.calls.iter().any(|entry| !entry.detached)))
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
        let in_the_air = self.active_batches(now).filter(|flight| flight.sent_at.is_some());
        let unawaited = in_the_air.clone().any(|flight| flight.unawaited);
        let back =
            self.active_batches(now).any(|flight| flight.returned && flight.sent_at.is_none());
        if back || in_the_air.count() >= self.round_trips.max_immediate() + usize::from(unawaited) {
            return false;
        }
        // From the back: under load the queue is long, and most calls in it have callers.
        let callers = self.calls.iter().rev().filter(|entry| !entry.detached).take(2).count();
        let weight = || self.calls.iter().map(|entry| F::weight(&entry.command)).sum::<usize>();
        callers == 1 && weight() <= F::MAX_WEIGHT
    }

    /// Returns true if there is a batch that will check the queue again.
    pub(super) fn has_in_flight(&self) -> bool {
        !self.in_flight.is_empty()
    }

    /// Adds a batch that is sent now, or one that will take calls from the queue.
    pub(super) fn register_batch(&mut self, now: bool, over: Instant) -> u64 {
        self.last_id += 1;
        let begun = Instant::now();
        let (id, since) = (self.last_id, now.then_some(begun));
        self.in_flight.push(InFlightBatch {
            id,
            started_at: begun,
            sent_at: since,
            returned: false,
            unawaited: false,
            expires_at: over,
        });
        self.last_id
    }

    pub(super) fn finish_batch(&mut self, id: u64) {
        let Some(at) = self.in_flight.iter().position(|flight| flight.id == id) else {
            return;
        };
        if let Some(since) = self.in_flight.swap_remove(at).sent_at {
            self.round_trips.record(since.elapsed());
        }
    }

    /// Marks a batch as sent with the calls that it has.
    pub(super) fn mark_sent(&mut self, id: u64, unawaited: bool, over: Instant) {
        self.in_flight.retain(|flight| flight.id != id);
        let begun = Instant::now();
        let since = Some(begun);
        self.in_flight.push(InFlightBatch {
            id,
            started_at: begun,
            sent_at: since,
            returned: false,
            unawaited,
            expires_at: over,
        });
    }

    /// Marks a batch as returned; it will check the queue again.
    pub(super) fn mark_returned(&mut self, id: u64, over: Instant) {
        self.finish_batch(id);
        let begun = Instant::now();
        self.in_flight.push(InFlightBatch {
            id,
            started_at: begun,
            sent_at: None,
            returned: true,
            unawaited: false,
            expires_at: over,
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
        for entry in &self.calls {
            weight += F::weight(&entry.command);
            if weight > F::MAX_WEIGHT {
                break;
            }
            count += 1;
        }
        self.calls.drain(..count).collect()
    }
}
