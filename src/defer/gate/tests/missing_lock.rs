//! A layer without a lock inside defers nothing. It says so once, and only then.

use super::*;
use crate::{
    gate::{LeaveAction, ServiceOutcome},
    lock::LockLayer,
    store::CapturedLog,
};

const WARNING: &str = "request not deferrable: it passed a DeferLayer and met no LockLayer";

/// Runs a request through the layer. `inner` is what is between layer and response, and returns the
/// status.
async fn run_request(
    gate: &TestDeferLayer,
    method: &'static str,
    inner: impl FnOnce(&mut FakeGateRequest) -> u16,
) -> u16 {
    let mut view = FakeGateRequest::new(method);
    let ticket = match gate.inspect(&mut view) {
        InitialVerdict::PassLight(ticket) => ticket,
        InitialVerdict::Answer(reply) => return reply.status,
        other => panic!("{other:?}"),
    };
    let status = inner(&mut view);
    if gate.is_settled(&ticket) {
        return status;
    }
    match gate.leave(gate.full_ticket(ticket), ServiceOutcome::Answered(status)).await {
        LeaveAction::AddHeaders(_) => status,
        LeaveAction::Replace(reply) => reply.status,
        other => panic!("{other:?}"),
    }
}

/// A lock of this store, which the request has the key of.
fn lock(store: &Store) -> LockLayer<()> {
    LockLayer::by_header("order").store(store)
}

fn inspect_lock(lock: &LockLayer<()>, view: &mut FakeGateRequest) {
    view.headers.push(("order", "7"));
    drop(lock.inspect(view));
}

#[tokio::test(start_paused = true)]
async fn request_without_a_lock_is_warned_of_once_a_minute() {
    let (log, _reads) = CapturedLog::start_capture();
    let gate = TestDeferLayer::new();
    for _ in 0..3 {
        assert_eq!(run_request(&gate, "POST", |_| 200).await, 200);
        assert_eq!(log.text().matches(WARNING).count(), 1, "{}", log.text());
    }
    log.assert_contains("add a LockLayer inside the DeferLayer");
    log.assert_contains("POST /orders/{id}");
    tokio::time::sleep(Duration::from_secs(61)).await;
    assert_eq!(run_request(&gate, "PUT", |_| 201).await, 201);
    assert_eq!(log.text().matches(WARNING).count(), 2, "{}", log.text());
}

#[tokio::test(start_paused = true)]
async fn request_that_did_not_reach_the_lock_is_no_warning() {
    let (log, _reads) = CapturedLog::start_capture();
    let store = Store::memory();
    let gate = TestDeferLayer::new();
    for status in [301, 303, 401, 404, 429, 500, 503] {
        assert_eq!(run_request(&gate, "POST", |_| status).await, status, "by a layer in between");
    }
    let locks_put = lock(&store).methods(["PUT"]);
    let skipped = |view: &mut FakeGateRequest| {
        inspect_lock(&locks_put, view);
        200
    };
    assert_eq!(run_request(&TestDeferLayer::new(), "POST", skipped).await, 200);
    let inner = TestDeferLayer::new();
    let twice = |view: &mut FakeGateRequest| {
        assert!(matches!(inner.inspect(view), InitialVerdict::PassLight(_)));
        200
    };
    assert_eq!(run_request(&TestDeferLayer::new(), "POST", twice).await, 200);
    // Around several routes, one of which has a lock.
    let locks = lock(&store);
    let locked = |view: &mut FakeGateRequest| {
        inspect_lock(&locks, view);
        200
    };
    assert_eq!(run_request(&gate, "POST", locked).await, 200);
    assert_eq!(run_request(&gate.clone(), "POST", |_| 200).await, 200);
    assert!(!log.text().contains(WARNING), "{}", log.text());
}

