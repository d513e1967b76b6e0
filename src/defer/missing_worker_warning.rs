//! Warning about a queue without a live worker, logged once: its jobs are stored, but none runs.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::store::{JobId, Store};

/// Least time between two checks. They are made after a request was deferred.
const CHECK_INTERVAL: Duration = Duration::from_secs(10);

/// Last known state of a store's workers.
#[derive(Debug, Default)]
pub(super) struct MissingWorkerWarning(Mutex<MissingWorkerState>);

#[derive(Debug, Default)]
struct MissingWorkerState {
    checked_at: Option<Instant>,
    warned: bool,
}

impl MissingWorkerWarning {
    /// Checks for a live worker after a request was stored, at most once per `CHECK_INTERVAL`.
    /// Returns true if this call has logged the warning.
    pub(super) async fn check_workers(&self, store: &Store, id: &JobId) -> bool {
        let now = Instant::now();
        {
            let mut state = self.0.lock();
            if state.checked_at.is_some_and(|checked_at| now < checked_at + CHECK_INTERVAL) {
                return false;
            }
            state.checked_at = Some(now);
        }
        let Ok(Some(job)) = store.backend().job_view(id.clone()).await else {
            return false;
        };
        let is_unwatched = job.state.is_pending() && !job.is_watched;
        let was_warned = std::mem::replace(&mut self.0.lock().warned, is_unwatched);
        let warns = is_unwatched && !was_warned;
        if warns {
            tracing::warn!(
                node = %store.node(),
                "requests are deferred and no worker is alive; start a DeferWorker on this store \
                 and namespace"
            );
        }
        warns
    }
}
