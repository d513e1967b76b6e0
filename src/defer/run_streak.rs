//! `RunStreak`: progress of a job chain, and when the chain ends.

use std::{sync::atomic::Ordering, time::Duration};

use tokio::time::Instant;

use super::job_chain::{JobChain, ShutdownPhase};
use crate::store::Settlement;

/// Longest chain. After it the lock is released even if it has more jobs; the worker that receives
/// the next wake-up continues.
const MAX_STREAK: u32 = 64;

/// Length of a chain while other locks wait for a slot. A chain ends when it has reached both this
/// length and `MIN_CONTENDED_STREAK_TIME`.
const MIN_CONTENDED_STREAK: u32 = 4;

/// Duration of a chain while other locks wait for a slot.
///
/// Ending a chain, offering the lock, receiving the offer and starting the next chain take longer
/// than a short run, so the time allows several short runs. It is too short to be noticed.
const MIN_CONTENDED_STREAK_TIME: Duration = Duration::from_millis(2);

/// Progress of a chain.
#[derive(Clone, Copy)]
pub(super) struct RunStreak {
    pub(super) run_count: u32,
    pub(super) started_at: Instant,
}

impl JobChain {
    /// Returns true if the next job of the lock may be claimed with this settlement. While other
    /// locks wait for the slot, this requires a known next job.
    pub(super) fn may_continue(
        &self,
        streak: RunStreak,
        has_next: bool,
        settlement: &Settlement,
    ) -> bool {
        let is_slot_available = match self.contended.load(Ordering::Relaxed) {
            true => {
                has_next
                    && (streak.run_count < MIN_CONTENDED_STREAK
                        || streak.started_at.elapsed() < MIN_CONTENDED_STREAK_TIME)
            }
            false => true,
        };
        // A job that runs again at the head of its queue is still the first.
        let leaves_head = matches!(
            settlement,
            Settlement::Done { .. } | Settlement::Dead { .. } | Settlement::Retry { .. }
        );
        is_slot_available
            && streak.run_count < MAX_STREAK
            && leaves_head
            && self.may_start_run()
            && *self.shutdown.borrow() == ShutdownPhase::Running
    }
}
