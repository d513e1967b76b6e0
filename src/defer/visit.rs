//! One visit to a lock that has jobs: claim, run, settle.

use std::{
    panic::AssertUnwindSafe,
    sync::Arc,
    time::{Duration, UNIX_EPOCH},
};

use bytes::Bytes;
use futures_util::FutureExt as _;
use tokio::{sync::watch, time::Instant};

use super::{
    envelope::{StoredRequest, Unreadable, read_request},
    judge::Run,
    worker::DeferWorker,
};
use crate::{
    gate::{Deferred, Replay},
    key::Key,
    store::{
        Attempt, Claim, Claimed, Hold, JobId, Mode, Run as Started, Settle, SettledRun, Terms,
        Verdict,
    },
};

/// How long an envelope of a newer version is left to newer workers.
const NEWER: Duration = Duration::from_secs(30);

/// Heads looked at in one visit; dead ones are passed, the rest is for the next visit.
const HEADS: usize = 8;

/// Pause between two claims of which the first was not answered.
const PAUSE: Duration = Duration::from_millis(50);

pub(super) struct Visit {
    pub(super) worker: Arc<DeferWorker>,
    pub(super) key: Key,
    pub(super) stopped: watch::Receiver<bool>,
}

/// When the lock is worth another look.
#[derive(Clone, Copy)]
pub(super) enum Next {
    After(Duration),
    /// A message will tell; the due index has it too.
    WhenTold,
}

struct Claimant {
    id: JobId,
    hold: Hold,
    envelope: Bytes,
    marker: Replay,
}

impl Visit {
    /// Runs the first job of the line, if it can be claimed.
    pub(super) async fn run(self, hint: Option<JobId>) -> (Key, Next) {
        // A panic of the application's code (a destructor, a clone of the service) must not take the
        // lock's name with it: the worker would never visit it again.
        let visit = AssertUnwindSafe(self.claim_and_run(hint)).catch_unwind().await;
        let next = visit.unwrap_or_else(|_| {
            tracing::error!(lock = %self.key.hashed(), "a visit panicked");
            Next::After(Duration::from_secs(1))
        });
        (self.key, next)
    }

    async fn claim_and_run(&self, mut head: Option<JobId>) -> Next {
        for _ in 0..HEADS {
            let id = match head.take() {
                Some(id) => id,
                // A line without jobs that is due all the same: the claim finds that out, and mends it.
                None => self.head().await.unwrap_or_else(|| JobId::new(&self.key)),
            };
            match self.claim(id).await {
                Ok(Ok(claimant)) => {
                    self.run_job(claimant).await;
                    return Next::WhenTold;
                }
                Ok(Err(moved)) => head = moved,
                Err(next) => return next,
            }
        }
        Next::After(Duration::ZERO)
    }

    async fn head(&self) -> Option<JobId> {
        let heads = self.worker.store.backend().heads(vec![self.key.clone()]).await.ok()?;
        heads.into_iter().next().flatten()
    }

    /// `Ok(Err(..))`: another job is first now, this one if the store said which.
    async fn claim(&self, id: JobId) -> Result<Result<Claimant, Option<JobId>>, Next> {
        let DeferWorker { store, lease, max_run, .. } = &*self.worker;
        let mut attempt = Attempt::claim(store, &self.key, &id);
        match self.send_claim(&mut attempt, &id).await {
            Some(Claimed::Claimed(Started {
                fence,
                attempt: number,
                envelope,
                accepted_us,
                ..
            })) => {
                let job = Some(id.clone());
                let terms = Terms {
                    lease: *lease,
                    renew: true,
                    max_hold: *max_run,
                    job,
                    mode: Mode::Exclusive,
                };
                let hold = attempt.granted(fence, terms);
                let accepted = UNIX_EPOCH + Duration::from_micros(accepted_us);
                let deferred = Deferred { id: id.clone(), attempt: number, accepted };
                let marker = Replay::new(deferred, store, Arc::clone(hold.facts()));
                Ok(Ok(Claimant { id, hold, envelope, marker }))
            }
            Some(answer) => {
                attempt.refused();
                match answer {
                    Claimed::Busy(wait) | Claimed::Later(wait) => Err(Next::After(wait)),
                    Claimed::Empty => Err(Next::WhenTold),
                    Claimed::Dead(id) => {
                        tracing::error!(job = ?id, "deferred request is dead: crashed or lost");
                        Ok(Err(None))
                    }
                    Claimed::Moved(first) => Ok(Err(Some(first))),
                    Claimed::Claimed(_) => Ok(Err(None)),
                }
            }
            None => Err(Next::After(Duration::from_millis(200))),
        }
    }

