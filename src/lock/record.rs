//! A lock under an idempotency record: who was accepted under that before must not run a second time.

use std::sync::Arc;

use tokio::time::Instant;

use super::{
    answer::{Answer, NotAcquired},
    guard::LockGuard,
    line::Lines,
    request::LockRequest,
};
use crate::store::{LockLoss, LockMode};

impl LockRequest {
    /// The record is looked up before the wait, and again after it: another request under it may have been
    /// accepted meanwhile, and even have run.
    pub(super) async fn wait_unless_known(
        &self,
        lines: &Arc<Lines>,
        record: Arc<str>,
        started: Instant,
        until: Instant,
    ) -> Result<Answer, NotAcquired> {
        match self.once(lines, Some(&record)).await? {
            Answer::Busy(_) => {}
            answer => return Ok(answer),
        }
        match self.stand_in_line(lines, started, until).await? {
            Answer::Granted(guard) => self.unless_known(lines, &record, guard).await,
            answer => Ok(answer),
        }
    }

    /// Looks the record up under the grant, which was made without a look: a request that was accepted before is found.
    async fn unless_known(
        &self,
        lines: &Arc<Lines>,
        record: &Arc<str>,
        guard: LockGuard,
    ) -> Result<Answer, NotAcquired> {
        // An attempt of its own, which finds the record or this guard's lock. (In a box: a request seldom needs it.)
        match Box::pin(self.once(lines, Some(record))).await? {
            Answer::Known => {
                // Before the answer: whoever sees it may ask for the lock at once.
                Box::pin(guard.release()).await;
                Ok(Answer::Known)
            }
            // The first has been lost, or both are readers: one is enough. What is lost is handed to nobody.
            Answer::Granted(second) => {
                if let Some(lease) =
                    guard.lease().filter(|_| self.asking.terms.mode == LockMode::Exclusive)
                {
                    lease.mark_lost(LockLoss::Taken);
                }
                Ok(Answer::Granted(second))
            }
            Answer::Busy(_) | Answer::TooManyKeys(_) => guard.still_sure().map(Answer::Granted),
        }
    }
}
