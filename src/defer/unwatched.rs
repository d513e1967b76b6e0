//! A queue without a live worker is said once: its jobs are safe, but nobody runs them.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::store::{JobId, Store};

/// How often it is looked at, by whoever defers a request then.
const EVERY: Duration = Duration::from_secs(10);

/// What this process has seen of the workers of a store.
#[derive(Debug, Default)]
pub(super) struct Workers(Mutex<Seen>);

#[derive(Debug, Default)]
struct Seen {
    looked: Option<Instant>,
    told: bool,
}

impl Workers {
    /// After a request was stored: looks now and then whether anybody will run it. True if it was said now
    /// that nobody will.
    pub(super) async fn look(&self, store: &Store, id: &JobId) -> bool {
        let now = Instant::now();
        {
            let mut seen = self.0.lock();
            if seen.looked.is_some_and(|looked| now < looked + EVERY) {
                return false;
            }
            seen.looked = Some(now);
        }
        let Ok(Some(job)) = store.backend().job_view(id.clone()).await else {
            return false;
        };
        let unwatched = job.state.is_pending() && !job.is_watched;
        let before = std::mem::replace(&mut self.0.lock().told, unwatched);
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
