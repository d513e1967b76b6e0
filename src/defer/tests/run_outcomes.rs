//! Classification of run outcomes, and status documents.

use std::{
    future::ready,
    sync::Arc,
    time::{Duration, UNIX_EPOCH},
};

use bytes::Bytes;
use futures_util::FutureExt as _;
use serde_json::Value;

use super::{
    CountingReplayer, SECOND, SpawnedWorker, enqueue_job, let_tasks_settle, lock_key_of,
    status_resource::complete_reply, wait_until_ended,
};
use crate::{
    LockOutage,
    defer::{
        DeferLayer, ReplayBody, ReplayOutcome, ReplayResponse, StatusResource,
        envelope::EnvelopeBinding,
        job_backoff::JobBackoff,
        run_label::RunLabel,
        settlement_rules::{RunContext, SettlementRules},
    },
    gate::{
        BusyLockContext, Gate, GateRequest as _, HttpRequestHead, InitialVerdict, KeySource,
        LeaveAction, ParkingSlot, ReplayMarker, RunningJob, ServiceOutcome, Verdict as GateVerdict,
        fake_request::FakeGateRequest,
    },
    lock::{BusyStatus, LockLayer},
    reply::Reply,
    store::{
        BackendFault, GrantAttempt, JobId, JobState, LeaseTerms, LockMode, OwnedHold, Settlement,
        Store, faulty_store,
    },
};

fn replay_outcome(status: u16) -> ReplayOutcome {
    ReplayOutcome::Answered(ReplayResponse {
        status,
        headers: Vec::new(),
        body: ReplayBody::Full(Bytes::new()),
    })
}

