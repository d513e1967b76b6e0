//! Direct runs that are recorded under their `Idempotency-Key`.

use std::time::Duration;

use bytes::Bytes;
use tokio::{sync::oneshot, time::Instant};

use crate::{
    error::Error,
    key::Key,
    store::{
        BeginDirectOutcome, DirectRunCommand, DirectRunPermit, IdempotencyRecordCompletion,
        IdempotencyRecordOutcome, JobId, LocalDirectRunTracker, Store,
    },
};

/// Renewals within a lease; two of them may be late or lost.
const RENEWALS_PER_LEASE: u32 = 3;

/// Record of a direct run, renewed in the background while this value lives.
///
/// A run that is dropped without a result is settled in the background, also if the store is
/// unavailable at first:
///
/// - Before the handler was called: the record is discarded, so a retry runs.
/// - Later (a panic, a lost lock, the end of the runtime): it is discarded if the request is
///   repeatable, otherwise it becomes dead, since the request may have run.
///
/// If the process dies, the renewals stop, and the next call that meets the record settles it in
/// the same way.
#[derive(Debug)]
pub(crate) struct IdempotentRun {
    store: Store,
    /// `None` once the run has been settled.
    completion: Option<Box<IdempotencyRecordCompletion>>,
    handler_called: bool,
    /// Deadline of a run without a client.
    abandon_at: Instant,
    /// Stops the renewals when it is dropped.
    stop_renewals: Option<oneshot::Sender<()>>,
    #[expect(dead_code, reason = "the run is counted until it is dropped")]
    run_permit: DirectRunPermit,
}

/// Limits of direct runs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RunLimits {
    /// Most direct runs of the process at once.
    pub(crate) max_runs: usize,
    /// Longest time that a run may take after its start if its client has disconnected.
    pub(crate) max_detached_time: Duration,
}

/// Outcome of [`IdempotentRun::begin`].
pub(crate) enum BeginOutcome {
    Started(IdempotentRun),
    /// Another request has the record.
    Taken,
    /// The request's lock was lost before the run began.
    LockLost,
    /// `RunLimits::max_runs` are in progress.
    AtCapacity,
    /// The owner has as many idempotency keys as it may; the first of them ends after this time.
    TooManyKeys(Duration),
}

impl IdempotentRun {
    /// Takes the record and begins the run.
    pub(crate) async fn begin(
        store: &Store,
        command: DirectRunCommand,
        limits: RunLimits,
    ) -> Result<BeginOutcome, Error> {
        let Some(run_permit) =
            store.extension::<LocalDirectRunTracker>().try_begin(limits.max_runs)
        else {
            crate::throttle::throttled!(
                warn,
                node = %store.node(), most = limits.max_runs,
                "not started: too many direct runs"
            );
            return Ok(BeginOutcome::AtCapacity);
        };
        // Before the call: it may have taken effect although this future is dropped or no reply
        // comes.
        let completion = Some(Box::new(IdempotencyRecordCompletion::new(store, command.clone())));
        let abandon_at = Instant::now() + limits.max_detached_time;
        let store = store.clone();
        let mut idempotent_run = Self {
            store,
            completion,
            handler_called: false,
            abandon_at,
            stop_renewals: None,
            run_permit,
        };
        let reply = idempotent_run.store.backend().begin_direct(command.clone()).await;
        let may_be_stored = idempotent_run
            .completion
            .as_mut()
            .is_some_and(|completion| completion.record_reply(&idempotent_run.store, &reply));
        idempotent_run.completion = idempotent_run.completion.take().filter(|_| may_be_stored);
        Ok(idempotent_run.into_begin_outcome(reply?, command))
    }

    /// Starts the renewals of a run that has begun. Otherwise drops it.
    fn into_begin_outcome(
        mut self,
        reply: BeginDirectOutcome,
        command: DirectRunCommand,
    ) -> BeginOutcome {
        match reply {
            BeginDirectOutcome::Started => {
                self.spawn_renewals(command);
                BeginOutcome::Started(self)
            }
            BeginDirectOutcome::RecordTaken(job) => {
                tracing::debug!(
                    node = %self.store.node(), job = %job.log_prefix(), "not started: its idempotency key is in use"
                );
                BeginOutcome::Taken
            }
            BeginDirectOutcome::LockLost => BeginOutcome::LockLost,
            BeginDirectOutcome::TooManyRecords(remaining) => {
                crate::throttle::throttled!(
                    warn,
                    node = %self.store.node(),
                    "request refused: too many idempotency keys"
                );
                BeginOutcome::TooManyKeys(remaining)
            }
        }
    }

