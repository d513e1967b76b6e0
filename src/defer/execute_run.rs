//! Execution of one run: decoding, authorization, replay, and the settlement that follows.

use std::{
    sync::{Arc, atomic::Ordering},
    time::{Duration, UNIX_EPOCH},
};

use super::{
    claim_and_settle::StartedRun,
    envelope::{EnvelopeBinding, EnvelopeError, StoredRequest, decode_request},
    job_chain::{JobChain, ShutdownPhase},
    run_guard::{RunGuard, drained_settlement},
    settlement_rules::{RunContext, UNREACHABLE, UNROUTABLE, age_backoff},
    stored_headers::{IDEMPOTENCY_KEY, derive_idempotency_key},
    webhook,
    webhook_receivers::WebhookLimits,
    worker::WorkerSettings,
};
use crate::{
    gate::{ReplayMarker, RunningJob},
    store::Settlement,
};

impl JobChain {
    /// Runs the job and returns its settlement; `None` if the lock is lost before the routes
    /// respond.
    pub(super) async fn execute_run(&self, started: &StartedRun) -> Option<Settlement> {
        let worker = &*self.worker;
        let run = &started.run;
        let at = EnvelopeBinding { store: &worker.store, id: &run.id, lock: &self.key };
        let first_seen = UNIX_EPOCH + Duration::from_micros(run.accepted_us);
        let back = |reason| Some(Settlement::Postpone { delay: age_backoff(first_seen), reason });
        let request = match decode_request(at, &run.envelope) {
            Ok(request) => request,
            Err(EnvelopeError::NewerVersion) => return back(NEWER_VERSION),
            Err(EnvelopeError::MissingKey) => {
                tracing::error!(
                    job = ?run.id,
                    "the job is sealed with a key that this process lacks; add it by \
                     with_decryption_key"
                );
                return back(NO_KEY);
            }
            Err(EnvelopeError::Corrupted) => {
                tracing::error!(
                    job = ?run.id, "the stored request was modified or moved; the job is dead"
                );
                let retention = worker.settlement_rules.dead_retention;
                return Some(Settlement::Dead { reason: "unreadable", retention });
            }
        };
        if *self.shutdown.borrow() != ShutdownPhase::Running {
            return Some(drained_settlement());
        }
        if request.head.method == webhook::WEBHOOK_METHOD {
            return self.execute_webhook(&request, at, started).await;
        }
        let restored = match worker.snapshot_restorers.restore_all(&request.snapshots) {
            Ok(restored) => restored,
            Err(snapshot) => {
                tracing::error!(
                    job = ?run.id, snapshot,
                    "the job carries a snapshot that this worker cannot restore; add \
                     .restore_extension::<T>()"
                );
                return back(UNKNOWN_SNAPSHOT);
            }
        };
        let (id, attempt, fence) = (run.id.clone(), run.attempt, run.fence);
        let deferred = RunningJob { id, attempt, accepted_at: first_seen, fence };
        let facts = Arc::clone(started.hold.state());
        let marker = ReplayMarker::with_snapshots(deferred, &worker.store, facts, restored);
        if let Err(ends) = self.authorize_run(&request, &marker, started).await {
            return ends;
        }
        self.replay_request(request, at, &marker, started).await
    }

    /// Delivers a webhook if a slot of its receiver is free. Returns `None` if the lock is lost; a
    /// webhook may always be sent again.
    async fn execute_webhook(
        &self,
        request: &StoredRequest,
        at: EnvelopeBinding<'_>,
        started: &StartedRun,
    ) -> Option<Settlement> {
        let WorkerSettings { webhooks: callbacks, settlement_rules: rules, .. } = &*self.worker;
        let crowded = self.contended.load(Ordering::Relaxed);
        let room = WebhookLimits { max_calls: self.slot.limit(), contended: crowded };
        let Some(turn) =
            self.webhook_receivers.try_acquire_slot(&self.key, &request.head.target, room)
        else {
            return Some(self.no_slot_settlement(started));
        };
        let by = callbacks.as_deref();
        tokio::select! {
            verdict = webhook::deliver_webhook(by, rules, (at, &started.run), request, turn) => {
                Some(verdict.unwrap_or_else(|| self.no_slot_settlement(started)))
            }
            _ = started.hold.state().wait_for_loss() => None,
            () = self.wait_for_shutdown(ShutdownPhase::Aborting) => Some(drained_settlement()),
        }
    }

    fn no_slot_settlement(&self, started: &StartedRun) -> Settlement {
        let first_seen = UNIX_EPOCH + Duration::from_micros(started.run.accepted_us);
        let delay = self.webhook_receivers.retry_delay(&self.key, age_backoff(first_seen));
        Settlement::Postpone { delay, reason: webhook::NO_RECEIVER_SLOT }
    }

    async fn replay_request(
        &self,
        request: StoredRequest,
        at: EnvelopeBinding<'_>,
        marker: &ReplayMarker,
        started: &StartedRun,
    ) -> Option<Settlement> {
        let worker = &*self.worker;
        let StoredRequest { mut head, max_attempts, body, .. } = request;
        let idempotent = max_attempts > 1;
        if !head.headers.iter().any(|(name, _)| name == IDEMPOTENCY_KEY) {
            let key = derive_idempotency_key(&marker.job().id);
            head.headers.push((IDEMPOTENCY_KEY.to_owned(), key.into_bytes()));
        }
        let run = RunContext {
            replay: marker,
            binding: at,
            max_attempts,
            rules: &worker.settlement_rules,
        };
        let _attended = RunGuard::new(marker, started.hold.state());
        tokio::select! {
            // In this order: no handler starts on a lost lock, or once runs are aborted.
            biased;
            loss = started.hold.state().wait_for_loss() => {
                tracing::error!(job = ?marker.job().id, ?loss, "run abandoned: lock lost");
                None
            }
            () = self.wait_for_shutdown(ShutdownPhase::Aborting) => self.abort_run(marker, idempotent).await,
            ran = worker.replayer.replay(head, body, marker.clone(), worker.response_limit) => {
                let verdict = run.classify(ran);
                self.await_handler_exit(marker, started, idempotent, verdict).await
            }
        }
    }

    /// Waits until a handler has ended that continues in its own task after an outer layer has
    /// responded. Only then is the run over and its lock free.
    async fn await_handler_exit(
        &self,
        marker: &ReplayMarker,
        started: &StartedRun,
        idempotent: bool,
        verdict: Settlement,
    ) -> Option<Settlement> {
        if !marker.is_running_here() {
            return Some(verdict);
        }
        tokio::select! {
            biased;
            () = marker.wait_until_ended() => Some(verdict),
            loss = started.hold.state().wait_for_loss() => {
                tracing::error!(job = ?marker.job().id, ?loss, "run abandoned: lock lost");
                None
            }
            () = self.wait_for_shutdown(ShutdownPhase::Aborting) => self.abort_run(marker, idempotent).await,
        }
    }
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

pub(super) fn outcome_label(verdict: &Settlement) -> &'static str {
    match verdict {
        Settlement::Done { .. } | Settlement::WebhookSettled { response: Some(_), .. } => "done",
        Settlement::Dead { reason, .. }
        | Settlement::WebhookSettled { reason, .. }
        | Settlement::Retry { reason, .. }
        | Settlement::Postpone { reason, .. }
        | Settlement::ReturnToQueue { reason, .. } => reason,
    }
}
