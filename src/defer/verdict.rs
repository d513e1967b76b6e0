//! One run of a visit: what it is given, and what is to become of its job.

use std::{
    sync::{Arc, atomic::Ordering},
    time::{Duration, UNIX_EPOCH},
};

use super::{
    callback,
    claim::Started,
    cut_off::{Attended, drained},
    envelope::{At, StoredRequest, Unreadable, read_request},
    headers::{IDEMPOTENCY_KEY, made_key},
    hosts::CallRoom,
    judge::{Run, UNREACHABLE, UNROUTABLE, by_age},
    visit::{Stop, Visit},
    worker::DeferWorker,
};
use crate::{
    gate::{Deferred, Replay},
    store::Settlement,
};

impl Visit {
    /// `None` if the lock is lost before the routes have answered.
    pub(super) async fn verdict(&self, started: &Started) -> Option<Settlement> {
        let worker = &*self.worker;
        let run = &started.run;
        let at = At { store: &worker.store, id: &run.id, lock: &self.key };
        let first_seen = UNIX_EPOCH + Duration::from_micros(run.accepted_us);
        let back = |reason| Some(Settlement::Postpone { delay: by_age(first_seen), reason });
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
                return Some(Settlement::Dead { reason: "unreadable", retention });
            }
        };
        if *self.stop.borrow() != Stop::No {
            return Some(drained());
        }
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
        let (id, attempt, fence) = (run.id.clone(), run.attempt, run.fence);
        let deferred = Deferred { id, attempt, first_seen, fence };
        let facts = Arc::clone(started.hold.state());
        let marker = Replay::restoring(deferred, &worker.store, facts, restored);
        if let Err(ends) = self.authorize(&request, &marker, started).await {
            return ends;
        }
        self.replay(request, at, &marker, started).await
    }

    /// Runs a callback, if its host has a turn. `None` as in a replay; it may be made again in every case.
    async fn call(
        &self,
        request: &StoredRequest,
        at: At<'_>,
        started: &Started,
    ) -> Option<Settlement> {
        let DeferWorker { callbacks, rules, .. } = &*self.worker;
        let crowded = self.crowded.load(Ordering::Relaxed);
        let room = CallRoom { most: self.slot.most(), crowded };
        let Some(turn) = self.hosts.enter(&self.key, &request.head.target, room) else {
            return Some(self.no_turn(started));
        };
        let by = callbacks.as_deref();
        tokio::select! {
            verdict = callback::run(by, rules, (at, &started.run), request, turn) => {
                Some(verdict.unwrap_or_else(|| self.no_turn(started)))
            }
            _ = started.hold.state().wait_for_loss() => None,
            () = self.told_to(Stop::Now) => Some(drained()),
        }
    }

    fn no_turn(&self, started: &Started) -> Settlement {
        let first_seen = UNIX_EPOCH + Duration::from_micros(started.run.accepted_us);
        let delay = self.hosts.delay(&self.key, by_age(first_seen));
        Settlement::Postpone { delay, reason: callback::NO_TURN }
    }

    async fn replay(
        &self,
        request: StoredRequest,
        at: At<'_>,
        marker: &Replay,
        started: &Started,
    ) -> Option<Settlement> {
        let worker = &*self.worker;
        let StoredRequest { mut head, max_attempts, body, .. } = request;
        let idempotent = max_attempts > 1;
        if !head.headers.iter().any(|(name, _)| name == IDEMPOTENCY_KEY) {
            let key = made_key(&marker.deferred().id);
            head.headers.push((IDEMPOTENCY_KEY.to_owned(), key.into_bytes()));
        }
        let run = Run { marker, at, max_attempts, rules: &worker.rules };
        let _attended = Attended::new(marker, started.hold.state());
        tokio::select! {
            // In this order: no handler begins on a lock that is lost, or after the end was told.
            biased;
            loss = started.hold.state().wait_for_loss() => {
                tracing::error!(job = ?marker.deferred().id, ?loss, "run abandoned: lock lost");
                None
            }
            () = self.told_to(Stop::Now) => self.cut_off(marker, idempotent).await,
            ran = worker.replayer.replay(head, body, marker.clone(), worker.response_limit) => {
                let verdict = run.judge(ran);
                self.when_over(marker, started, idempotent, verdict).await
            }
        }
    }

    /// A layer further out may have answered for a handler that goes on in a task of its own: its run is over, and its
    /// lock free, when that has been dropped.
    async fn when_over(
        &self,
        marker: &Replay,
        started: &Started,
        idempotent: bool,
        verdict: Settlement,
    ) -> Option<Settlement> {
        if !marker.is_inside() {
            return Some(verdict);
        }
        tokio::select! {
            biased;
            () = marker.left() => Some(verdict),
            loss = started.hold.state().wait_for_loss() => {
                tracing::error!(job = ?marker.deferred().id, ?loss, "run abandoned: lock lost");
                None
            }
            () = self.told_to(Stop::Now) => self.cut_off(marker, idempotent).await,
        }
    }
}

const NEWER: &str = "newer version";
const NO_KEY: &str = "no key";
const NO_SNAPSHOT: &str = "unknown snapshot";

/// What another worker may be able to run: it is of another version, or reaches other routes.
pub(super) fn for_others(reason: &str) -> bool {
    matches!(reason, NEWER | NO_KEY | NO_SNAPSHOT | UNREACHABLE | UNROUTABLE | callback::NOBODY)
}

pub(super) fn word(verdict: &Settlement) -> &'static str {
    match verdict {
        Settlement::Done { .. } | Settlement::WebhookSettled { response: Some(_), .. } => "done",
        Settlement::Dead { reason, .. }
        | Settlement::WebhookSettled { reason, .. }
        | Settlement::Retry { reason, .. }
        | Settlement::Postpone { reason, .. }
        | Settlement::ReturnToQueue { reason, .. } => reason,
    }
}