    /// The claim, with the same token as long as a claim that got through unanswered would be sure to
    /// hold: given up too soon, it would leave a job that looks as if its worker had died.
    async fn send_claim(&self, attempt: &mut Attempt, id: &JobId) -> Option<Claimed> {
        let DeferWorker { store, lease, keep_dead, .. } = &*self.worker;
        let mut give_up = None;
        loop {
            let call = Claim {
                key: self.key.clone(),
                id: id.clone(),
                me: attempt.me.clone(),
                lease: *lease,
                retention: *keep_dead,
            };
            let error = match attempt.send(*lease, store.backend().claim(call)).await {
                Ok(claimed) => return Some(claimed),
                Err(error) => error,
            };
            tracing::warn!(job = ?id, %error, "claim failed");
            if error.may_have_run() {
                give_up.get_or_insert(attempt.sure_until());
            }
            match give_up {
                Some(give_up) if Instant::now() < give_up => tokio::time::sleep(PAUSE).await,
                _ => return None,
            }
        }
    }

    async fn run_job(&self, claimant: Claimant) {
        let Claimant { id, mut hold, envelope, marker } = claimant;
        let worker = &*self.worker;
        let attempt = marker.deferred().attempt;
        tracing::info!(
            node = %worker.store.node(), lock = %self.key.hashed(), job = ?id, attempt, "run started"
        );
        let verdict = match read_request(&envelope) {
            Ok(request) => match self.replay(request, &marker, &hold).await {
                Some(verdict) => verdict,
                // The lock was lost, and the run with it: whoever has the job now decides about it.
                None => return,
            },
            Err(Unreadable::Newer) => Verdict::Back { delay: NEWER, reason: "newer version" },
            Err(Unreadable::Broken) => {
                Verdict::Dead { reason: "unreadable", retention: worker.keep_dead }
            }
        };
        let outcome = word(&verdict);
        if self.settle(&id, &hold, verdict).await {
            tracing::info!(node = %worker.store.node(), job = ?id, attempt, outcome, "run ended");
            hold.forget();
        } else {
            tracing::error!(node = %worker.store.node(), job = ?id, attempt, "run lost");
        }
    }

    /// `None` if the lock is lost before the routes have answered.
    async fn replay(
        &self,
        request: StoredRequest,
        marker: &Replay,
        hold: &Hold,
    ) -> Option<Verdict> {
        let worker = &*self.worker;
        let StoredRequest { head, max_attempts, body } = request;
        let idempotent = max_attempts > 1;
        let run =
            Run { marker, max_attempts, keep_done: worker.keep_done, keep_dead: worker.keep_dead };
        let stopped = told_to_stop(self.stopped.clone());
        tokio::select! {
            ran = worker.replayer.replay(head, body, marker.clone(), worker.response_limit) => {
                Some(run.judge(ran))
            }
            loss = hold.facts().lost() => {
                tracing::error!(job = ?marker.deferred().id, ?loss, "run abandoned: lock lost");
                None
            }
            () = stopped => Some(if idempotent {
                Verdict::Back { delay: Duration::from_millis(1), reason: "drained" }
            } else {
                Verdict::Dead { reason: "drained, may have run", retention: worker.keep_dead }
            }),
        }
    }

    /// Tries until the store has answered or the hold is no longer sure.
    async fn settle(&self, id: &JobId, hold: &Hold, verdict: Verdict) -> bool {
        let facts = hold.facts();
        let mut pause = Duration::from_millis(10);
        loop {
            let call = Settle {
                key: self.key.clone(),
                id: id.clone(),
                me: facts.lease.me.clone(),
                verdict: verdict.clone(),
                next: None,
            };
            match self.worker.store.backend().settle(call).await {
                Ok(settled) => return settled != SettledRun::Lost,
                Err(error) => tracing::warn!(job = ?id, %error, "settling failed"),
            }
            if facts.valid_until() <= Instant::now() + pause || facts.loss().is_some() {
                return false;
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(Duration::from_millis(500));
        }
    }
}

/// Never, if the worker's future was dropped: that is a crash and no drain, and this task is about to
/// be aborted.
async fn told_to_stop(mut stopped: watch::Receiver<bool>) {
    if stopped.wait_for(|stop| *stop).await.is_err() {
        std::future::pending::<()>().await;
    }
}

fn word(verdict: &Verdict) -> &'static str {
    match verdict {
        Verdict::Done { .. } => "done",
        Verdict::Dead { reason, .. }
        | Verdict::Retry { reason, .. }
        | Verdict::Back { reason, .. } => reason,
    }
}
