//! A queue without a live worker is said once: its jobs are safe, but nobody runs them.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::store::{JobId, Store};

/// How often it is looked at, by whoever defers a request then.
const CHECK_INTERVAL: Duration = Duration::from_secs(10);

/// What this process has seen of the workers of a store.
#[derive(Debug, Default)]
pub(super) struct MissingWorkerWarning(Mutex<MissingWorkerState>);

#[derive(Debug, Default)]
struct MissingWorkerState {
    checked_at: Option<Instant>,
    warned: bool,
}

impl MissingWorkerWarning {
    /// After a request was stored: looks now and then whether anybody will run it. True if it was said now
    /// that nobody will.
    pub(super) async fn check_workers(&self, store: &Store, id: &JobId) -> bool {
        let now = Instant::now();
        {
            let mut seen = self.0.lock();
            if seen.checked_at.is_some_and(|looked| now < looked + CHECK_INTERVAL) {
                return false;
            }
            seen.checked_at = Some(now);
        }
        let Ok(Some(job)) = store.backend().job_view(id.clone()).await else {
            return false;
        };
        let unwatched = job.state.is_pending() && !job.is_watched;
        let before = std::mem::replace(&mut self.0.lock().warned, unwatched);
        let news = unwatched && !before;
        if news {
            tracing::warn!(
                node = %store.node(),
                "requests are deferred and no worker is alive to run them: spawn a DeferWorker"
            );
        }
        news
    }
}
