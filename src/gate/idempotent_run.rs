//! A request that runs at once and is remembered under its `Idempotency-Key`.

use std::time::Duration;

use bytes::Bytes;
use tokio::{sync::oneshot, time::Instant};

use crate::{
    error::Error,
    key::Key,
    store::{
        BeginDirectOutcome, DirectRunCommand, DirectRunCounter, DirectRunPermit, JobId,
        RecordCompletion, RecordOutcome, Store,
    },
};

/// Renewals of a run within its lease: two may be late or lost.
const RENEWALS_PER_LEASE: u32 = 3;

/// The record of a request that runs. It is renewed in the background while this lives.
///
/// Dropped without an end before the handler began, it is forgotten, so that a retry runs. Dropped later (a panic, a lost
/// lock, a runtime that ends), it is forgotten if the request may run again, else dead: it may have run. Both are told to
/// the store in the background, also to one that is away at first. If the process dies instead, the run is not renewed any
/// more, and the next call that meets its record does the same.
#[derive(Debug)]
pub(crate) struct IdempotentRun {
    store: Store,
    /// `None` once it has ended.
    completion: Option<Box<RecordCompletion>>,
    /// The handler was called.
    handler_called: bool,
    /// Longest time to go on without a client.
    abandon_at: Instant,
    /// Ends the renewals when it is dropped.
    stop_renewals: Option<oneshot::Sender<()>>,
    #[expect(dead_code, reason = "the run is counted until it is dropped")]
    run_permit: DirectRunPermit,
}

/// Bounds of a run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RunLimits {
    /// Most runs of the process at once.
    pub(crate) max_runs: usize,
    /// How long it may go on when its client has left.
    pub(crate) max_detached_time: Duration,
}

/// Answer to a request for the record.
pub(crate) enum BeginOutcome {
    Started(IdempotentRun),
    /// Another request has it.
    Taken,
    /// The lock it is to run under was lost before.
    LockLost,
    /// As many run as may.
    AtCapacity,
    /// No more keys are kept of its owner, until the first of them ends.
    TooManyKeys(Duration),
}

impl IdempotentRun {
    /// Takes the record.
    pub(crate) async fn begin(
        store: &Store,
        call: DirectRunCommand,
        limits: RunLimits,
    ) -> Result<BeginOutcome, Error> {
        let Some(run) = store.extension::<DirectRunCounter>().try_begin(limits.max_runs) else {
            crate::throttle::throttled!(
                warn,
                node = %store.node(), most = limits.max_runs,
                "not begun: too many remembered requests run"
            );
            return Ok(BeginOutcome::AtCapacity);
        };
        // First: if this future is dropped, or there is no answer, the call may have done its work.
        let ending = Some(Box::new(RecordCompletion::new(store, call.clone())));
        let until = Instant::now() + limits.max_detached_time;
        let store = store.clone();
        let mut begun = Self {
            store,
            completion: ending,
            handler_called: false,
            abandon_at: until,
            stop_renewals: None,
            run_permit: run,
        };
        let answer = begun.store.backend().begin_direct(call.clone()).await;
        let is_there = begun
            .completion
            .as_mut()
            .is_some_and(|ending| ending.record_reply(&begun.store, &answer));
        begun.completion = begun.completion.take().filter(|_| is_there);
        Ok(match answer? {
            BeginDirectOutcome::Started => {
                begun.spawn_renewals(call);
                BeginOutcome::Started(begun)
            }
            BeginDirectOutcome::RecordTaken(job) => {
                tracing::debug!(node = %begun.store.node(), ?job, "not begun: its record is taken");
                BeginOutcome::Taken
            }
            BeginDirectOutcome::LockLost => BeginOutcome::LockLost,
            BeginDirectOutcome::TooManyRecords(left) => {
                crate::throttle::throttled!(
                    warn,
                    node = %begun.store.node(),
                    "request refused: too many idempotency keys are kept"
                );
                BeginOutcome::TooManyKeys(left)
            }
        })
    }

