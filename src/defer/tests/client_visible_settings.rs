//! Effects of layer and worker settings that clients see.

use std::{
    sync::Arc,
    time::{Duration, UNIX_EPOCH},
};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::{
    FnReplayer, SECOND, SpawnedWorker, enqueue_job, enqueue_with_attempts, get_job,
    let_tasks_settle, lock_key_of, outcome_with_status, status_resource::get_response,
    wait_until_ended,
};
use crate::{
    defer::{DeferLayer, ReplayBody, ReplayOutcome, ReplayResponse, tests::DeferWorker},
    gate::{
        Gate, HttpRequestHead, InitialVerdict, KeySource, LeaveAction, ServiceOutcome, Verdict,
        fake_request::FakeGateRequest,
    },
    lock::LockLayer,
    store::{JobState, Store},
};

async fn enter_gate<G: Gate<()>>(gate: &G, view: &mut FakeGateRequest) -> Verdict<G::Ticket> {
    match gate.inspect(view) {
        InitialVerdict::Enter(context) => gate.enter(context).await,
        InitialVerdict::PassLight(quick) => Verdict::Pass(gate.full_ticket(quick)),
        _ => panic!("it is a request like any other"),
    }
}

#[tokio::test(start_paused = true)]
async fn preferred_wait_is_bounded_by_the_server() {
    for (preference, most) in [("wait=20", 1), ("wait=20", 30), ("wait=0", 1), ("wait=3600", 3600)]
    {
        let store = Store::memory();
        let held = store.lock("x").max_hold(3600 * SECOND).acquire().await;
        let _held = held.expect("it is free");
        let defer = DeferLayer::<()>::new().max_preferred_wait(most * SECOND);
        let source = KeySource::<()>::function(|()| Some("x".to_owned()));
        let lock = LockLayer::by(source).store(&store);
        let mut view = FakeGateRequest::new("POST");
        view.headers.push(("prefer", preference));
        let Verdict::Pass(ticket) = enter_gate(&defer, &mut view).await else {
            panic!("it passes")
        };
        defer.annotate_request(&ticket, &mut view);
        let before = Instant::now();
        let busy = enter_gate(&lock, &mut view).await;
        assert!(matches!(busy, Verdict::Busy(..)), "{busy:?}");
        let preferred: u32 = preference["wait=".len()..].parse().expect("a number");
        // A lock wait is capped at ten minutes.
        let waited = preferred.min(most).min(600);
        let took = before.elapsed();
        assert!((waited * SECOND..(waited + 1) * SECOND).contains(&took), "{preference}: {took:?}");
        let LeaveAction::Accept { accept_ticket: parked, .. } =
            defer.leave(ticket, ServiceOutcome::Answered(409)).await
        else {
            panic!("it was busy")
        };
        let head = HttpRequestHead::new("POST", "/x", Vec::new(), None);
        let reply = defer
            .accept_parked(parked, head, Some(Bytes::new()))
            .await
            .expect("the limits allow another job");
        assert_eq!(reply.status, 202);
        let applied = reply.headers.iter().find(|(name, _)| name == "preference-applied");
        assert_eq!(
            applied.expect("the applied preference is in the response").1,
            format!("wait={waited}")
        );
    }
}

