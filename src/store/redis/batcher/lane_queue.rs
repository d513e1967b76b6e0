//! `LaneQueue`: calls that wait for a lane, and how a batch takes them.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{
    BatchTransport, CallOutcome, batch_pacing::InFlightBatch, deadline_timer::DeadlineTimer,
    in_doubt_error, outcome_cell::OutcomeCell, round_trip_stats::RoundTripStats,
};
use crate::error::{Error, ErrorKind};

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
    pub(super) in_flight: Vec<InFlightBatch>,
    /// A sender has taken calls that are not on the wire yet.
    pub(super) dequeuing: bool,
    pub(super) last_id: u64,
    pub(super) round_trips: RoundTripStats,
    /// Time after which a batch no longer holds up others.
    pub(super) stall_timeout: Duration,
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
