//! Who stands before a lane, and who is under way on it.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{
    BatchTransport, CallOutcome, deadline_timer::DeadlineTimer, in_doubt_error,
    outcome_cell::OutcomeCell,
};
use crate::error::{Error, ErrorKind};

/// Flights under way at most, and lively ones where the way to the server is very long.
const MAX_IN_FLIGHT: usize = 64;

/// Lively flights at most where the server is near: one that it is at, and those that it reads next. More would only lie in
/// the buffers of the connection, from where nothing comes back: when their deadline passes, nobody knows whether they
/// have run. What stands in the queue then was not sent.
const MIN_ACTIVE_LIMIT: usize = 4;

/// Lively flights more for each ms of the way.
const ACTIVE_PER_RTT_MS: usize = 4;

/// Flights under way up to which nobody waits for company, where the way to the server is very long.
const MAX_IMMEDIATE: usize = 8;

/// A step and who waits for it.
pub(super) struct QueuedCall<F: BatchTransport> {
    pub(super) command: F::Command,
    pub(super) cell: Arc<OutcomeCell<CallOutcome<F>>>,
    pub(super) deadline: Instant,
    /// It was put, and is sent whoever listens.
    pub(super) detached: bool,
    /// How often it was sent, and may have run.
    pub(super) attempts: u32,
}

impl<F: BatchTransport> QueuedCall<F> {
    pub(super) fn fail(&self, name: &'static str, error: Error) {
        self.cell.complete(Err(in_doubt_error(name, self.attempts, error)));
    }

    /// The last time it was sent came to this.
    pub(super) fn fail_last_attempt(mut self, name: &'static str, error: &Error) {
        if matches!(error.kind(), ErrorKind::Timeout | ErrorKind::Protocol) {
            // It may have run. Whoever leaves before this is delivered is to leave what was sent.
            self.attempts -= 1;
        } else {
            self.undo_attempt();
        }
        self.fail(name, error.clone());
    }

    /// It was not sent after all, or has not run.
    pub(super) fn undo_attempt(&mut self) {
        self.attempts -= 1;
        if self.attempts == 0 {
            self.cell.mark_unsent();
        }
    }

    /// Whether it may be put on the wire now. From here on it counts as sent.
    pub(super) fn try_mark_sent(&mut self, name: &'static str, now: Instant) -> bool {
        if now >= self.deadline {
            // Its caller's timer is late, or nobody looks at it.
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
    /// Somebody has steps in hand that are not on the wire yet.
    dequeuing: bool,
    last_id: u64,
    round_trips: RoundTripStats,
    /// How long nobody waits for one that is under way.
    stall_timeout: Duration,
}

struct InFlightBatch {
    id: u64,
    started_at: Instant,
    /// When it took off; `None`: it has taken nothing from the queue yet, but will.
    sent_at: Option<Instant>,
    /// It has been under way before: those who had its answers may be about to come.
    returned: bool,
    /// Nobody waits for any of its steps: they were put.
    unawaited: bool,
    /// It is over by then, or stands still.
    expires_at: Instant,
}

/// How long flights take: the least of the last ones, which is the way there and back, and not the work of
/// a server or a process that has much to do.
#[derive(Default)]
struct RoundTripStats {
    window_min: Option<Duration>,
    previous_min: Option<Duration>,
    samples: u32,
    /// Of all: a server that has much to do is no longer way.
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

    /// Lively flights at most.
    fn max_active(&self) -> usize {
        let millis = self.overall_min.unwrap_or_default().as_millis();
        let more =
            usize::try_from(millis).unwrap_or(MAX_IN_FLIGHT).saturating_mul(ACTIVE_PER_RTT_MS);
        MIN_ACTIVE_LIMIT.saturating_add(more).min(MAX_IN_FLIGHT)
    }

    /// Flights up to which nobody waits for company. To wait for one that is back within a millisecond
    /// spares the server more than it costs the caller; on a longer way it is the other way round.
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

    /// Those that somebody may wait for. One that takes long may have been answered long ago: nobody looks at its
    /// future, or its thread is at something else. The others do not wait for that.
    fn active_batches(&self, now: Instant) -> impl Iterator<Item = &InFlightBatch> + Clone {
        let stall = self.stall_timeout.max(4 * self.round_trips.recent_min());
        self.in_flight.iter().filter(move |flight| flight.started_at + stall > now)
    }

    /// Whether a call may go by itself. (If somebody is about to take the queue, it has company.)
    pub(super) fn is_idle(&mut self, now: Instant) -> bool {
        self.calls.is_empty()
            && !self.dequeuing
            && self.pending_dequeues(now) == 0
            && self.has_capacity(now, true)
    }

    /// Whether as few are under way as may be without company. A caller does not wait for one flight that nobody waits
    /// for: behind a lock that was given back in the background the next call would take two ways instead of one.
    fn has_capacity(&self, now: Instant, for_a_caller: bool) -> bool {
        let unawaited = for_a_caller && self.active_batches(now).any(|flight| flight.unawaited);
        self.in_flight.len() < MAX_IN_FLIGHT
            && self.active_batches(now).count()
                < self.round_trips.max_immediate() + usize::from(unawaited)
    }

    /// How many are about to take something out of the queue. Those that stand still are left out.
    fn pending_dequeues(&mut self, now: Instant) -> usize {
        self.in_flight.retain(|flight| flight.expires_at > now);
        self.active_batches(now).filter(|flight| flight.sent_at.is_none()).count()
    }

    /// Whether another flight should be made for those in the queue. While somebody is taking steps out of
    /// it the answer is no: he asks again.
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

    /// Whether a caller whose step stands last may go now with the others, before whoever was called for them
    /// comes. Not before one that is back: that one waits for company. And not with callers: they would hear
    /// of their answers only when this one is polled again, which nobody has promised. What was merely put
    /// is done when it is on the wire.
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
        // Under load there are many, and most of them are callers.
        let callers = self.calls.iter().rev().filter(|entry| !entry.detached).take(2).count();
        let weight = || self.calls.iter().map(|entry| F::weight(&entry.command)).sum::<usize>();
        callers == 1 && weight() <= F::MAX_WEIGHT
    }

    /// Whether somebody will look at the queue again.
    pub(super) fn has_in_flight(&self) -> bool {
        !self.in_flight.is_empty()
    }

    /// A flight that takes off now, or one that will come and take what stands in the queue.
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

    /// It takes off with what it has.
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

    /// It is back, and will look at the queue again.
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

    /// Begins to take; false if somebody else does.
    pub(super) fn begin_dequeue(&mut self) -> bool {
        !std::mem::replace(&mut self.dequeuing, true)
    }

    /// What was taken is on the wire.
    pub(super) fn end_dequeue(&mut self) {
        self.dequeuing = false;
    }

    /// Takes out the front of the queue, as much as one flight takes.
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
