//! What a run comes to, and what is told of it.

use std::{
    future::ready,
    sync::Arc,
    time::{Duration, UNIX_EPOCH},
};

use bytes::Bytes;
use futures_util::FutureExt as _;
use serde_json::Value;

use super::{Routes, SECOND, Working, ended, key_of, put_off, settled, status::whole};
use crate::{
    LockOutage,
    defer::{
        DeferGate, ReplayBody, ReplayOutcome, ReplayResponse, StatusGate,
        envelope::EnvelopeBinding,
        job_backoff::JobBackoff,
        settlement_rules::{RunContext, SettlementRules},
    },
    gate::{
        Gate, GateRequest as _, HttpRequestHead, InitialVerdict, KeySource, LeaveAction,
        ParkingContext, ParkingSlot, ReplayMarker, RunningJob, ServiceOutcome, Verdict as Let,
        fake::FakeView,
    },
    lock::{BusyStatus, LockGate},
    reply::Reply,
    store::{
        Fault, GrantAttempt, JobId, JobState, LeaseTerms, LockHold, LockMode, Settlement, Store,
        faulty,
    },
};

fn answer(status: u16) -> ReplayOutcome {
    ReplayOutcome::Answered(ReplayResponse {
        status,
        headers: Vec::new(),
        body: ReplayBody::Full(Bytes::new()),
    })
}

/// A run of a job on `/x`, and the hold it stands on.
pub(super) fn run_of(store: &Store) -> (LockHold, ReplayMarker) {
    let key = key_of("/x");
    let terms = LeaseTerms {
        lease: SECOND,
        renews: false,
        max_hold: SECOND,
        job: None,
        mode: LockMode::Exclusive,
    };
    let mut attempt = GrantAttempt::new(store, &key, LockMode::Exclusive);
    let _ = attempt.send(SECOND, || ready(Ok(()))).now_or_never();
    let hold = attempt.accept_grant(1, terms).expect("it is sure");
    let deferred =
        RunningJob { id: JobId::new(&key), attempt: 1, accepted_at: UNIX_EPOCH, fence: 1 };
    let marker = ReplayMarker::new(deferred, store, Arc::clone(hold.state()));
    (hold, marker)
}

fn judge(marker: &ReplayMarker, status: u16) -> Settlement {
    let (store, lock) = (Store::memory(), key_of("/x"));
    let at = EnvelopeBinding { store: &store, id: &marker.job().id, lock: &lock };
    let rules = SettlementRules {
        done_retention: SECOND,
        dead_retention: SECOND,
        backoff: JobBackoff::default(),
        keep_headers: Vec::new(),
    };
    let run = RunContext { replay: marker, binding: at, max_attempts: 3, rules: &rules };
    run.classify(answer(status))
}

/// Such as a timeout or a full house, before the request came to its lock.
#[tokio::test(start_paused = true)]
async fn a_503_from_outside_the_lock_is_tried_again() {
    let store = Store::memory();
    for status in [503, 504, 500, 429, 408] {
        let (_hold, marker) = run_of(&store);
        let verdict = judge(&marker, status);
        assert!(
            matches!(verdict, Settlement::Retry { reason: "failed", .. }),
            "{status}: {verdict:?}"
        );
    }
    let (_hold, marker) = run_of(&store);
    let verdict = judge(&marker, 200);
    assert!(matches!(verdict, Settlement::Dead { reason: "wiring", .. }));
}

/// A run that passed its own lock and came to another one, while the store is away.
async fn nested(outage: LockOutage) -> (bool, ReplayMarker, LockHold) {
    let (store, faults) = faulty();
    let (hold, marker) = run_of(&store);
    assert!(marker.own_hold(&store, &[key_of("/x")]).unwrap().is_some(), "it is its own");
    faults.set("acquire", Fault::Away, 1);
    let source = KeySource::<()>::function(|()| Some("another".to_owned()));
    let lock = LockGate::new(source).store(&store).on_outage(outage);
    let mut view = FakeView::new("PUT");
    view.insert_extension(marker.clone());
    let InitialVerdict::Enter(facts) = lock.inspect(&mut view) else {
        panic!("it has a key");
    };
    let passed = matches!(lock.enter(facts).await, Let::Pass(_));
    assert_eq!(faults.left("acquire"), 0);
    (passed, marker, hold)
}

