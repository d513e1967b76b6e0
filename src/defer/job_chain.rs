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
    claim_and_settle::StartedRun,
    execute_run::{is_peer_runnable, outcome_label},
    run_slots::RunSlot,
    shared_run_limits::RunPermit,
    webhook_receivers::WebhookReceivers,
    worker::DeferWorker,
};
use crate::{
    key::Key,
    store::{ClaimedRun as Begun, JobId, Settlement},
};

/// Jobs of one line that are run one after the other, each claimed as the one before is settled. After so
/// many the line is given up all the same, and whoever is told of it next goes on.
const MAX_STREAK: u32 = 64;

/// The same, while other lines of this worker wait for room: so many, and as many as a visit gets done in
/// a time that nobody notices. To give a line up, to offer its lock, to hear of that and to visit the next one
/// takes longer than a short run does.
const CONTENDED_STREAK_LIMITS: (u32, Duration) = (4, Duration::from_millis(2));

/// How a worker's end is told to its visits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ShutdownPhase {
    Running,
    /// No run begins any more.
    Draining,
    /// What runs is given up.
    Aborting,
}

pub(super) struct JobChain {
    pub(super) worker: Arc<DeferWorker>,
    pub(super) key: Key,
    /// Its room among the worker's runs, or callbacks.
    pub(super) slot: RunSlot,
    pub(super) shutdown: watch::Receiver<ShutdownPhase>,
    /// Other lines wait for such room.
    pub(super) contended: Arc<AtomicBool>,
    /// No run is to begin.
    pub(super) paused: Arc<AtomicBool>,
    /// Of the worker's callbacks.
    pub(super) webhook_receivers: Arc<WebhookReceivers>,
}

/// When the lock is worth another look.
#[derive(Debug, Clone)]
pub(super) enum ChainOutcome {
    RetryAfter(Duration),
    /// A message will tell; the due index has it too.
    AwaitWakeup,
    /// This job is for another worker, which should be told then.
    LeaveToPeer(JobId, Duration),
}

/// The runs of a visit so far.
#[derive(Clone, Copy)]
struct RunStreak {
    runs: u32,
    started_at: Instant,
}

/// What came of a run.
enum ChainStep {
    End(ChainOutcome),
    /// The lock is this worker's still, for the next job.
    Continue(StartedRun),
}

impl JobChain {
    /// Runs jobs of the line, if the first can be claimed.
    pub(super) async fn run(self, hint: Option<JobId>) -> (Key, ChainOutcome) {
        // A panic of the application's code (a destructor, a clone of the service) must not take the
        // lock's name with it: the worker would never visit it again.
        let visit = AssertUnwindSafe(self.run_with_permit(hint)).catch_unwind().await;
        let next = visit.unwrap_or_else(|_| {
            tracing::error!(lock = %self.key.log_hash(), "a visit panicked");
            ChainOutcome::RetryAfter(Duration::from_secs(1))
        });
        (self.key, next)
    }

    async fn run_with_permit(&self, head: Option<JobId>) -> ChainOutcome {
        let DeferWorker { store, shared_limits: limits, lease, .. } = &*self.worker;
        // What a queue may do is about its requests.
        let enters = async {
            if self.is_webhook() {
                Some(RunPermit::default())
            } else {
                limits.acquire(store, *lease).await
            }
        };
        let leave = tokio::select! {
            leave = enters => leave,
            () = self.wait_for_shutdown(ShutdownPhase::Draining) => return ChainOutcome::AwaitWakeup,
        };
        let Some(mut leave) = leave else { return ChainOutcome::AwaitWakeup };
        // It may have waited for its leave for long.
        let next = if self.paused.load(Ordering::Relaxed) {
            ChainOutcome::AwaitWakeup
        } else {
            self.claim_and_run(head, &mut leave).await
        };
        limits.release(store, leave).await;
        next
    }

    async fn claim_and_run(&self, head: Option<JobId>, leave: &mut RunPermit) -> ChainOutcome {
        let mut started = match self.claim_first(head).await {
            Ok(started) => started,
            Err(next) => return next,
        };
        let mut row = RunStreak { runs: 0, started_at: Instant::now() };
        loop {
            leave.consume_charge();
            row.runs += 1;
            match self.run_job(started, row, leave).await {
                ChainStep::Continue(next) => started = next,
                ChainStep::End(next) => return next,
            }
        }
    }

    async fn run_job(
        &self,
        started: StartedRun,
        row: RunStreak,
        leave: &mut RunPermit,
    ) -> ChainStep {
        let worker = &*self.worker;
        let Begun { attempt, has_next: more, .. } = started.run;
        let id = started.run.id.clone();
        tracing::info!(
            node = %worker.store.node(), lock = %self.key.log_hash(), job = ?id, attempt, "run started"
        );
        // The lock was lost, and the run with it: whoever has the job now decides about it.
        let Some(verdict) = self.execute_run(&started).await else {
            return ChainStep::End(ChainOutcome::AwaitWakeup);
        };
        let outcome = outcome_label(&verdict);
        let next = match verdict {
            Settlement::Postpone { delay, reason } if is_peer_runnable(reason) => {
                ChainOutcome::LeaveToPeer(id.clone(), delay)
            }
            _ => ChainOutcome::AwaitWakeup,
        };
        let goes_on = self.may_continue(row, more, &verdict)
            && (self.is_webhook() || worker.shared_limits.reuse(&worker.store, leave).await);
        match self.settle_and_free_slot(started, verdict, goes_on).await {
            Some(started) => {
                tracing::info!(node = %worker.store.node(), job = ?id, attempt, outcome, "run ended");
                started.map_or(ChainStep::End(next), ChainStep::Continue)
            }
            None => {
                tracing::error!(node = %worker.store.node(), job = ?id, attempt, "run lost");
                ChainStep::End(ChainOutcome::AwaitWakeup)
            }
        }
    }

    /// Whether the line is that of a callback.
    fn is_webhook(&self) -> bool {
        self.key.is_webhook()
    }

    /// Settles a run, outside of its room if that is not for the next of its line.
    async fn settle_and_free_slot(
        &self,
        started: StartedRun,
        verdict: Settlement,
        goes_on: bool,
    ) -> Option<Option<StartedRun>> {
        let mut settling = pin!(self.settle(started, verdict, goes_on));
        if goes_on {
            return settling.await;
        }
        // On its way before the room is free: so the next claim can go with it, and need not wait for its answer.
        let settled = settling.as_mut().now_or_never();
        self.slot.release();
        match settled {
            Some(settled) => settled,
            None => settling.await,
        }
    }

    /// Whether the next of the line may be claimed along with this verdict. While others wait, the room is
    /// theirs, unless it is known that there is a next one.
    fn may_continue(&self, row: RunStreak, more: bool, verdict: &Settlement) -> bool {
        let (most, time) = CONTENDED_STREAK_LIMITS;
        let goes = match self.contended.load(Ordering::Relaxed) {
            true => more && (row.runs < most || row.started_at.elapsed() < time),
            false => true,
        };
        // One that is to run again at its place is still the first.
        let ended = matches!(verdict, Settlement::Done { .. } | Settlement::Dead { .. });
        let moves = ended || matches!(verdict, Settlement::Retry { .. });
        goes && row.runs < MAX_STREAK && moves && *self.shutdown.borrow() == ShutdownPhase::Running
    }

    /// Never, if the worker's future was dropped: that is a crash and no drain, and this task is about to
    /// be aborted.
    pub(super) async fn wait_for_shutdown(&self, what: ShutdownPhase) {
        if self.shutdown.clone().wait_for(|stop| *stop >= what).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}
