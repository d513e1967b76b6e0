//! `JobChain`: consecutive runs of one lock's jobs, each claimed with the settlement before it.

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
use tracing::Instrument as _;

use super::{
    claim_and_settle::StartedRun,
    count_run::run_result,
    envelope::StoredRequest,
    execute_run::{is_peer_runnable, outcome_label, stored_status},
    next_step::NextStep,
    run_label::RunLabel,
    run_slots::RunSlot,
    run_span::{record_lost_lock, record_outcome},
    run_streak::RunStreak,
    shared_run_limits::RunPermit,
    webhook_receivers::WebhookReceivers,
    worker::WorkerSettings,
};
use crate::{
    instruments::record_deferred_wait,
    key::Key,
    store::{ClaimedRun, HoldRoute, JobId, Settlement},
};

/// Stage of a worker's shutdown, as its chains see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ShutdownPhase {
    Running,
    /// No new run starts.
    Draining,
    /// Current runs are aborted.
    Aborting,
}

pub(super) struct JobChain {
    pub(super) worker: Arc<WorkerSettings>,
    pub(super) key: Key,
    /// Slot among the worker's runs or webhooks.
    pub(super) slot: RunSlot,
    pub(super) shutdown: watch::Receiver<ShutdownPhase>,
    /// True while other locks wait for such a slot.
    pub(super) contended: Arc<AtomicBool>,
    /// True while jobs are paused.
    pub(super) paused: Arc<AtomicBool>,
    /// Receivers of the worker's webhooks.
    pub(super) webhook_receivers: Arc<WebhookReceivers>,
}

/// Condition for the next chain on the lock.
#[derive(Debug, Clone)]
pub(super) enum ChainOutcome {
    RetryAfter(Duration),
    /// A wake-up follows; the due index is the fallback.
    AwaitWakeup,
    /// The job is left to a peer for this time. The peer is notified after it.
    LeaveToPeer(JobId, Duration),
}

/// Result of one run.
#[allow(clippy::large_enum_variant, reason = "it is moved once, out of its future")]
enum ChainStep {
    End(ChainOutcome),
    /// This worker keeps the lock for the next job.
    Continue(StartedRun),
}

impl JobChain {
    /// Runs jobs of the lock, starting with its first one if that can be claimed.
    pub(super) async fn run(self, head: Option<JobId>) -> (Key, ChainOutcome) {
        // A panic of application code (a destructor, a clone of the service) must not lose the
        // lock's name: the dispatcher would count the chain as running forever, and start no other.
        let outcome = AssertUnwindSafe(self.run_with_permit(head)).catch_unwind().await;
        let outcome = outcome.unwrap_or_else(|_| {
            tracing::error!(lock = %self.worker.store.log_name(&self.key), "a worker task panicked");
            ChainOutcome::RetryAfter(Duration::from_secs(1))
        });
        (self.key, outcome)
    }

    async fn run_with_permit(&self, head: Option<JobId>) -> ChainOutcome {
        let WorkerSettings { store, shared_limits, lease, .. } = &*self.worker;
        // Limits of a queue apply to requests, not to webhooks.
        let acquiring = async {
            if self.is_webhook() {
                Some(RunPermit::default())
            } else {
                shared_limits.acquire(store, *lease).await
            }
        };
        let permit = tokio::select! {
            permit = acquiring => permit,
            () = self.wait_for_shutdown(ShutdownPhase::Draining) => return ChainOutcome::AwaitWakeup,
        };
        let Some(mut permit) = permit else { return ChainOutcome::AwaitWakeup };
        // The queue may have been paused during a long wait for the permit.
        let outcome = if self.may_start_run() {
            self.claim_and_run(head, &mut permit).await
        } else {
            ChainOutcome::AwaitWakeup
        };
        shared_limits.release(store, permit).await;
        outcome
    }

    async fn claim_and_run(&self, head: Option<JobId>, permit: &mut RunPermit) -> ChainOutcome {
        let mut started = match self.claim_first(head).await {
            Ok(started) => started,
            Err(outcome) => return outcome,
        };
        let mut streak = RunStreak { run_count: 0, started_at: Instant::now() };
        loop {
            permit.consume_charge();
            streak.run_count += 1;
            match self.run_job(started, streak, permit).await {
                ChainStep::Continue(next) => started = next,
                ChainStep::End(outcome) => return outcome,
            }
        }
    }

