//! A request that runs at once and is remembered under its `Idempotency-Key`.

use std::time::Duration;

use bytes::Bytes;
use tokio::{sync::oneshot, time::Instant};

use crate::{
    error::Error,
    key::Key,
    store::{BeginDirectOutcome, DirectRunCommand, RecordOutcome, DirectRunPermit, DirectRunCounter, RecordCompletion, JobId, Store},
};

/// Renewals of a run within its lease: two may be late or lost.
const RENEWALS: u32 = 3;

/// The record of a request that runs. It is renewed in the background while this lives.
///
/// Dropped without an end before the handler began, it is forgotten, so that a retry runs. Dropped later (a panic, a lost
/// lock, a runtime that ends), it is forgotten if the request may run again, else dead: it may have run. Both are told to
/// the store in the background, also to one that is away at first. If the process dies instead, the run is not renewed any
/// more, and the next call that meets its record does the same.
#[derive(Debug)]
pub(crate) struct Begun {
    store: Store,
    /// `None` once it has ended.
    ending: Option<Box<RecordCompletion>>,
    /// The handler was called.
    started: bool,
    /// Longest time to go on without a client.
    until: Instant,
    /// Ends the renewals when it is dropped.
    renewals: Option<oneshot::Sender<()>>,
    #[expect(dead_code, reason = "the run is counted until it is dropped")]
    run: DirectRunPermit,
}

/// Bounds of a run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RunLimits {
    /// Most runs of the process at once.
    pub(crate) most: usize,
    /// How long it may go on when its client has left.
    pub(crate) time: Duration,
}

/// Answer to a request for the record.
pub(crate) enum Begin {
    Begun(Begun),
    /// Another request has it.
    Taken,
    /// The lock it is to run under was lost before.
    Lost,
    /// As many run as may.
    Full,
    /// No more keys are kept of its owner, until the first of them ends.
    TooManyKeys(Duration),
}

impl Begun {
    /// Takes the record.
    pub(crate) async fn begin(
        store: &Store,
        call: DirectRunCommand,
        limits: RunLimits,
    ) -> Result<Begin, Error> {
        let Some(run) = store.extension::<DirectRunCounter>().try_begin(limits.most) else {
            crate::throttle::throttled!(
                warn,
                node = %store.node(), most = limits.most,
                "not begun: too many remembered requests run"
            );
            return Ok(Begin::Full);
        };
        // First: if this future is dropped, or there is no answer, the call may have done its work.
        let ending = Some(Box::new(RecordCompletion::new(store, call.clone())));
        let until = Instant::now() + limits.time;
        let store = store.clone();
        let mut begun = Self { store, ending, started: false, until, renewals: None, run };
        let answer = begun.store.backend().begin_direct(call.clone()).await;
        let is_there =
            begun.ending.as_mut().is_some_and(|ending| ending.record_reply(&begun.store, &answer));
        begun.ending = begun.ending.take().filter(|_| is_there);
        Ok(match answer? {
            BeginDirectOutcome::Started => {
                begun.renew(call);
                Begin::Begun(begun)
            }
            BeginDirectOutcome::RecordTaken(job) => {
                tracing::debug!(node = %begun.store.node(), ?job, "not begun: its record is taken");
                Begin::Taken
            }
            BeginDirectOutcome::LockLost => Begin::Lost,
            BeginDirectOutcome::TooManyRecords(left) => {
                crate::throttle::throttled!(
                    warn,
                    node = %begun.store.node(),
                    "request refused: too many idempotency keys are kept"
                );
                Begin::TooManyKeys(left)
            }
        })
    }

    /// Renews the run until it has ended, beside the agent: the handler may keep its own task busy.
    fn renew(&mut self, call: DirectRunCommand) {
        let (renewals, mut ended) = oneshot::channel();
        self.renewals = Some(renewals);
        // Not a handle that keeps the store alive.
        let store = self.store.downgrade();
        self.store.spawn_long_running(async move {
            loop {
                let pause = tokio::time::sleep(call.lease / RENEWALS);
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
    pub(crate) fn is(&self) -> Option<(&JobId, &Key)> {
        self.ending.as_ref().map(|ending| (&ending.command.id, &ending.command.key))
    }

    /// When it must have ended if its client has left.
    pub(crate) fn until(&self) -> Instant {
        self.until
    }

    /// The handler is called now: from here on it is unknown how far it came.
    pub(crate) fn start(&mut self) {
        self.started = true;
    }

    /// True if a run of unknown outcome may be repeated.
    pub(crate) fn may_run_again(&self) -> bool {
        self.ending.as_ref().is_none_or(|ending| ending.command.retry_after_crash)
    }

    /// Ends it with its response, which is kept for so long, and its fingerprint if there is one.
    pub(crate) async fn keep(mut self, life: Duration, response: Bytes, print: Option<String>) {
        if let Some(ending) = &mut self.ending {
            (ending.command.retention, ending.command.fingerprint) = (life, print);
            ending.outcome = RecordOutcome::Done(response);
        }
        self.end().await;
    }

    /// Ends it as if it had never been.
    pub(crate) async fn forget(mut self) {
        self.end().await;
    }

    /// Ends it as one that may have run.
    pub(crate) async fn bury(mut self, reason: &'static str) {
        if let Some(ending) = &mut self.ending {
            ending.outcome = RecordOutcome::Dead(reason);
        }
        self.end().await;
    }

    async fn end(&mut self) {
        // What becomes of it is known now, whatever was called.
        self.started = false;
        let Some(ending) = &self.ending else { return };
        let (call, end) = (ending.command.clone(), ending.outcome.clone());
        let job = call.id.clone();
        match end.apply(self.store.backend(), call).await {
            Ok(_) => {
                self.ending = self.ending.take().filter(|ending| ending.may_be_retaken());
                if let Some(ending) = &mut self.ending {
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

impl Drop for Begun {
    fn drop(&mut self) {
        let Some(mut ending) = self.ending.take() else { return };
        if self.started && !ending.command.retry_after_crash {
            ending.outcome = RecordOutcome::Dead(STOPPED);
        }
        ending.complete_in_background(&self.store);
    }
}

/// Reason of a run whose handler did not come to its end.
pub(crate) const STOPPED: &str = "stopped, may have run";

#[cfg(test)]
pub(super) mod tests;
