//! What a lock layer can be set to: which methods, which answer, which way to wait.

use lockgate_tests::{Answer, Case};
use serde_json::Value;

use super::{accepted, fence, passes_at_once};

/// A busy answer of this status: the same as ever otherwise.
#[track_caller]
fn busy_as(status: u16, answer: Answer) -> Value {
    let answer = answer.expect(status);
    assert!(answer.retry_after() <= 10, "{answer:?}");
    assert_eq!(answer.field("cache-control"), "no-store", "{answer:?}");
    let problem = answer.problem();
    assert_eq!(problem["type"], "urn:lockgate:problem:busy");
    problem
}

pub(crate) async fn all_methods_or_exactly_the_named_ones_lock(case: Case) {
    let site = case.site().await;
    let hold = site.hold("/orders/7/pay").await;
    busy_as(409, site.post("/methods/7").send().await);
    busy_as(409, site.get("/methods/7").send().await);
    busy_as(409, site.get("/orders/7/audit").send().await);
    // A router runs what is there for GET, or nothing.
    let head = site.request("HEAD", "/methods/7").send().await;
    assert!([409, 405].contains(&head.status.as_u16()), "{head:?}");
    for method in ["PUT", "DELETE", "PATCH", "OPTIONS"] {
        let answer = site.request(method, "/methods/7").send().await.expect(200);
        assert!(answer.json()["fence"].is_null(), "{answer:?}");
    }
    let _ = hold.let_go().await.expect(200);
    let _ = site.post("/methods/7").send().await.expect(200);
    let _ = fence(&site.get("/orders/7/audit").send().await.expect(200));
}

pub(crate) async fn the_busy_answer_has_the_status_of_choice(case: Case) {
    let site = case.site().await;
    let hold = site.hold("/orders/7/pay").await;
    let problem = busy_as(423, site.post("/locked/7").send().await);
    assert!(problem["waited_ms"].is_null(), "{problem}");
    busy_as(503, site.post("/unavailable/7").send().await);
    let problem = busy_as(429, site.post("/too-many/7").send().await);
    assert!(problem["waited_ms"].as_u64().is_some_and(|ms| ms >= 40), "two pauses: {problem}");
    let job = accepted(site.post("/locked-refund/7").body("note").send().await);
    let _ = hold.let_go().await.expect(200);
    assert_eq!(job.done(&site).await["body"], "note", "one of any status is deferred");
}

pub(crate) async fn who_asks_again_passes_in_the_end(case: Case) {
    let (store, site, other) = (case.store().await, case.site().await, case.site().await);
    let hold = site.hold("/orders/7/pay?tag=holder").await;
    let asking: Vec<_> = (0..4).map(|_| site.post("/again/7?tag=again").spawn()).collect();
    // This one stands in line meanwhile, alone.
    let waiting = other.post("/orders/7/ship?tag=waiting").spawn();
    super::line_is(&store, "7", 1).await;
    let _ = hold.let_go().await.expect(200);
    let _ = waiting.answer().await.expect(200);
    for asking in asking {
        let _ = asking.answer().await.expect(200);
    }
    let tags = case.desk.tags();
    assert_eq!((tags[0].as_str(), tags.len()), ("holder", 6), "{tags:?}");
    let fences: Vec<_> = case.desk.ran().into_iter().map(|ran| ran.fence).collect();
    assert!(fences.is_sorted_by(|a, b| a < b), "{fences:?}");
}

pub(crate) async fn a_wait_can_be_taken_back(case: Case) {
    let site = case.site().await;
    let hold = site.hold("/orders/7/pay").await;
    let problem = busy_as(409, site.post("/reject/7").send().await);
    assert!(problem["waited_ms"].is_null(), "{problem}");
    let _ = hold.let_go().await.expect(200);
    passes_at_once(&site, "7").await;
}