    /// Renews the run until it ends, in a task of its own: the handler may keep its task busy.
    fn spawn_renewals(&mut self, command: DirectRunCommand) {
        let (stop_sender, mut stop_receiver) = oneshot::channel();
        self.stop_renewals = Some(stop_sender);
        // A weak handle: the renewals must not keep the store alive.
        let store = self.store.downgrade();
        self.store.spawn_long_running(async move {
            loop {
                let pause = tokio::time::sleep(command.lease / RENEWALS_PER_LEASE);
                tokio::select! {
                    _ = &mut stop_receiver => return,
                    () = pause => {}
                }
                let Some(store) = store.upgrade() else { return };
                match store.backend().renew_direct(command.clone()).await {
                    Ok(true) => {}
                    Ok(false) => return,
                    Err(error) => {
                        tracing::warn!(
                            node = %store.node(), job = %command.id.log_prefix(), %error,
                            "renewal of a direct run failed"
                        );
                    }
                }
            }
        });
    }

    pub(crate) fn store(&self) -> &Store {
        &self.store
    }

    /// Returns the run's id and the lock that it runs under; `None` once it has been settled.
    pub(crate) fn job_and_key(&self) -> Option<(&JobId, &Key)> {
        self.completion.as_ref().map(|completion| (&completion.command.id, &completion.command.key))
    }

    /// Returns the deadline of the run if its client has disconnected.
    pub(crate) fn abandon_at(&self) -> Instant {
        self.abandon_at
    }

    /// Notes that the handler is called; from here on its progress is unknown.
    pub(crate) fn mark_started(&mut self) {
        self.handler_called = true;
    }

    /// Returns true if a run with an unknown outcome may be repeated.
    pub(crate) fn is_repeatable(&self) -> bool {
        self.completion.as_ref().is_none_or(|completion| completion.command.retry_after_crash)
    }

    /// Settles the run with its response, which is kept for `retention`, and its fingerprint if
    /// there is one.
    pub(crate) async fn record_response(
        mut self,
        retention: Duration,
        response: Bytes,
        fingerprint: Option<String>,
    ) {
        if let Some(completion) = &mut self.completion {
            (completion.command.retention, completion.command.fingerprint) =
                (retention, fingerprint);
            completion.outcome = IdempotencyRecordOutcome::Done(response);
        }
        self.send_completion().await;
    }

    /// Discards the record.
    pub(crate) async fn forget(mut self) {
        self.send_completion().await;
    }

    /// Settles the run as dead: it may have run.
    pub(crate) async fn record_dead(mut self, reason: &'static str) {
        if let Some(completion) = &mut self.completion {
            completion.outcome = IdempotencyRecordOutcome::Dead(reason);
        }
        self.send_completion().await;
    }

    async fn send_completion(&mut self) {
        // The outcome is decided now, even if the handler was called.
        self.handler_called = false;
        let Some(completion) = &self.completion else { return };
        let (command, outcome) = (completion.command.clone(), completion.outcome.clone());
        let job = command.id.clone();
        match outcome.apply(self.store.backend(), command).await {
            Ok(_) => {
                self.completion =
                    self.completion.take().filter(|completion| completion.may_be_retaken());
                if let Some(completion) = &mut self.completion {
                    completion.mark_completed();
                }
            }
            // Sent again on drop.
            Err(error) => {
                crate::throttle::throttled!(
                    warn,
                    node = %self.store.node(), job = %job.log_prefix(), %error,
                    "result of a direct run not stored yet: the store is unavailable"
                );
            }
        }
    }
}

impl Drop for IdempotentRun {
    fn drop(&mut self) {
        let Some(mut completion) = self.completion.take() else { return };
        if self.handler_called && !completion.command.retry_after_crash {
            completion.outcome = IdempotencyRecordOutcome::Dead(STOPPED_REASON);
        }
        completion.complete_in_background(&self.store);
    }
}

/// Reason of a dead run with an unfinished handler.
pub(crate) const STOPPED_REASON: &str = "stopped, may have run";

#[cfg(test)]
pub(super) mod tests;
