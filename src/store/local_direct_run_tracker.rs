//! `LocalDirectRunTracker`: limits the direct runs of this process, and waits for their end.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use tokio::sync::Notify;

/// Direct runs in progress of one store handle. Each has a permit, and a shutdown waits for them.
#[derive(Debug, Default)]
pub(crate) struct LocalDirectRunTracker {
    running_count: AtomicUsize,
    all_ended: Notify,
}

/// Permit for one direct run; dropping it ends the run.
#[derive(Debug)]
pub(crate) struct DirectRunPermit(Arc<LocalDirectRunTracker>);

impl LocalDirectRunTracker {
    /// Starts a direct run, or returns `None` if `max_runs` are in progress already.
    pub(crate) fn try_begin(self: &Arc<Self>, max_runs: usize) -> Option<DirectRunPermit> {
        let add_run = |count: usize| (count < max_runs).then_some(count + 1);
        let updated = self.running_count.fetch_update(Ordering::AcqRel, Ordering::Acquire, add_run);
        updated.ok().map(|_| DirectRunPermit(Arc::clone(self)))
    }

    /// Resolves when no direct run is left. Cancel safe.
    pub(crate) async fn wait_until_idle(&self) {
        loop {
            let all_ended = self.all_ended.notified();
            if self.running_count.load(Ordering::Acquire) == 0 {
                return;
            }
            all_ended.await;
        }
    }
}

impl Drop for DirectRunPermit {
    fn drop(&mut self) {
        if self.0.running_count.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.all_ended.notify_waiters();
        }
    }
}
