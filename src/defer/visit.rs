//! One visit to a lock that has jobs: claim, run, settle, and the next of the line.

use std::{
    panic::AssertUnwindSafe,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures_util::FutureExt as _;
use tokio::{sync::watch, time::Instant};

use super::{
    claim::Started,
    hosts::Hosts,
    limits::Leave,
    slots::Slot,
    verdict::{for_others, word},
    worker::DeferWorker,
};
use crate::{
    key::Key,
    store::{JobId, ClaimedRun as Begun, Settlement},
};

/// Jobs of one line that are run one after the other, each claimed as the one before is settled. After so
/// many the line is given up all the same, and whoever is told of it next goes on.
const IN_A_ROW: u32 = 64;

/// The same, while other lines of this worker wait for room: so many, and as many as a visit gets done in
/// a time that nobody notices. To give a line up, to offer its lock, to hear of that and to visit the next one
/// takes longer than a short run does.
const WHILE_OTHERS_WAIT: (u32, Duration) = (4, Duration::from_millis(2));

/// How a worker's end is told to its visits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Stop {
    No,
    /// No run begins any more.
    Drain,
    /// What runs is given up.
    Now,
}

pub(super) struct Visit {
    pub(super) worker: Arc<DeferWorker>,
    pub(super) key: Key,
    /// Its room among the worker's runs, or callbacks.
    pub(super) slot: Slot,
    pub(super) stop: watch::Receiver<Stop>,
    /// Other lines wait for such room.
    pub(super) crowded: Arc<AtomicBool>,
    /// No run is to begin.
    pub(super) paused: Arc<AtomicBool>,
    /// Of the worker's callbacks.
    pub(super) hosts: Arc<Hosts>,
}

/// When the lock is worth another look.
#[derive(Debug, Clone)]
pub(super) enum Next {
    After(Duration),
    /// A message will tell; the due index has it too.
    WhenTold,
    /// This job is for another worker, which should be told then.
    Others(JobId, Duration),
}

/// The runs of a visit so far.
#[derive(Clone, Copy)]
struct Row {
    runs: u32,
    since: Instant,
}

/// What came of a run.
enum Ended {
    Next(Next),
    /// The lock is this worker's still, for the next job.
    GoesOn(Started),
}

impl Visit {
    /// Runs jobs of the line, if the first can be claimed.
    pub(super) async fn run(self, hint: Option<JobId>) -> (Key, Next) {
        // A panic of the application's code (a destructor, a clone of the service) must not take the
        // lock's name with it: the worker would never visit it again.
        let visit = AssertUnwindSafe(self.enter_and_run(hint)).catch_unwind().await;
        let next = visit.unwrap_or_else(|_| {
            tracing::error!(lock = %self.key.hashed(), "a visit panicked");
            Next::After(Duration::from_secs(1))
        });
        (self.key, next)
    }

    async fn enter_and_run(&self, head: Option<JobId>) -> Next {
        let DeferWorker { store, limits, lease, .. } = &*self.worker;
        // What a queue may do is about its requests.
        let enters = async {
            if self.is_call() { Some(Leave::default()) } else { limits.enter(store, *lease).await }
        };
        let leave = tokio::select! {
            leave = enters => leave,
            () = self.told_to(Stop::Drain) => return Next::WhenTold,
        };
        let Some(mut leave) = leave else { return Next::WhenTold };
        // It may have waited for its leave for long.
        let next = if self.paused.load(Ordering::Relaxed) {
            Next::WhenTold
        } else {
            self.claim_and_run(head, &mut leave).await
        };
        limits.end(store, leave).await;
        next
    }

    async fn claim_and_run(&self, head: Option<JobId>, leave: &mut Leave) -> Next {
        let mut started = match self.claim_first(head).await {
            Ok(started) => started,
            Err(next) => return next,
        };
        let mut row = Row { runs: 0, since: Instant::now() };
        loop {
            leave.spend();
            row.runs += 1;
            match self.run_job(started, row, leave).await {
                Ended::GoesOn(next) => started = next,
                Ended::Next(next) => return next,
            }
        }
    }

    async fn run_job(&self, started: Started, row: Row, leave: &mut Leave) -> Ended {
        let worker = &*self.worker;
        let Begun { attempt, has_next: more, .. } = started.run;
        let id = started.run.id.clone();
        tracing::info!(
            node = %worker.store.node(), lock = %self.key.hashed(), job = ?id, attempt, "run started"
        );
        // The lock was lost, and the run with it: whoever has the job now decides about it.
        let Some(verdict) = self.verdict(&started).await else {
            return Ended::Next(Next::WhenTold);
        };
        let outcome = word(&verdict);
        let next = match verdict {
            Settlement::Postpone { delay, reason } if for_others(reason) => {
                Next::Others(id.clone(), delay)
            }
            _ => Next::WhenTold,
        };
        let goes_on = self.may_go_on(row, more, &verdict)
            && (self.is_call() || worker.limits.again(&worker.store, leave).await);
        match self.settle_outside(started, verdict, goes_on).await {
            Some(started) => {
                tracing::info!(node = %worker.store.node(), job = ?id, attempt, outcome, "run ended");
                started.map_or(Ended::Next(next), Ended::GoesOn)
            }
            None => {
                tracing::error!(node = %worker.store.node(), job = ?id, attempt, "run lost");
                Ended::Next(Next::WhenTold)
            }
        }
    }

    /// Whether the line is that of a callback.
    fn is_call(&self) -> bool {
        self.key.is_of_callback()
    }

    /// Settles a run, outside of its room if that is not for the next of its line.
    async fn settle_outside(
        &self,
        started: Started,
        verdict: Settlement,
        goes_on: bool,
    ) -> Option<Option<Started>> {
        let mut settling = pin!(self.settle(started, verdict, goes_on));
        if goes_on {
            return settling.await;
        }
        // On its way before the room is free: so the next claim can go with it, and need not wait for its answer.
        let settled = settling.as_mut().now_or_never();
        self.slot.free();
        match settled {
            Some(settled) => settled,
            None => settling.await,
        }
    }

    /// Whether the next of the line may be claimed along with this verdict. While others wait, the room is
    /// theirs, unless it is known that there is a next one.
    fn may_go_on(&self, row: Row, more: bool, verdict: &Settlement) -> bool {
        let (most, time) = WHILE_OTHERS_WAIT;
        let goes = match self.crowded.load(Ordering::Relaxed) {
            true => more && (row.runs < most || row.since.elapsed() < time),
            false => true,
        };
        // One that is to run again at its place is still the first.
        let ended = matches!(verdict, Settlement::Done { .. } | Settlement::Dead { .. });
        let moves = ended || matches!(verdict, Settlement::Retry { .. });
        goes && row.runs < IN_A_ROW && moves && *self.stop.borrow() == Stop::No
    }

    /// Never, if the worker's future was dropped: that is a crash and no drain, and this task is about to
    /// be aborted.
    pub(super) async fn told_to(&self, what: Stop) {
        if self.stop.clone().wait_for(|stop| *stop >= what).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}
