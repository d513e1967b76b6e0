//! Lookup of a request's idempotency record before and after its wait for the lock: a request that
//! was accepted before must not run again.

use std::sync::Arc;

use tokio::time::Instant;

use super::{
    local_wait_queue::LocalQueues,
    lock_guard::LockGuard,
    lock_outcome::{AcquireError, LockOutcome},
    lock_request::LockRequest,
};
use crate::store::{LockLoss, LockMode};

impl LockRequest {
    /// Looks the record up before the wait and again after it: another request with the same record
    /// may have been accepted, or may even have run, in the meantime.
    pub(super) async fn wait_unless_recorded(
        &self,
        local_queues: &Arc<LocalQueues>,
        record: Arc<str>,
        started_at: Instant,
        deadline: Instant,
    ) -> Result<LockOutcome, AcquireError> {
        match self.try_acquire_from(local_queues, Some(&record)).await? {
            LockOutcome::Busy(_) => {}
            outcome => return Ok(outcome),
        }
        match self.wait_in_queue(local_queues, started_at, deadline).await? {
            LockOutcome::Granted(guard) => self.recheck_record(local_queues, &record, guard).await,
            outcome => Ok(outcome),
        }
    }

    /// Looks the record up under a grant that was made without a lookup. It finds every request
    /// that was accepted before.
    async fn recheck_record(
        &self,
        local_queues: &Arc<LocalQueues>,
        record: &Arc<str>,
        first_guard: LockGuard,
    ) -> Result<LockOutcome, AcquireError> {
        // A second attempt, which finds the record or this guard's lock. Boxed, since few requests
        // need it.
        match Box::pin(self.try_acquire_from(local_queues, Some(record))).await? {
            LockOutcome::RecordExists => {
                // Before the response: its client may ask for the lock at once.
                Box::pin(first_guard.release()).await;
                Ok(LockOutcome::RecordExists)
            }
            // The first grant has been lost, or both are shared: one is enough. A lost lease is not
            // handed over.
            LockOutcome::Granted(second_guard) => {
                if let Some(lease) =
                    first_guard.lease().filter(|_| self.options.terms.mode == LockMode::Exclusive)
                {
                    lease.mark_lost(LockLoss::Taken);
                }
                Ok(LockOutcome::Granted(second_guard))
            }
            LockOutcome::Busy(_) | LockOutcome::TooManyKeys(_) => {
                first_guard.ensure_valid().map(LockOutcome::Granted)
            }
        }
    }
}
