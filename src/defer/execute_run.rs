//! Execution of one run: decoding, authorization, replay, and the settlement that follows.

use std::{
    sync::{Arc, atomic::Ordering},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use super::{
    abort_run::{AbandonOnDrop, drained_settlement},
    claim_and_settle::StartedRun,
    envelope::{EnvelopeBinding, EnvelopeError, StoredRequest, decode_request},
    idempotency_key::{IDEMPOTENCY_KEY, derive_idempotency_key},
    job_chain::{JobChain, ShutdownPhase},
    replayer::ReplayOutcome,
    settlement_rules::{RunContext, UNREACHABLE, UNROUTABLE, age_backoff},
    webhook,
    webhook_receivers::WebhookLimits,
    worker::WorkerSettings,
};
use crate::{
    gate::{ReplayMarker, RunningJob},
    store::{ClaimedRun, Settlement},
};

impl JobChain {
    fn binding<'a>(&'a self, run: &'a ClaimedRun) -> EnvelopeBinding<'a> {
        EnvelopeBinding { store: &self.worker.store, id: &run.id, lock: &self.key }
    }

    /// Decodes the stored request of a run, or returns the settlement of a run without one.
    pub(super) fn decode_run(&self, started: &StartedRun) -> Result<StoredRequest, Settlement> {
        let run = &started.run;
        match decode_request(self.binding(run), &run.envelope) {
            Ok(request) => Ok(request),
            Err(EnvelopeError::NewerVersion) => Err(postpone(run, NEWER_VERSION)),
            Err(EnvelopeError::MissingKey) => {
                tracing::error!(
                    job = %run.id.log_prefix(),
                    "the job is sealed with a key that this process lacks; add it by \
                     with_decryption_key"
                );
                Err(postpone(run, NO_KEY))
            }
            Err(EnvelopeError::Corrupted) => {
                tracing::error!(
                    job = %run.id.log_prefix(), "the stored request was modified or moved; the job is dead"
                );
                let retention = self.worker.settlement_rules.dead_retention;
                Err(Settlement::Dead { reason: "unreadable", retention })
            }
        }
    }

    /// Runs the job and returns its settlement; `None` if the lock is lost before the routes
    /// respond.
    pub(super) async fn execute_run(
        &self,
        request: StoredRequest,
        started: &StartedRun,
    ) -> Option<Settlement> {
        let (worker, run) = (&*self.worker, &started.run);
        let binding = self.binding(run);
        if *self.shutdown.borrow() != ShutdownPhase::Running {
            return Some(drained_settlement());
        }
        if request.head.method == webhook::WEBHOOK_METHOD {
            return self.execute_webhook(&request, binding, started).await;
        }
        let restored = match worker.snapshot_restorers.restore_all(&request.snapshots) {
            Ok(restored) => restored,
            Err(snapshot) => {
                tracing::error!(
                    job = %run.id.log_prefix(), snapshot,
                    "the job carries a snapshot that this worker cannot restore; add \
                     .for_user::<U>() or .restore_extension::<T>() to it"
                );
                *worker.unrestored_snapshot.lock() = Some(snapshot);
                return Some(postpone(run, UNKNOWN_SNAPSHOT));
            }
        };
        let accepted_at = accepted_at(run);
        let (id, attempt, fence) = (run.id.clone(), run.attempt, run.fence);
        let job = RunningJob { id, attempt, accepted_at, fence };
        let hold_state = Arc::clone(started.hold.state());
        let cancellation = started.cancellation.clone();
        let marker =
            ReplayMarker::with_snapshots(job, &worker.store, hold_state, cancellation, restored);
        if let Err(settlement) = self.authorize_run(&request, &marker, started).await {
            return settlement;
        }
        self.replay_request(request, binding, &marker, started).await
    }

    /// Delivers a webhook if a slot of its receiver is free. Returns `None` if the lock is lost; a
    /// webhook may always be sent again.
    async fn execute_webhook(
        &self,
        request: &StoredRequest,
        binding: EnvelopeBinding<'_>,
        started: &StartedRun,
    ) -> Option<Settlement> {
        let WorkerSettings { webhooks, settlement_rules, .. } = &*self.worker;
        let contended = self.contended.load(Ordering::Relaxed);
        let limits = WebhookLimits { max_calls: self.slot.limit(), contended };
        let Some(receiver_slot) =
            self.webhook_receivers.try_acquire_slot(&self.key, &request.head.target, limits)
        else {
            return Some(self.no_slot_settlement(started));
        };
        let delivery = webhook::deliver_webhook(
            webhooks.as_deref(),
            settlement_rules,
            (binding, &started.run),
            request,
            receiver_slot,
        );
        tokio::select! {
            settlement = delivery => {
                Some(settlement.unwrap_or_else(|| self.no_slot_settlement(started)))
            }
            _ = started.hold.state().wait_for_loss() => None,
            () = self.wait_for_shutdown(ShutdownPhase::Aborting) => Some(drained_settlement()),
            () = started.cancellation.cancelled() => Some(drained_settlement()),
        }
    }

    fn no_slot_settlement(&self, started: &StartedRun) -> Settlement {
        let age_delay = age_backoff(accepted_at(&started.run));
        let delay = self.webhook_receivers.retry_delay(&self.key, age_delay);
        Settlement::Postpone { delay, reason: webhook::NO_RECEIVER_SLOT }
    }

    async fn replay_request(
        &self,
        request: StoredRequest,
        binding: EnvelopeBinding<'_>,
        marker: &ReplayMarker,
        started: &StartedRun,
    ) -> Option<Settlement> {
        let worker = &*self.worker;
        let StoredRequest { mut head, max_attempts, body, .. } = request;
        let may_rerun = max_attempts > 1;
        if !head.headers.iter().any(|(name, _)| name == IDEMPOTENCY_KEY) {
            let key = derive_idempotency_key(&marker.job().id);
            head.headers.push((IDEMPOTENCY_KEY.to_owned(), key.into_bytes()));
        }
        let context = RunContext {
            replay: marker,
            binding,
            max_attempts,
            rules: &worker.settlement_rules,
            label: &started.label,
        };
        let _abandon_on_drop = AbandonOnDrop::new(marker, started.hold.state());
        tokio::select! {
            // In this order: no handler starts on a lost lock, or once runs are aborted.
            biased;
            loss = started.hold.state().wait_for_loss() => {
                tracing::error!(job = %marker.job().id.log_prefix(), ?loss, "run abandoned: lock lost");
                None
            }
            () = self.wait_for_shutdown(ShutdownPhase::Aborting) => self.abort_run(marker, may_rerun).await,
            outcome = worker.replayer.replay(head, body, marker.clone(), worker.response_limit) => {
                if let Some(route) = marker.route() {
                    started.label.record_route(route);
                    started.span.record("http.route", route);
                }
                self.log_missing_value(&outcome, started);
                let settlement = context.classify(outcome);
                self.await_handler_exit(marker, started, may_rerun, settlement).await
            }
            // Last: a run that has ended keeps its outcome.
            () = started.wait_for_cut_off(marker) => self.drop_cancelled_run(marker, started, may_rerun).await,
        }
    }

    /// Logs cause and fix if the handler lacks a value that it has in the server: the direct
    /// request succeeds, and the client of the deferred one sees a dead job without a cause.
    fn log_missing_value(&self, outcome: &ReplayOutcome, started: &StartedRun) {
        let ReplayOutcome::Answered(response) = outcome else { return };
        let Some(cause_and_fix) = self.worker.replayer.missing_value(response) else { return };
        tracing::error!(
            job = %started.run.id.log_prefix(),
            method = started.label.method(),
            route = started.label.route(),
            status = response.status,
            "run failed: {cause_and_fix}"
        );
    }

    /// Waits until a handler has ended that continues in its own task after an outer layer has
    /// responded. Only then is the run over and its lock free.
    pub(super) async fn await_handler_exit(
        &self,
        marker: &ReplayMarker,
        started: &StartedRun,
        may_rerun: bool,
        settlement: Settlement,
    ) -> Option<Settlement> {
        if !marker.is_running_here() {
            return Some(settlement);
        }
        tokio::select! {
            biased;
            () = marker.wait_until_ended() => Some(settlement),
            loss = started.hold.state().wait_for_loss() => {
                tracing::error!(job = %marker.job().id.log_prefix(), ?loss, "run abandoned: lock lost");
                None
            }
            () = self.wait_for_shutdown(ShutdownPhase::Aborting) => self.abort_run(marker, may_rerun).await,
        }
    }
}

fn accepted_at(run: &ClaimedRun) -> SystemTime {
    UNIX_EPOCH + Duration::from_micros(run.accepted_us)
}

/// Returns the settlement of a run that is left to another worker.
fn postpone(run: &ClaimedRun, reason: &'static str) -> Settlement {
    Settlement::Postpone { delay: age_backoff(accepted_at(run)), reason }
}

const NEWER_VERSION: &str = "newer version";
const NO_KEY: &str = "no key";
const UNKNOWN_SNAPSHOT: &str = "unknown snapshot";

/// Returns true if another worker may be able to run the job: one with another version or with
/// other routes.
pub(super) fn is_peer_runnable(reason: &str) -> bool {
    matches!(
        reason,
        NEWER_VERSION
            | NO_KEY
            | UNKNOWN_SNAPSHOT
            | UNREACHABLE
            | UNROUTABLE
            | webhook::NO_WEBHOOK_SENDER
    )
}

pub(super) fn outcome_label(settlement: &Settlement) -> &'static str {
    match settlement {
        Settlement::Done { .. } | Settlement::WebhookSettled { response: Some(_), .. } => "done",
        Settlement::Cancelled { .. } => "cancelled",
        Settlement::Dead { reason, .. }
        | Settlement::WebhookSettled { reason, .. }
        | Settlement::Retry { reason, .. }
        | Settlement::Postpone { reason, .. }
        | Settlement::ReturnToQueue { reason, .. } => reason,
    }
}

/// Returns the HTTP status of the response that this settlement stores. A 400 of the handler is
/// `done` like a 200, so its log record needs it.
pub(super) fn stored_status(settlement: &Settlement) -> Option<u16> {
    match settlement {
        Settlement::Done { status, .. }
        | Settlement::WebhookSettled { response: Some((_, status)), .. } => Some(*status),
        _ => None,
    }
}
