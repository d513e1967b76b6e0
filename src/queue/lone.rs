//! A worker that runs one task at a time begins it in its own task: to wake another one, and be woken by it, takes
//! longer than most tasks do. One that has to wait goes on in a task of its own, where it is in nobody's way.
//!
//! A handler that blocks its thread before it waits for the first time keeps the worker's task from renewing
//! its lease. So that is seen to elsewhere, for as long.

use std::{sync::Arc, time::Duration};

use futures_util::{FutureExt as _, future::BoxFuture};
use parking_lot::Mutex;
use tokio::{sync::Notify, task::JoinSet, time::Instant};

use super::{run::Ran, worker::QueueWorker};
use crate::{
    key::Key,
    store::{RunToken, Store},
};

/// A run on its way.
pub(super) type Work = BoxFuture<'static, (RunToken, Ran)>;

/// The run that is polled at this moment, and until when nobody else has it.
type Polled = Arc<Mutex<Option<(RunToken, Instant)>>>;

pub(super) struct Lone {
    polled: Polled,
    lease: Duration,
    /// Less is left of the lease than the keeper may sleep for.
    hurry: Arc<Notify>,
    /// Ends with this.
    _keeper: JoinSet<()>,
}

impl Lone {
    /// Of a worker that never has two runs at once.
    pub(super) fn of(worker: &QueueWorker) -> Option<Self> {
        let QueueWorker { store, queue, lease, concurrency, .. } = worker;
        // Handlers may rely on being in a task.
        if *concurrency > 1 || tokio::task::try_id().is_none() {
            return None;
        }
        let (polled, hurry) = (Polled::default(), Arc::new(Notify::new()));
        let (run, hurried, mut keeper) = (Arc::clone(&polled), Arc::clone(&hurry), JoinSet::new());
        keeper.spawn(keep(store.clone(), queue.clone(), *lease, run, hurried));
        Some(Self { polled, lease: *lease, hurry, _keeper: keeper })
    }

    /// Polls it once: what it came to, or until when its lease lasts now.
    pub(super) fn begin(
        &self,
        work: &mut Work,
        token: &RunToken,
        until: Instant,
    ) -> Result<Ran, Instant> {
        *self.polled.lock() = Some((token.clone(), until));
        // Not for each: most are over before the keeper would be awake.
        if until.saturating_duration_since(Instant::now()) < self.lease / 2 {
            self.hurry.notify_one();
        }
        // Who takes it over polls it again, so nothing that wakes it in between is lost.
        let ran = work.now_or_never();
        let polled = self.polled.lock().take();
        ran.map(|(_, ran)| ran).ok_or(polled.map_or(until, |(_, until)| until))
    }
}

/// Renews the lease of a run that does not come back from its first poll.
async fn keep(store: Store, queue: Key, lease: Duration, polled: Polled, hurry: Arc<Notify>) {
    let mut pause = lease / 3;
    loop {
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = hurry.notified() => {}
        }
        pause = lease / 3;
        let run = polled.lock().as_ref().map(|(token, _)| token.clone());
        let Some(token) = run else { continue };
        let since = Instant::now();
        match store.backend().renew_runs(queue.clone(), vec![token.clone()], lease).await {
            Ok(held) if held == [true] => {
                let mut polled = polled.lock();
                let mine = polled.as_mut().filter(|(run, _)| *run == token);
                mine.into_iter().for_each(|(_, until)| *until = since + lease);
            }
            Ok(_) => {}
            Err(_) => pause = lease / 12,
        }
    }
}
