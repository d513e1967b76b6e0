//! Remembered requests that run at once in this process, counted.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use tokio::sync::Notify;

/// Number of remembered requests that run now, of one store handle.
#[derive(Debug, Default)]
pub(crate) struct DirectRuns {
    under_way: AtomicUsize,
    idle: Notify,
}

/// One of them, until it is dropped.
#[derive(Debug)]
pub(crate) struct DirectRun(Arc<DirectRuns>);

impl DirectRuns {
    /// `None` if `most` run already.
    pub(crate) fn begin(self: &Arc<Self>, most: usize) -> Option<DirectRun> {
        let one_more = |runs: usize| (runs < most).then_some(runs + 1);
        let begun = self.under_way.fetch_update(Ordering::AcqRel, Ordering::Acquire, one_more);
        begun.ok().map(|_| DirectRun(Arc::clone(self)))
    }

    /// Resolves when none runs. Cancel safe.
    pub(crate) async fn ended(&self) {
        loop {
            let idle = self.idle.notified();
            if self.under_way.load(Ordering::Acquire) == 0 {
                return;
            }
            idle.await;
        }
    }
}

impl Drop for DirectRun {
    fn drop(&mut self) {
        if self.0.under_way.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.idle.notify_waiters();
        }
    }
}
