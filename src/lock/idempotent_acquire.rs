//! A lock under an idempotency record: who was accepted under that before must not run a second time.

use std::sync::Arc;

use tokio::time::Instant;

use super::{
    guard::LockGuard,
    outcome::{AcquireError, LockOutcome},
    request::LockRequest,
    wait_queue::LocalQueues,
};
use crate::store::{LockLoss, LockMode};

impl LockRequest {
    /// The record is looked up before the wait, and again after it: another request under it may have been
    /// accepted meanwhile, and even have run.
    pub(super) async fn wait_unless_recorded(
        &self,
        lines: &Arc<LocalQueues>,
        record: Arc<str>,
        started: Instant,
        until: Instant,
    ) -> Result<LockOutcome, AcquireError> {
        match self.try_acquire_from(lines, Some(&record)).await? {
            LockOutcome::Busy(_) => {}
            answer => return Ok(answer),
        }
        match self.wait_in_queue(lines, started, until).await? {
            LockOutcome::Granted(guard) => self.recheck_record(lines, &record, guard).await,
            answer => Ok(answer),
        }
    }

    /// Looks the record up under the grant, which was made without a look: a request that was accepted before is found.
    async fn recheck_record(
        &self,
        lines: &Arc<LocalQueues>,
        record: &Arc<str>,
        guard: LockGuard,
    ) -> Result<LockOutcome, AcquireError> {
        // An attempt of its own, which finds the record or this guard's lock. (In a box: a request seldom needs it.)
        match Box::pin(self.try_acquire_from(lines, Some(record))).await? {
            LockOutcome::RecordExists => {
                // Before the answer: whoever sees it may ask for the lock at once.
                Box::pin(guard.release()).await;
                Ok(LockOutcome::RecordExists)
            }
            // The first has been lost, or both are readers: one is enough. What is lost is handed to nobody.
            LockOutcome::Granted(second) => {
                if let Some(lease) =
                    guard.lease().filter(|_| self.options.terms.mode == LockMode::Exclusive)
                {
                    lease.mark_lost(LockLoss::Taken);
                }
                Ok(LockOutcome::Granted(second))
            }
            LockOutcome::Busy(_) | LockOutcome::TooManyKeys(_) => {
                guard.ensure_valid().map(LockOutcome::Granted)
            }
        }
    }
}