/// A nested lock answers by the status it was given: nothing has run, whatever that is. Any other answer is the
/// handler's.
#[tokio::test(start_paused = true)]
async fn a_busy_lock_on_the_way_costs_nothing_by_whatever_status() {
    let (store, other) = (Store::memory(), Store::memory());
    let _held = other.lock("another").acquire().await.unwrap();
    for status in [BusyStatus::Conflict, BusyStatus::Locked, BusyStatus::TooManyRequests] {
        let (_hold, marker) = run_of(&store);
        assert!(marker.own_hold(&store, &[key_of("/x")]).unwrap().is_some(), "it is its own");
        let source = KeySource::<()>::function(|()| Some("another".to_owned()));
        let lock = LockGate::new(source).store(&other).busy_status(status);
        let mut view = FakeView::new("POST");
        view.insert_extension(marker.clone());
        let InitialVerdict::Enter(facts) = lock.inspect(&mut view) else { panic!("it has a key") };
        let Let::Busy(reply, _) = lock.enter(facts).await else { panic!("it is held") };
        let verdict = judge(&marker, reply.status);
        assert!(
            matches!(verdict, Settlement::Postpone { reason: "busy", .. }),
            "{status:?}: {verdict:?}"
        );
        let verdict = judge(&marker, 404);
        assert!(matches!(verdict, Settlement::Done { .. }), "{status:?}: {verdict:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_run_that_was_let_through_an_outage_counts() {
    let (passed, marker, _hold) = nested(LockOutage::Admit).await;
    assert!(passed);
    let verdict = judge(&marker, 409);
    assert!(matches!(verdict, Settlement::Done { .. }), "the handler's own 409");
    let (passed, marker, _hold) = nested(LockOutage::Refuse).await;
    assert!(!passed);
    let verdict = judge(&marker, 503);
    assert!(matches!(verdict, Settlement::Postpone { reason: "busy", .. }));
}

/// What a deferring layer says to a request that met a busy lock.
async fn accept(gate: &DeferGate<()>, store: &Store, view: FakeView) -> Reply {
    instead_of_busy(gate, store, view).await.expect("there is room")
}

async fn instead_of_busy(gate: &DeferGate<()>, store: &Store, mut view: FakeView) -> Option<Reply> {
    let InitialVerdict::PassLight(ticket) = gate.inspect(&mut view) else {
        panic!("it may be deferred");
    };
    gate.annotate_request(&ticket, &mut view);
    let slot = ParkingSlot::take_from(&mut view).expect("there is a place for it");
    let (store, key) = (store.clone(), key_of("/x"));
    slot.set_parking(ParkingContext {
        store,
        key,
        busy_status: 409,
        typical_hold: None,
        is_recorded: false,
        is_not_deferrable: false,
    });
    let LeaveAction::Accept { accept_ticket: parked, .. } =
        gate.leave(ticket, ServiceOutcome::Answered(409)).await
    else {
        panic!("it was busy");
    };
    let head = HttpRequestHead::new("POST", "/x", Vec::new(), None);
    gate.accept_parked(parked, head, Some(Bytes::new())).await
}

/// Such as a script that may not do what it does last, where the job has been written by then.
#[tokio::test(start_paused = true)]
async fn what_an_error_of_the_store_may_have_accepted_is_not_refused_as_busy() {
    let (store, faults) = faulty();
    faults.set("enqueue", Fault::Odd, 1);
    let reply = accept(&DeferGate::new(), &store, FakeView::new("POST")).await;
    assert_eq!((reply.status, faults.left("enqueue")), (503, 0));
    faults.set("enqueue", Fault::Away, 1);
    let reply = instead_of_busy(&DeferGate::new(), &store, FakeView::new("POST")).await;
    assert!(reply.is_none() && faults.left("enqueue") == 0, "it has not run: busy, as it was");
}

#[tokio::test(start_paused = true)]
async fn a_record_that_outlives_its_job_is_gone_and_not_run_again() {
    let store = Store::memory();
    let routes = Routes::default();
    let gate = DeferGate::new();
    let mut view = FakeView::new("POST");
    view.headers.push(("idempotency-key", "\"k\""));
    assert_eq!(accept(&gate, &store, view.clone()).await.status, 202);
    assert_eq!(accept(&gate, &store, view.clone()).await.status, 202);
    let worker = super::DeferWorker::new(&store, routes.clone()).done_retention(SECOND);
    let worker = crate::store::spawn(worker.run(std::future::pending()));
    while routes.runs("/x") == 0 {
        settled().await;
    }
    // Kept for a minute; the record for a day.
    tokio::time::sleep(70 * SECOND).await;
    assert_eq!(accept(&gate, &store, view).await.status, 410);
    tokio::time::sleep(10 * SECOND).await;
    assert_eq!(routes.runs("/x"), 1);
    worker.abort();
}

/// Its reply was lost, and it is sent again when the job has ended: nothing else but that job tells that it was stored.
#[tokio::test(start_paused = true)]
async fn a_copy_of_what_has_ended_is_not_run_however_short_that_is_kept() {
    for target in ["/x", "/y/panic"] {
        let (store, routes) = (Store::memory(), Routes::default());
        let worker = super::DeferWorker::new(&store, routes.clone());
        let worker = worker.done_retention(Duration::ZERO).dead_retention(Duration::ZERO);
        let worker = Working::with(worker);
        let call =
            super::request(&store, HttpRequestHead::new("POST", target, Vec::new(), None), b"body");
        super::put_in(&store, call.clone()).await;
        while routes.runs(target) == 0 {
            settled().await;
        }
        settled().await;
        super::put_in(&store, call).await;
        tokio::time::sleep(10 * SECOND).await;
        assert_eq!(routes.runs(target), 1, "{target}");
        worker.stop().await;
    }
}

async fn status(gate: &StatusGate<()>, store: &Store, id: &JobId, response: bool) -> (u16, Value) {
    let gate = gate.clone().store(store);
    let request = gate.parse_request(&mut FakeView::new("GET"), id.as_str(), response);
    let reply = whole(request.expect("it is well formed").execute().await);
    (reply.status, serde_json::from_slice(&reply.body).unwrap_or_default())
}

#[tokio::test(start_paused = true)]
async fn a_response_over_the_limit_is_told_and_not_cut() {
    let store = Store::memory();
    let worker = Working::on(&store, &Routes::default());
    let id = put_off(&store, "/x/long").await;
    assert_eq!(ended(&store, &id).await, JobState::Done);
    let gate = StatusGate::new();
    let (code, document) = status(&gate, &store, &id, false).await;
    assert_eq!((code, &document["response"]["stored"]), (200, &"too long".into()));
    let (code, problem) = status(&gate, &store, &id, true).await;
    assert_eq!(code, 410);
    assert_eq!(problem["type"], "urn:lockgate:problem:response-not-kept");
    assert_eq!(problem["response_status"], 200);
    let id = put_off(&store, "/x/short").await;
    assert_eq!(ended(&store, &id).await, JobState::Done);
    let (_, document) = status(&gate, &store, &id, false).await;
    assert_eq!(document["response"]["stored"], "body");
    worker.stop().await;
}
