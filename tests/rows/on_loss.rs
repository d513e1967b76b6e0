//! Response to a request whose lock was lost. The locks of these routes may be held for 3 s.

use lockgate_tests::{TestCase, TestResponse};

use super::{measure_acquire, response_fence};

/// Expects the response that replaces the handler's after a lock loss.
#[track_caller]
pub(super) fn expect_lock_lost(answer: TestResponse, loss: &str) -> TestResponse {
    let answer = answer.expect_status(503);
    let _ = answer.retry_after_seconds();
    assert_eq!(answer.header("cache-control"), "no-store", "{answer:?}");
    let problem = answer.problem_document();
    assert_eq!(problem["type"], "urn:lockgate:problem:lock-lost");
    assert!(is_loss(problem["loss"].as_str(), loss), "{problem}");
    assert!(problem["detail"].is_string(), "the problem has a detail: {problem}");
    answer
}

/// A check that precedes the lease agent reports an overlong hold as lapsed.
fn is_loss(actual: Option<&str>, expected: &str) -> bool {
    actual == Some(expected) || (expected, actual) == ("too-long", Some("lapsed"))
}

/// `Stop` is the default: the route sets no other reaction. A request that ran and lost its lock is
/// not deferred, because deferral is for busy locks.
pub(crate) async fn handler_is_stopped_on_loss_by_default(case: TestCase) {
    let site = case.start_site().await;
    let hold = site.post_held("/brief/7?tag=stopped").await;
    let deferrable = site.post_held("/brief-refund/8?tag=stopped").await;
    for (hold, order) in [(hold, "7"), (deferrable, "8")] {
        let answer = expect_lock_lost(hold.response().await, "too-long");
        assert!(!answer.has_header("lock-lost") && !answer.has_header("location"), "{answer:?}");
        measure_acquire(&site, order).await;
    }
    assert_eq!(case.handler.run_tags(), ["", ""], "the handlers were dropped");
    // The connection, the worker thread and the routes remain usable.
    let _ = site.post("/brief/7").send().await.expect_status(200);
}

pub(crate) async fn finish_on_loss_marks_the_response(case: TestCase) {
    let site = case.start_site().await;
    let hold = site.post_held("/finish/7?tag=late").await;
    // Another request acquires the lost lock meanwhile.
    measure_acquire(&site, "7").await;
    let answer = hold.finish().await.expect_status(200);
    assert!(is_loss(Some(answer.header("lock-lost")), "too-long"), "{answer:?}");
    let _ = response_fence(&answer);
    assert_eq!(case.handler.run_tags(), ["", "late"]);
    let in_time = site.post("/finish/7").send().await.expect_status(200);
    assert!(!in_time.has_header("lock-lost"), "{in_time:?}");
}

pub(crate) async fn replace_on_loss_discards_the_response(case: TestCase) {
    let site = case.start_site().await;
    let hold = site.post_held("/replace/7?tag=late&cookie=1").await;
    measure_acquire(&site, "7").await;
    let answer = expect_lock_lost(hold.finish().await, "too-long");
    assert!(!answer.has_header("set-cookie"), "nothing of the handler's: {answer:?}");
    assert_eq!(case.handler.run_tags(), ["", "late"]);
    let _ = site.post("/replace/7").send().await.expect_status(200);
}

/// The inner layer stops the handler. The outer layer has lost its lock too and marks the 503. The
/// rate limit around both sends its headers as on every response.
pub(crate) async fn outer_layers_see_the_lock_lost_response(case: TestCase) {
    let site = case.start_site().await;
    let hold = site.post_held("/layered/7").await;
    let answer = expect_lock_lost(hold.response().await, "too-long");
    assert!(is_loss(Some(answer.header("lock-lost")), "too-long"), "{answer:?}");
    assert!(answer.header("ratelimit").contains("r=4"), "{answer:?}");
    measure_acquire(&site, "7").await;
}

/// A deferred run holds the worker's lock; the `max_hold` of the layer does not apply.
pub(crate) async fn layer_max_hold_does_not_stop_deferred_run(case: TestCase) {
    let site = case.start_site().await;
    let hold = site.post_held("/orders/7/pay").await;
    let job = super::expect_accepted(site.post("/brief-refund/7?gate=run&tag=run").send().await);
    let _ = hold.finish().await.expect_status(200);
    case.handler.sync_points.wait_for_arrival("run").await;
    // The wait exceeds the `max_hold` of the layer.
    expect_lock_lost(site.post_held("/brief/8").await.response().await, "too-long");
    case.handler.sync_points.open("run");
    let document = job.wait_until_done(&site).await;
    assert!(document["fence"].is_u64(), "{document}");
}
