//! One visit to a lock that has jobs: claim, run, settle, and the next of the line.

use std::{
    panic::AssertUnwindSafe,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, UNIX_EPOCH},
};

use futures_util::FutureExt as _;
use tokio::sync::watch;

use super::{
    callback,
    claim::Started,
    cut_off::{Attended, drained},
    envelope::{At, StoredRequest, Unreadable, read_request},
    headers::{IDEMPOTENCY_KEY, made_key},
    judge::{Run, UNREACHABLE, UNROUTABLE, by_age},
    limits::Leave,
    slots::Slot,
    worker::DeferWorker,
};
use crate::{
    gate::{Deferred, Replay},
    key::Key,
    store::{JobId, Run as Begun, Verdict},
};

/// Jobs of one line that are run one after the other, each claimed as the one before is settled. After so
/// many the line is given up all the same, and whoever is told of it next goes on.
const IN_A_ROW: u32 = 64;

/// The same, while other lines of this worker wait for room.
const WHILE_OTHERS_WAIT: u32 = 4;

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
    /// Its room among the worker's runs.
    pub(super) slot: Slot,
    pub(super) stop: watch::Receiver<Stop>,
    /// Other lines wait for room.
    pub(super) crowded: Arc<AtomicBool>,
    /// No run is to begin.
    pub(super) paused: Arc<AtomicBool>,
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
        let mut leave = tokio::select! {
            leave = limits.enter(store, *lease) => leave,
            () = self.told_to(Stop::Drain) => return Next::WhenTold,
        };
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
        let mut row = 0;
        loop {
            leave.spend();
            row += 1;
            match self.run_job(started, row, leave).await {
                Ended::GoesOn(next) => started = next,
                Ended::Next(next) => return next,
            }
        }
    }

    async fn run_job(&self, started: Started, row: u32, leave: &mut Leave) -> Ended {
        let worker = &*self.worker;
        let Begun { attempt, more, .. } = started.run;
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
            Verdict::Back { delay, reason } if for_others(reason) => {
                Next::Others(id.clone(), delay)
            }
            _ => Next::WhenTold,
        };
        let goes_on =
            self.may_go_on(row, more, &verdict) && worker.limits.again(&worker.store, leave).await;
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

    /// Settles a run, outside of its room if that is not for the next of its line.
    async fn settle_outside(
        &self,
        started: Started,
        verdict: Verdict,
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
    fn may_go_on(&self, row: u32, more: bool, verdict: &Verdict) -> bool {
        let most = match self.crowded.load(Ordering::Relaxed) {
            true if more => WHILE_OTHERS_WAIT,
            true => 0,
            false => IN_A_ROW,
        };
        // One that is to run again at its place is still the first.
        let ended = matches!(verdict, Verdict::Done { .. } | Verdict::Dead { .. });
        let moves = ended || matches!(verdict, Verdict::Retry { .. });
        row < most && moves && *self.stop.borrow() == Stop::No
    }

    /// `None` if the lock is lost before the routes have answered.
    async fn verdict(&self, started: &Started) -> Option<Verdict> {
        let worker = &*self.worker;
        let run = &started.run;
        let at = At { store: &worker.store, id: &run.id, lock: &self.key };
        let first_seen = UNIX_EPOCH + Duration::from_micros(run.accepted_us);
        let back = |reason| Some(Verdict::Back { delay: by_age(first_seen), reason });
        let request = match read_request(at, &run.envelope) {
            Ok(request) => request,
            Err(Unreadable::Newer) => return back(NEWER),
            Err(Unreadable::NoKey) => {
                tracing::error!(job = ?run.id, "deferred request is sealed with a key that is not here");
                return back(NO_KEY);
            }
            Err(Unreadable::Broken) => {
                tracing::error!(job = ?run.id, "deferred request can't be read: it was changed or moved");
                let retention = worker.rules.keep_dead;
                return Some(Verdict::Dead { reason: "unreadable", retention });
            }
        };
        if request.head.method == callback::METHOD {
            return self.call(&request, at, started).await;
        }
        let restored = match worker.restores.of(&request.carried) {
            Ok(restored) => restored,
            Err(snapshot) => {
                tracing::error!(
                    job = ?run.id, snapshot,
                    "deferred request carries what this worker can't restore: .restore::<T>()"
                );
                return back(NO_SNAPSHOT);
            }
        };
        if *self.stop.borrow() != Stop::No {
            return Some(drained());
        }
        let (id, attempt, fence) = (run.id.clone(), run.attempt, run.fence);
        let deferred = Deferred { id, attempt, first_seen, fence };
        let facts = Arc::clone(started.hold.facts());
        let marker = Replay::restoring(deferred, &worker.store, facts, restored);
        self.replay(request, at, &marker, started).await
    }

    /// The run of a callback. `None` as in a replay; it may be made again in every case.
    async fn call(
        &self,
        request: &StoredRequest,
        at: At<'_>,
        started: &Started,
    ) -> Option<Verdict> {
        let DeferWorker { callbacks, rules, .. } = &*self.worker;
        tokio::select! {
            verdict = callback::run(callbacks.as_deref(), rules, (at, &started.run), request) => {
                Some(verdict)
            }
            _ = started.hold.facts().lost() => None,
            () = self.told_to(Stop::Now) => Some(drained()),
        }
    }

    async fn replay(
        &self,
        request: StoredRequest,
        at: At<'_>,
        marker: &Replay,
        started: &Started,
    ) -> Option<Verdict> {
        let worker = &*self.worker;
        let StoredRequest { mut head, max_attempts, body, .. } = request;
        let idempotent = max_attempts > 1;
        if !head.headers.iter().any(|(name, _)| name == IDEMPOTENCY_KEY) {
            let key = made_key(&marker.deferred().id);
            head.headers.push((IDEMPOTENCY_KEY.to_owned(), key.into_bytes()));
        }
        let run = Run { marker, at, max_attempts, rules: &worker.rules };
        let _attended = Attended::new(marker, started.hold.facts());
        tokio::select! {
            // In this order: no handler begins on a lock that is lost, or after the end was told.
            biased;
            loss = started.hold.facts().lost() => {
                tracing::error!(job = ?marker.deferred().id, ?loss, "run abandoned: lock lost");
                None
            }
            () = self.told_to(Stop::Now) => self.cut_off(marker, idempotent).await,
            ran = worker.replayer.replay(head, body, marker.clone(), worker.response_limit) => {
                Some(run.judge(ran))
            }
        }
    }

    /// Never, if the worker's future was dropped: that is a crash and no drain, and this task is about to
    /// be aborted.
    async fn told_to(&self, what: Stop) {
        if self.stop.clone().wait_for(|stop| *stop >= what).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

const NEWER: &str = "newer version";
const NO_KEY: &str = "no key";
const NO_SNAPSHOT: &str = "unknown snapshot";

/// What another worker may be able to run: it is of another version, or reaches other routes.
fn for_others(reason: &str) -> bool {
    matches!(reason, NEWER | NO_KEY | NO_SNAPSHOT | UNREACHABLE | UNROUTABLE | callback::NOBODY)
}

fn word(verdict: &Verdict) -> &'static str {
    match verdict {
        Verdict::Done { .. } => "done",
        Verdict::Dead { reason, .. }
        | Verdict::Retry { reason, .. }
        | Verdict::Back { reason, .. }
        | Verdict::Hand { reason, .. } => reason,
    }
}