/// Starts a run of a job on `/x`; returns its hold and its marker.
pub(super) fn start_run(store: &Store) -> (OwnedHold, ReplayMarker) {
    let key = lock_key_of("/x");
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

fn classify_status(marker: &ReplayMarker, status: u16) -> Settlement {
    let (store, lock) = (Store::memory(), lock_key_of("/x"));
    let at = EnvelopeBinding { store: &store, id: &marker.job().id, lock: &lock };
    let rules = SettlementRules {
        done_retention: SECOND,
        dead_retention: SECOND,
        backoff: JobBackoff::default(),
        keep_headers: Vec::new(),
    };
    let label = RunLabel::default();
    let run =
        RunContext { replay: marker, binding: at, max_attempts: 3, rules: &rules, label: &label };
    run.classify(replay_outcome(status))
}

/// For example a timeout or a load limit in a layer outside of the lock.
#[tokio::test(start_paused = true)]
async fn error_status_from_outside_the_lock_is_retried() {
    let store = Store::memory();
    for status in [503, 504, 500, 429, 408] {
        let (_hold, marker) = start_run(&store);
        let verdict = classify_status(&marker, status);
        assert!(
            matches!(verdict, Settlement::Retry { reason: "failed", .. }),
            "{status}: {verdict:?}"
        );
    }
    let (_hold, marker) = start_run(&store);
    let verdict = classify_status(&marker, 200);
    assert!(matches!(verdict, Settlement::Dead { reason: "wiring", .. }));
}

/// Enters a nested lock from a run that passed its own lock, while the store is unavailable.
async fn enter_nested_lock_in_outage(outage: LockOutage) -> (bool, ReplayMarker, OwnedHold) {
    let (store, faults) = faulty_store();
    let (hold, marker) = start_run(&store);
    assert!(marker.own_hold(&store, &[lock_key_of("/x")]).unwrap().is_some(), "it is its own");
    faults.set("acquire", BackendFault::Unavailable, 1);
    let source = KeySource::<()>::function(|()| Some("another".to_owned()));
    let lock = LockLayer::by(source).store(&store).on_outage(outage);
    let mut view = FakeGateRequest::new("PUT");
    view.insert_extension(marker.clone());
    let InitialVerdict::Enter(context) = lock.inspect(&mut view) else {
        panic!("it has a key");
    };
    let passed = matches!(lock.enter(context).await, GateVerdict::Pass(_));
    assert_eq!(faults.remaining("acquire"), 0);
    (passed, marker, hold)
}

/// A busy nested lock means that the handler did not run, whatever `busy_status` is set. Any other
/// status is the handler's.
#[tokio::test(start_paused = true)]
async fn busy_nested_lock_postpones_a_run_for_any_status() {
    let (store, other) = (Store::memory(), Store::memory());
    let _held = other.lock("another").acquire().await.unwrap();
    for status in [BusyStatus::Conflict, BusyStatus::Locked, BusyStatus::TooManyRequests] {
        let (_hold, marker) = start_run(&store);
        assert!(marker.own_hold(&store, &[lock_key_of("/x")]).unwrap().is_some(), "it is its own");
        let source = KeySource::<()>::function(|()| Some("another".to_owned()));
        let lock = LockLayer::by(source).store(&other).busy_status(status);
        let mut view = FakeGateRequest::new("POST");
        view.insert_extension(marker.clone());
        let InitialVerdict::Enter(context) = lock.inspect(&mut view) else {
            panic!("it has a key")
        };
        let GateVerdict::Busy(reply, _) = lock.enter(context).await else { panic!("it is held") };
        let verdict = classify_status(&marker, reply.status);
        assert!(
            matches!(verdict, Settlement::Postpone { reason: "busy", .. }),
            "{status:?}: {verdict:?}"
        );
        let verdict = classify_status(&marker, 404);
        assert!(matches!(verdict, Settlement::Done { .. }), "{status:?}: {verdict:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn run_admitted_in_an_outage_counts() {
    let (passed, marker, _hold) = enter_nested_lock_in_outage(LockOutage::Admit).await;
    assert!(passed);
    let verdict = classify_status(&marker, 409);
    assert!(matches!(verdict, Settlement::Done { .. }), "the handler's own 409");
    let (passed, marker, _hold) = enter_nested_lock_in_outage(LockOutage::Refuse).await;
    assert!(!passed);
    let verdict = classify_status(&marker, 503);
    assert!(matches!(verdict, Settlement::Postpone { reason: "busy", .. }));
}

/// Reply of a `DeferLayer` to a request whose lock is busy.
async fn defer_busy_request(gate: &DeferLayer<()>, store: &Store, view: FakeGateRequest) -> Reply {
    try_defer_busy_request(gate, store, view).await.expect("the limits allow another job")
}

async fn try_defer_busy_request(
    gate: &DeferLayer<()>,
    store: &Store,
    mut view: FakeGateRequest,
) -> Option<Reply> {
    let InitialVerdict::PassLight(ticket) = gate.inspect(&mut view) else {
        panic!("it may be deferred");
    };
    gate.annotate_request(&ticket, &mut view);
    let slot = ParkingSlot::take_from(&mut view).expect("the gate has left a parking slot");
    let (store, key) = (store.clone(), lock_key_of("/x"));
    slot.set_parking(BusyLockContext {
        store,
        key,
        busy_status: 409,
        typical_hold: Duration::ZERO,
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

/// For example a script whose last command is denied by an ACL after the job was written.
#[tokio::test(start_paused = true)]
async fn enqueue_with_unknown_error_is_not_refused_as_busy() {
    let (store, faults) = faulty_store();
    faults.set("enqueue", BackendFault::ProtocolError, 1);
    let reply = defer_busy_request(&DeferLayer::new(), &store, FakeGateRequest::new("POST")).await;
    assert_eq!((reply.status, faults.remaining("enqueue")), (503, 0));
    faults.set("enqueue", BackendFault::Unavailable, 1);
    let reply =
        try_defer_busy_request(&DeferLayer::new(), &store, FakeGateRequest::new("POST")).await;
    assert!(reply.is_none() && faults.remaining("enqueue") == 0, "it has not run: busy, as it was");
}

#[tokio::test(start_paused = true)]
async fn record_outliving_its_job_answers_gone_without_a_rerun() {
    let store = Store::memory();
    let routes = CountingReplayer::default();
    let gate = DeferLayer::new();
    let mut view = FakeGateRequest::new("POST");
    view.headers.push(("idempotency-key", "\"k\""));
    assert_eq!(defer_busy_request(&gate, &store, view.clone()).await.status, 202);
    assert_eq!(defer_busy_request(&gate, &store, view.clone()).await.status, 202);
    let worker = super::DeferWorker::new(&store, routes.clone()).done_retention(SECOND);
    let worker = crate::store::spawn(worker.run(std::future::pending()));
    while routes.run_count("/x") == 0 {
        let_tasks_settle().await;
    }
    // The job is retained for a minute, its record for a day.
    tokio::time::sleep(70 * SECOND).await;
    assert_eq!(defer_busy_request(&gate, &store, view).await.status, 410);
    tokio::time::sleep(10 * SECOND).await;
    assert_eq!(routes.run_count("/x"), 1);
    worker.abort();
}

/// The reply of the enqueue was lost, and it is sent again after the job has ended. Only the
/// retained job shows that the request was stored.
#[tokio::test(start_paused = true)]
async fn resent_enqueue_of_an_ended_job_is_not_run_again() {
    for target in ["/x", "/y/panic"] {
        let (store, routes) = (Store::memory(), CountingReplayer::default());
        let worker = super::DeferWorker::new(&store, routes.clone());
        let worker = worker.done_retention(Duration::ZERO).dead_retention(Duration::ZERO);
        let worker = SpawnedWorker::spawn_worker(worker);
        let call = super::enqueue_command(
            &store,
            HttpRequestHead::new("POST", target, Vec::new(), None),
            b"body",
        );
        super::send_enqueue(&store, call.clone()).await;
        while routes.run_count(target) == 0 {
            let_tasks_settle().await;
        }
        let_tasks_settle().await;
        super::send_enqueue(&store, call).await;
        tokio::time::sleep(10 * SECOND).await;
        assert_eq!(routes.run_count(target), 1, "{target}");
        worker.stop().await;
    }
}

async fn get_status(
    gate: &StatusResource<()>,
    store: &Store,
    id: &JobId,
    response: bool,
) -> (u16, Value) {
    let gate = gate.clone().store(store);
    let request = gate.parse_request(&mut FakeGateRequest::new("GET"), id.as_str(), response);
    let reply = complete_reply(request.expect("it is well formed").execute().await);
    (reply.status, serde_json::from_slice(&reply.body).unwrap_or_default())
}

#[tokio::test(start_paused = true)]
async fn oversized_response_is_reported_and_not_truncated() {
    let store = Store::memory();
    let worker = SpawnedWorker::spawn_on(&store, &CountingReplayer::default());
    let id = enqueue_job(&store, "/x/long").await;
    assert_eq!(wait_until_ended(&store, &id).await, JobState::Done);
    let gate = StatusResource::new();
    let (code, document) = get_status(&gate, &store, &id, false).await;
    assert_eq!((code, &document["response"]["stored"]), (200, &"too long".into()));
    let (code, problem) = get_status(&gate, &store, &id, true).await;
    assert_eq!(code, 410);
    assert_eq!(problem["type"], "urn:lockgate:problem:response-not-kept");
    assert_eq!(problem["response_status"], 200);
    let id = enqueue_job(&store, "/x/short").await;
    assert_eq!(wait_until_ended(&store, &id).await, JobState::Done);
    let (_, document) = get_status(&gate, &store, &id, false).await;
    assert_eq!(document["response"]["stored"], "body");
    worker.stop().await;
}