    /// Renews the run until it has ended, beside the agent: the handler may keep its own task busy.
    fn spawn_renewals(&mut self, call: DirectRunCommand) {
        let (renewals, mut ended) = oneshot::channel();
        self.stop_renewals = Some(renewals);
        // Not a handle that keeps the store alive.
        let store = self.store.downgrade();
        self.store.spawn_long_running(async move {
            loop {
                let pause = tokio::time::sleep(call.lease / RENEWALS_PER_LEASE);
                tokio::select! {
                    _ = &mut ended => return,
                    () = pause => {}
                }
                let Some(store) = store.upgrade() else { return };
                match store.backend().renew_direct(call.clone()).await {
                    Ok(true) => {}
                    Ok(false) => return,
                    Err(error) => {
                        tracing::warn!(node = %store.node(), job = ?call.id, %error, "a run was not renewed");
                    }
                }
            }
        });
    }

    pub(crate) fn store(&self) -> &Store {
        &self.store
    }

    /// Its id, and the lock it runs under; `None` once it has ended.
    pub(crate) fn job_and_key(&self) -> Option<(&JobId, &Key)> {
        self.completion.as_ref().map(|ending| (&ending.command.id, &ending.command.key))
    }

    /// When it must have ended if its client has left.
    pub(crate) fn abandon_at(&self) -> Instant {
        self.abandon_at
    }

    /// The handler is called now: from here on it is unknown how far it came.
    pub(crate) fn mark_started(&mut self) {
        self.handler_called = true;
    }

    /// True if a run of unknown outcome may be repeated.
    pub(crate) fn is_repeatable(&self) -> bool {
        self.completion.as_ref().is_none_or(|ending| ending.command.retry_after_crash)
    }

    /// Ends it with its response, which is kept for so long, and its fingerprint if there is one.
    pub(crate) async fn record_response(
        mut self,
        life: Duration,
        response: Bytes,
        print: Option<String>,
    ) {
        if let Some(ending) = &mut self.completion {
            (ending.command.retention, ending.command.fingerprint) = (life, print);
            ending.outcome = RecordOutcome::Done(response);
        }
        self.send_completion().await;
    }

    /// Ends it as if it had never been.
    pub(crate) async fn forget(mut self) {
        self.send_completion().await;
    }

    /// Ends it as one that may have run.
    pub(crate) async fn record_dead(mut self, reason: &'static str) {
        if let Some(ending) = &mut self.completion {
            ending.outcome = RecordOutcome::Dead(reason);
        }
        self.send_completion().await;
    }

    async fn send_completion(&mut self) {
        // What becomes of it is known now, whatever was called.
        self.handler_called = false;
        let Some(ending) = &self.completion else { return };
        let (call, end) = (ending.command.clone(), ending.outcome.clone());
        let job = call.id.clone();
        match end.apply(self.store.backend(), call).await {
            Ok(_) => {
                self.completion = self.completion.take().filter(|ending| ending.may_be_retaken());
                if let Some(ending) = &mut self.completion {
                    ending.mark_completed();
                }
            }
            // Again when it is dropped.
            Err(error) => {
                crate::throttle::throttled!(
                    warn,
                    node = %self.store.node(), ?job, %error, "not remembered yet: store away"
                );
            }
        }
    }
}

impl Drop for IdempotentRun {
    fn drop(&mut self) {
        let Some(mut ending) = self.completion.take() else { return };
        if self.handler_called && !ending.command.retry_after_crash {
            ending.outcome = RecordOutcome::Dead(STOPPED_REASON);
        }
        ending.complete_in_background(&self.store);
    }
}

/// Reason of a run whose handler did not come to its end.
pub(crate) const STOPPED_REASON: &str = "stopped, may have run";

#[cfg(test)]
pub(super) mod tests;
