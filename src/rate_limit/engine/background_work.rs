//! Counter of background work, so that a shutdown can wait for its end.

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
    /// Number of shutdowns that wait for the end of all work.
    shutdown_waiters: watch::Sender<usize>,
    /// Number of counters with adjustments that are retried.
    retrying_counters: AtomicUsize,
}

/// Unit of background work.
#[derive(Debug)]
pub(super) struct BackgroundWorkGuard(Arc<BackgroundWorkCounts>);

/// Reserved retries of a number of counters.
pub(super) struct RetryReservation<'a> {
    counts: &'a BackgroundWorkCounts,
    reserved: usize,
}

impl BackgroundWork {
    /// Maximum number of counters with retried adjustments: some hundred KiB.
    pub(super) const MAX_RETRYING_COUNTERS: usize = 1024;

    pub(super) fn start(&self) -> BackgroundWorkGuard {
        self.0.active.send_modify(|n| *n += 1);
        BackgroundWorkGuard(Arc::clone(&self.0))
    }

    /// Resolves when no work is active. Meanwhile
    /// [`sleep_or_shutdown`](BackgroundWorkGuard::sleep_or_shutdown) does not sleep.
    pub(super) async fn wait_until_idle(&self) {
        let _closing = ShutdownWaiter::register(&self.0);
        // `self` owns the sender, so this can't fail.
        let _ = self.0.active.subscribe().wait_for(|n| *n == 0).await;
    }
}

impl BackgroundWorkGuard {
    /// Reserves retries for this number of counters, if there is room.
    pub(super) fn reserve_retry(&self, counters: usize) -> Option<RetryReservation<'_>> {
        let add_if_allowed = |retrying: usize| {
            Some(retrying + counters).filter(|sum| *sum <= BackgroundWork::MAX_RETRYING_COUNTERS)
        };
        let reservation = self.0.retrying_counters.fetch_update(
            Ordering::AcqRel,
            Ordering::Acquire,
            add_if_allowed,
        );
        reservation.is_ok().then(|| RetryReservation { counts: &self.0, reserved: counters })
    }

    /// Sleeps for this time. Returns true early if a shutdown waits.
    pub(super) async fn sleep_or_shutdown(&self, duration: Duration) -> bool {
        let mut shutdown_waiters = self.0.shutdown_waiters.subscribe();
        tokio::time::timeout(duration, shutdown_waiters.wait_for(|n| *n > 0)).await.is_ok()
    }
}

impl Drop for BackgroundWorkGuard {
    fn drop(&mut self) {
        self.0.active.send_modify(|n| *n -= 1);
    }
}

impl Drop for RetryReservation<'_> {
    fn drop(&mut self) {
        self.counts.retrying_counters.fetch_sub(self.reserved, Ordering::AcqRel);
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
