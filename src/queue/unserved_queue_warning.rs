//! Warning about a queue that gets tasks and has no worker: they are stored, but none runs.

use std::{collections::HashMap, time::Duration};

use parking_lot::Mutex;
use tokio::time::{Instant, sleep};

use crate::{key::Key, store::Store};

/// Least time between two checks of one queue.
const CHECK_INTERVAL: Duration = Duration::from_secs(60);

/// Time from a push to the check, in which a worker that starts with the process has polled. A poll
/// counts for as long, so a worker that the push has woken counts as well.
const CHECK_DELAY: Duration = Duration::from_secs(10);

/// Most queues that a process remembers; those of a program that makes names from data are checked
/// again and again.
const MAX_QUEUES: usize = 1_000;

/// Time of the last check of each queue that this process has pushed to.
#[derive(Debug, Default)]
pub(super) struct UnservedQueueWarning(Mutex<HashMap<Key, Instant>>);

impl UnservedQueueWarning {
    /// Checks in the background whether a worker of any process serves the queue, at most once per
    /// `CHECK_INTERVAL`. A manual clock belongs to a test, which runs its tasks by hand.
    pub(super) fn check_after_push(store: &Store, queue: &Key) {
        if store.backend().has_manual_clock() || !store.extension::<Self>().is_check_due(queue) {
            return;
        }
        let (weak_store, queue) = (store.downgrade(), queue.clone());
        store.spawn_background(async move {
            sleep(CHECK_DELAY).await;
            let Some(store) = weak_store.upgrade() else { return };
            let unserved = store.backend().unserved_task_count(queue.clone(), CHECK_DELAY).await;
            if let Ok(waiting @ 1..) = unserved {
                tracing::warn!(
                    node = %store.node(),
                    queue = %queue.log_name(true),
                    waiting,
                    "tasks are pushed and no worker polls their queue; run the worker of \
                     Queue::worker, in any process on this store and namespace"
                );
            }
        });
    }

    fn is_check_due(&self, queue: &Key) -> bool {
        let (now, mut checks) = (Instant::now(), self.0.lock());
        if checks.get(queue).is_some_and(|checked_at| now < *checked_at + CHECK_INTERVAL) {
            return false;
        }
        if checks.len() >= MAX_QUEUES {
            checks.clear();
        }
        checks.insert(queue.clone(), now);
        true
    }
}