    /// Decodes the stored request of a run, and logs its start.
    fn begin_run(&self, started: &mut StartedRun) -> Result<StoredRequest, Settlement> {
        let store = &self.worker.store;
        let request = self.decode_run(started);
        if let Ok(request) = &request {
            started.label = RunLabel::of_request(request);
        }
        if let (Some(method), Some(route)) = (started.label.method(), started.label.route()) {
            started.hold.state().record_route(&HoldRoute::new(method, route));
        }
        started.span = self.run_span(started, request.as_ref().ok());
        let StartedRun { run, label, span, .. } = &*started;
        let _entered = span.enter();
        self.report_crashed_run(started);
        tracing::info!(
            node = %store.node(), lock = %store.log_name(&self.key), job = %run.id.log_prefix(),
            attempt = run.attempt, method = label.method(), route = label.route(), "run started"
        );
        if run.attempt == 1 && !self.is_webhook() {
            let now_us = store.backend().estimated_now_us();
            let waited = Duration::from_micros(now_us.saturating_sub(run.accepted_us));
            record_deferred_wait(label.route(), waited);
        }
        request
    }

    async fn run_job(
        &self,
        mut started: StartedRun,
        streak: RunStreak,
        permit: &mut RunPermit,
    ) -> ChainStep {
        let request = self.begin_run(&mut started);
        let span = started.span.clone();
        self.execute_and_settle(request, started, streak, permit).instrument(span).await
    }

    /// Executes and settles a run, within its span.
    async fn execute_and_settle(
        &self,
        request: Result<StoredRequest, Settlement>,
        mut started: StartedRun,
        streak: RunStreak,
        permit: &mut RunPermit,
    ) -> ChainStep {
        let worker = &*self.worker;
        let ClaimedRun { attempt, has_next, .. } = started.run;
        let (id, span) = (started.run.id.clone(), started.span.clone());
        let started_at = Instant::now();
        let settlement = match request {
            Ok(request) => self.execute_run(request, &started).await,
            Err(settlement) => Some(settlement),
        };
        // The run was lost with its lock. The new holder of the job decides, and counts it.
        let Some(settlement) = settlement else {
            record_lost_lock(&span);
            return ChainStep::End(ChainOutcome::AwaitWakeup);
        };
        let settlement = started.apply_cancellation(settlement);
        let (result, duration) = (run_result(&settlement), started_at.elapsed());
        let label = std::mem::take(&mut started.label);
        let (outcome, next) = (outcome_label(&settlement), NextStep::after(&settlement));
        let status = stored_status(&settlement);
        record_outcome(&span, &settlement, outcome);
        let chain_outcome = match settlement {
            Settlement::Postpone { delay, reason } if is_peer_runnable(reason) => {
                ChainOutcome::LeaveToPeer(id.clone(), delay)
            }
            _ => ChainOutcome::AwaitWakeup,
        };
        let continues = self.may_continue(streak, has_next, &settlement)
            && (self.is_webhook() || worker.shared_limits.reuse(&worker.store, permit).await);
        match self.settle_and_free_slot(started, settlement, continues).await {
            Some(next_run) => {
                self.count_run(label.route(), result, Some(duration));
                tracing::info!(
                    node = %worker.store.node(), job = %id.log_prefix(), attempt,
                    method = label.method(), route = label.route(), outcome, status,
                    then = next.name, retry_in_ms = next.retry_in_ms, "run ended"
                );
                next_run.map_or(ChainStep::End(chain_outcome), ChainStep::Continue)
            }
            None => {
                record_lost_lock(&span);
                tracing::error!(
                    node = %worker.store.node(), job = %id.log_prefix(), attempt,
                    method = label.method(), route = label.route(),
                    "run not settled: its lock was lost"
                );
                ChainStep::End(ChainOutcome::AwaitWakeup)
            }
        }
    }

    pub(super) fn is_webhook(&self) -> bool {
        self.key.is_webhook()
    }

    /// Settles a run. Frees the slot before the reply, unless the chain continues.
    async fn settle_and_free_slot(
        &self,
        started: StartedRun,
        settlement: Settlement,
        continues: bool,
    ) -> Option<Option<StartedRun>> {
        let mut settling = pin!(self.settle(started, settlement, continues));
        if continues {
            return settling.await;
        }
        // The settlement is sent before the slot is free. The next claim can then join its batch,
        // and need not wait for its reply.
        let settled = settling.as_mut().now_or_never();
        self.slot.release();
        match settled {
            Some(settled) => settled,
            None => settling.await,
        }
    }

    /// Returns false while jobs are paused, or while an operator has drained this process.
    pub(super) fn may_start_run(&self) -> bool {
        !self.paused.load(Ordering::Relaxed) && !self.worker.store.is_drained()
    }

    /// Waits for this phase. Never resolves if the worker's future was dropped: that is a crash
    /// without a drain, and this task is about to be aborted.
    pub(super) async fn wait_for_shutdown(&self, phase: ShutdownPhase) {
        if self.shutdown.clone().wait_for(|current| *current >= phase).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}
