//! Counts what is under way in the background, so that a shutdown can wait for it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::sync::watch;

#[derive(Debug, Default)]
pub(super) struct BackgroundWork(Arc<BackgroundWorkCounts>);

#[derive(Debug, Default)]
struct BackgroundWorkCounts {
    active: watch::Sender<usize>,
    /// Those who wait until nothing is under way.
    shutdown_waiters: watch::Sender<usize>,
    /// Counters that wait for the store to come back.
    retrying_counters: AtomicUsize,
}

/// Something that is under way.
#[derive(Debug)]
pub(super) struct BackgroundWorkGuard(Arc<BackgroundWorkCounts>);

/// Room for those who wait.
pub(super) struct RetryReservation<'a>(&'a BackgroundWorkCounts, usize);

impl BackgroundWork {
    /// Most counters that wait: some hundred KiB.
    pub(super) const MAX_RETRYING_COUNTERS: usize = 1024;

    pub(super) fn start(&self) -> BackgroundWorkGuard {
        self.0.active.send_modify(|n| *n += 1);
        BackgroundWorkGuard(Arc::clone(&self.0))
    }

    /// Resolves when nothing is under way. Nobody [rests](BackgroundWorkGuard::sleep_or_shutdown) meanwhile.
    pub(super) async fn wait_until_idle(&self) {
        let _closing = ShutdownWaiter::register(&self.0);
        // The sender is ours, so it does not fail.
        let _ = self.0.active.subscribe().wait_for(|n| *n == 0).await;
    }
}

impl BackgroundWorkGuard {
    /// Room for so many counters to wait, if there is any.
    pub(super) fn reserve_retry(&self, counters: usize) -> Option<RetryReservation<'_>> {
        let fits = |waiting: usize| {
            Some(waiting + counters).filter(|sum| *sum <= BackgroundWork::MAX_RETRYING_COUNTERS)
        };
        let taken =
            self.0.retrying_counters.fetch_update(Ordering::AcqRel, Ordering::Acquire, fits);
        taken.is_ok().then(|| RetryReservation(&self.0, counters))
    }

    /// Waits for so long, or until somebody waits for this; then it is true.
    pub(super) async fn sleep_or_shutdown(&self, pause: Duration) -> bool {
        let mut closing = self.0.shutdown_waiters.subscribe();
        tokio::time::timeout(pause, closing.wait_for(|n| *n > 0)).await.is_ok()
    }
}

impl Drop for BackgroundWorkGuard {
    fn drop(&mut self) {
        self.0.active.send_modify(|n| *n -= 1);
    }
}

impl Drop for RetryReservation<'_> {
    fn drop(&mut self) {
        self.0.retrying_counters.fetch_sub(self.1, Ordering::AcqRel);
    }
}

struct ShutdownWaiter<'a>(&'a BackgroundWorkCounts);

impl<'a> ShutdownWaiter<'a> {
    fn register(counts: &'a BackgroundWorkCounts) -> Self {
        counts.shutdown_waiters.send_modify(|n| *n += 1);
        Self(counts)
    }
}

impl Drop for ShutdownWaiter<'_> {
    fn drop(&mut self) {
        self.0.shutdown_waiters.send_modify(|n| *n -= 1);
    }
}
