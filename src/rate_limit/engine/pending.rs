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
pub(super) struct Pending(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    begun: watch::Sender<usize>,
    /// Those who wait until nothing is under way.
    closing: watch::Sender<usize>,
    /// Counters that wait for the store to come back.
    waiting: AtomicUsize,
}

/// Something that is under way.
#[derive(Debug)]
pub(super) struct Begun(Arc<Counts>);

/// Room for those who wait.
pub(super) struct Room<'a>(&'a Counts, usize);

impl Pending {
    /// Most counters that wait: some hundred KiB.
    pub(super) const MOST: usize = 1024;

    pub(super) fn begin(&self) -> Begun {
        self.0.begun.send_modify(|n| *n += 1);
        Begun(Arc::clone(&self.0))
    }

    /// Resolves when nothing is under way. Nobody [rests](Begun::rest) meanwhile.
    pub(super) async fn none(&self) {
        let _closing = Closing::of(&self.0);
        // The sender is ours, so it does not fail.
        let _ = self.0.begun.subscribe().wait_for(|n| *n == 0).await;
    }
}

impl Begun {
    /// Room for so many counters to wait, if there is any.
    pub(super) fn wait(&self, counters: usize) -> Option<Room<'_>> {
        let fits = |waiting: usize| Some(waiting + counters).filter(|sum| *sum <= Pending::MOST);
        let taken = self.0.waiting.fetch_update(Ordering::AcqRel, Ordering::Acquire, fits);
        taken.is_ok().then(|| Room(&self.0, counters))
    }

    /// Waits for so long, or until somebody waits for this; then it is true.
    pub(super) async fn rest(&self, pause: Duration) -> bool {
        let mut closing = self.0.closing.subscribe();
        tokio::time::timeout(pause, closing.wait_for(|n| *n > 0)).await.is_ok()
    }
}

impl Drop for Begun {
    fn drop(&mut self) {
        self.0.begun.send_modify(|n| *n -= 1);
    }
}

impl Drop for Room<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(self.1, Ordering::AcqRel);
    }
}

struct Closing<'a>(&'a Counts);

impl<'a> Closing<'a> {
    fn of(counts: &'a Counts) -> Self {
        counts.closing.send_modify(|n| *n += 1);
        Self(counts)
    }
}

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        self.0.closing.send_modify(|n| *n -= 1);
    }
}
