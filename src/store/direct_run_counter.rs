//! Counter of the direct runs in this process.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use tokio::sync::Notify;

/// Number of direct runs of one store handle.
#[derive(Debug, Default)]
pub(crate) struct DirectRunCounter {
    running: AtomicUsize,
    idle: Notify,
}

/// Permit for one direct run; dropping it ends the count.
#[derive(Debug)]
pub(crate) struct DirectRunPermit(Arc<DirectRunCounter>);

impl DirectRunCounter {
    /// Starts a direct run, or returns `None` if `most` are running already.
    pub(crate) fn try_begin(self: &Arc<Self>, most: usize) -> Option<DirectRunPermit> {
        let one_more = |runs: usize| (runs < most).then_some(runs + 1);
        let begun = self.running.fetch_update(Ordering::AcqRel, Ordering::Acquire, one_more);
        begun.ok().map(|_| DirectRunPermit(Arc::clone(self)))
    }

    /// Resolves when no direct run is left. Cancel safe.
    pub(crate) async fn wait_until_idle(&self) {
        loop {
            let idle = self.idle.notified();
            if self.running.load(Ordering::Acquire) == 0 {
                return;
            }
            idle.await;
        }
    }
}

impl Drop for DirectRunPermit {
    fn drop(&mut self) {
        if self.0.running.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.idle.notify_waiters();
        }
    }
}
