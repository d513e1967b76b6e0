//! Settings of a lock layer: methods, busy response, and kind of wait.

use lockgate_tests::{TestCase, TestResponse};
use serde_json::Value;

use super::{expect_accepted, measure_acquire, response_fence};

/// Expects the usual busy response with this status.
#[track_caller]
fn expect_busy_with_status(status: u16, answer: TestResponse) -> Value {
    let answer = answer.expect_status(status);
    assert!(answer.retry_after_seconds() <= 10, "{answer:?}");
    assert_eq!(answer.header("cache-control"), "no-store", "{answer:?}");
    let problem = answer.problem_document();
    assert_eq!(problem["type"], "urn:lockgate:problem:busy");
    problem
}

pub(crate) async fn all_methods_or_only_named_ones_take_the_lock(case: TestCase) {
    let site = case.start_site().await;
    let hold = site.post_held("/orders/7/pay").await;
    expect_busy_with_status(409, site.post("/methods/7").send().await);
    expect_busy_with_status(409, site.get("/methods/7").send().await);
    expect_busy_with_status(409, site.get("/orders/7/audit").send().await);
    // For HEAD, the router runs the GET route or no route.
    let head = site.request("HEAD", "/methods/7").send().await;
    assert!([409, 405].contains(&head.status.as_u16()), "{head:?}");
    for method in ["PUT", "DELETE", "PATCH", "OPTIONS"] {
        let answer = site.request(method, "/methods/7").send().await.expect_status(200);
        assert!(answer.json()["fence"].is_null(), "{answer:?}");
    }
    let _ = hold.finish().await.expect_status(200);
    let _ = site.post("/methods/7").send().await.expect_status(200);
    let _ = response_fence(&site.get("/orders/7/audit").send().await.expect_status(200));
}

pub(crate) async fn busy_response_has_configured_status(case: TestCase) {
    let site = case.start_site().await;
    let hold = site.post_held("/orders/7/pay").await;
    let problem = expect_busy_with_status(423, site.post("/locked/7").send().await);
    assert!(problem["waited_ms"].is_null(), "{problem}");
    expect_busy_with_status(503, site.post("/unavailable/7").send().await);
    let problem = expect_busy_with_status(429, site.post("/too-many/7").send().await);
    assert!(problem["waited_ms"].as_u64().is_some_and(|ms| ms >= 40), "two pauses: {problem}");
    let job = expect_accepted(site.post("/locked-refund/7").body("note").send().await);
    let _ = hold.finish().await.expect_status(200);
    assert_eq!(job.wait_until_done(&site).await["body"], "note", "one of any status is deferred");
}

pub(crate) async fn polling_requests_acquire_the_lock_eventually(case: TestCase) {
    let (store, site, other) =
        (case.new_store().await, case.start_site().await, case.start_site().await);
    let hold = site.post_held("/orders/7/pay?tag=holder").await;
    let polling: Vec<_> = (0..4).map(|_| site.post("/again/7?tag=again").spawn()).collect();
    // This request is the only one with a queue entry.
    let waiting = other.post("/orders/7/ship?tag=waiting").spawn();
    super::wait_for_queue_length(&store, "7", 1).await;
    let _ = hold.finish().await.expect_status(200);
    let _ = waiting.response().await.expect_status(200);
    for polling in polling {
        let _ = polling.response().await.expect_status(200);
    }
    let tags = case.handler.run_tags();
    assert_eq!((tags[0].as_str(), tags.len()), ("holder", 6), "{tags:?}");
    let fences: Vec<_> = case.handler.completed_runs().into_iter().map(|ran| ran.fence).collect();
    assert!(fences.is_sorted_by(|a, b| a < b), "{fences:?}");
}

pub(crate) async fn reject_overrides_wait(case: TestCase) {
    let site = case.start_site().await;
    let hold = site.post_held("/orders/7/pay").await;
    let problem = expect_busy_with_status(409, site.post("/reject/7").send().await);
    assert!(problem["waited_ms"].is_null(), "{problem}");
    let _ = hold.finish().await.expect_status(200);
    measure_acquire(&site, "7").await;
}