/// A proxy sends HEAD and OPTIONS, and a layer with a lock also has routes for reading.
#[tokio::test(start_paused = true)]
async fn get_of_a_background_layer_is_warned_of_once() {
    const RAN_AT_ONCE: &str = "a GET ran at once although its layer is set to `background`";
    let skips = |gate: &TestDeferLayer, method| {
        matches!(gate.inspect(&mut FakeGateRequest::new(method)), InitialVerdict::Skip)
    };
    let (log, _reads) = CapturedLog::start_capture();
    let store = Store::memory();
    let locks = lock(&store);
    let (gate, locked) = (TestDeferLayer::new().background(), TestDeferLayer::new().background());
    let inner = |view: &mut FakeGateRequest| {
        inspect_lock(&locks, view);
        409
    };
    assert_eq!(run_request(&locked, "POST", inner).await, 409);
    assert!(skips(&locked, "GET") && skips(&TestDeferLayer::new(), "GET"));
    assert!(skips(&gate, "HEAD") && skips(&gate, "OPTIONS"));
    assert!(!log.text().contains(RAN_AT_ONCE), "{}", log.text());
    for _ in 0..2 {
        assert!(skips(&gate, "GET"));
        assert_eq!(log.text().matches(RAN_AT_ONCE).count(), 1, "{}", log.text());
    }
    log.assert_contains("use POST for work in the background");
    log.assert_contains("/orders/{id}");
}

/// In a thread of its own, where no other test has created a lock.
#[test]
fn background_in_a_process_without_a_lock_runs_nothing() {
    let run = || async {
        let (log, _reads) = CapturedLog::start_capture();
        let (background, plain) = (TestDeferLayer::new().background(), TestDeferLayer::new());
        for method in ["POST", "POST", "PUT"] {
            let status = run_request(&background, method, |_| panic!("it must not run")).await;
            assert_eq!(status, 500, "{method}");
        }
        log.assert_contains("and this process has created no LockLayer");
        log.assert_contains("POST /orders/{id}");
        assert_eq!(run_request(&plain, "POST", |_| 200).await, 200, "it runs directly");
        drop(lock(&Store::memory()));
        assert_eq!(run_request(&background, "POST", |_| 303).await, 500, "it may be inside");
        log.assert_contains("request answered with 500: the layer is set to `background`");
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a runtime");
    std::thread::scope(|scope| scope.spawn(|| runtime.block_on(run())).join()).expect("it passes");
}

#[tokio::test(start_paused = true)]
async fn background_without_a_lock_runs_one_request_of_a_route() {
    let (log, _reads) = CapturedLog::start_capture();
    // The lock of another route.
    drop(lock(&Store::memory()));
    let gate = TestDeferLayer::new().background();
    let mut runs = 0;
    // A redirect may be that of a login in between.
    for expected_runs in 1..=2 {
        let redirects = |_: &mut FakeGateRequest| {
            runs += 1;
            303
        };
        assert_eq!(run_request(&gate, "POST", redirects).await, 500);
        assert_eq!(runs, expected_runs);
    }
    for method in ["POST", "POST", "POST", "PUT", "PUT"] {
        let succeeds = |_: &mut FakeGateRequest| {
            runs += 1;
            200
        };
        assert_eq!(run_request(&gate, method, succeeds).await, 500, "{method}");
    }
    assert_eq!(runs, 4, "one POST and one PUT");
    log.assert_contains("request answered with 500: the layer is set to `background`");
    for ran in ["route=\"POST /orders/{id}\"", "route=\"PUT /orders/{id}\""] {
        let text = log.text();
        let is_logged = |line: &str| line.contains("so it ran at once") && line.contains(ran);
        assert!(text.lines().any(is_logged), "{ran} is not throttled: {text}");
    }
    log.assert_contains("request refused: the layer is set to `background`, and an earlier");
    let other = TestDeferLayer::new().background();
    assert_eq!(run_request(&other, "POST", |_| 404).await, 404, "another layer knows nothing");
}

/// It may lock the next one.
#[tokio::test(start_paused = true)]
async fn background_with_a_lock_of_other_methods_is_tried_each_time() {
    let store = Store::memory();
    let gate = TestDeferLayer::new().background();
    let locks_put = lock(&store).methods(["PUT"]);
    let mut runs = 0;
    for _ in 0..3 {
        let skipped = |view: &mut FakeGateRequest| {
            runs += 1;
            inspect_lock(&locks_put, view);
            200
        };
        assert_eq!(run_request(&gate, "POST", skipped).await, 500);
    }
    assert_eq!(runs, 3);
}