#[tokio::test(start_paused = true)]
async fn only_requested_response_headers_are_kept() {
    let store = Store::memory();
    let answer = || {
        let header = |name: &str| (name.to_owned(), b"one".to_vec());
        let names = ["content-type", "x-receipt", "set-cookie", "x-other", "connection"];
        let headers = names.map(header).to_vec();
        ReplayOutcome::Answered(ReplayResponse {
            status: 201,
            headers,
            body: ReplayBody::Full("made".into()),
        })
    };
    let always = "content-type";
    for (requested, expected) in [
        (vec![], vec![always]),
        (vec!["X-Receipt"], vec![always, "x-receipt"]),
        (vec!["x-receipt", "Set-Cookie"], vec![always, "x-receipt", "set-cookie"]),
    ] {
        let routes = FnReplayer::new(move |head, marker| {
            marker.pass_own_lock(&lock_key_of(&head.target));
            std::future::ready(answer())
        });
        let worker = DeferWorker::new(&store, routes);
        let worker =
            requested.iter().fold(worker, |worker, name| worker.keep_response_header(name));
        let worker = SpawnedWorker::spawn_worker(worker);
        let id = enqueue_job(&store, "/x").await;
        assert_eq!(wait_until_ended(&store, &id).await, JobState::Done);
        let reply = get_response(&store, &id).await;
        assert_eq!((reply.status, &reply.body[..]), (201, &b"made"[..]));
        for name in ["content-type", "x-receipt", "set-cookie", "x-other", "connection"] {
            let found = reply.headers.iter().any(|(found, _)| found.eq_ignore_ascii_case(name));
            assert_eq!(found, expected.contains(&name), "{name}, of {requested:?}: {reply:?}");
        }
        worker.stop().await;
    }
}

/// The stored response can be opened by a link. A policy set by the handler takes precedence over
/// the default `sandbox`.
#[tokio::test(start_paused = true)]
async fn stored_response_is_sandboxed_and_nosniff() {
    let store = Store::memory();
    let policy = "content-security-policy";
    for (handler_policy, expected) in
        [(None, "sandbox"), (Some("default-src 'self'"), "default-src 'self'")]
    {
        let routes = FnReplayer::new(move |head, marker| {
            marker.pass_own_lock(&lock_key_of(&head.target));
            let headers = handler_policy
                .map(|handler_policy| (policy.to_owned(), handler_policy.as_bytes().to_vec()));
            let headers = headers.into_iter().collect();
            let body = ReplayBody::Full(Bytes::from_static(b"<script>"));
            std::future::ready(ReplayOutcome::Answered(ReplayResponse {
                status: 200,
                headers,
                body,
            }))
        });
        let worker = SpawnedWorker::spawn_worker(DeferWorker::new(&store, routes));
        let id = enqueue_job(&store, "/x").await;
        assert_eq!(wait_until_ended(&store, &id).await, JobState::Done);
        let reply = get_response(&store, &id).await;
        let values = |name: &str| {
            let found = reply.headers.iter().filter(|(found, _)| *found == *name);
            found.map(|(_, value)| value.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(
            (values(policy), values("x-content-type-options")),
            (vec![expected.into()], vec!["nosniff".into()])
        );
        worker.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn run_knows_its_attempt_fence_and_accept_time() {
    let store = Store::memory();
    let jobs = Arc::new(Mutex::new(Vec::new()));
    let recorded = Arc::clone(&jobs);
    let routes = FnReplayer::new(move |head, marker| {
        let mut recorded = recorded.lock();
        recorded.push(marker.job().clone());
        marker.pass_own_lock(&lock_key_of(&head.target));
        std::future::ready(outcome_with_status(if recorded.len() == 1 { 503 } else { 200 }))
    });
    let worker = SpawnedWorker::spawn_worker(DeferWorker::new(&store, routes));
    let held = store.lock("x").acquire().await.expect("it is free");
    let id = enqueue_with_attempts(&store, "/x", 2, Vec::new()).await;
    let accepted =
        UNIX_EPOCH + Duration::from_micros(get_job(&store, &id).await.history.accepted_us);
    let_tasks_settle().await;
    let before = held.fence();
    held.release().await;
    assert_eq!(wait_until_ended(&store, &id).await, JobState::Done);
    let jobs = jobs.lock().clone();
    let [first, second] = &jobs[..] else { panic!("two runs: {jobs:?}") };
    for (run, attempt) in [(first, 1), (second, 2)] {
        assert_eq!((&run.id, run.attempt, run.accepted_at), (&id, attempt, accepted));
    }
    assert!(before < first.fence && first.fence < second.fence, "{before} {jobs:?}");
    worker.stop().await;
}
