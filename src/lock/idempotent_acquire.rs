//! Acquire with an idempotency record: a request that was accepted before must not run again.

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
    /// Looks the record up before the wait and again after it: another request with the same record
    /// may have been accepted, or may even have run, in the meantime.
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

    /// Looks the record up under a grant that was made without a lookup. It finds every request
    /// that was accepted before.
    async fn recheck_record(
        &self,
        lines: &Arc<LocalQueues>,
        record: &Arc<str>,
        guard: LockGuard,
    ) -> Result<LockOutcome, AcquireError> {
        // A second attempt, which finds the record or this guard's lock. Boxed, since few requests
        // need it.
        match Box::pin(self.try_acquire_from(lines, Some(record))).await? {
            LockOutcome::RecordExists => {
                // Before the response: its client may ask for the lock at once.
                Box::pin(guard.release()).await;
                Ok(LockOutcome::RecordExists)
            }
            // The first grant has been lost, or both are shared: one is enough. A lost lease is not
            // handed over.
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
