//! What a client is told when its lock was lost. The locks of these routes may be held for 3 s.

use lockgate_tests::{Answer, Case};

use super::{fence, passes_at_once};

/// The answer in place of the handler's.
#[track_caller]
pub(super) fn lost(answer: Answer, loss: &str) -> Answer {
    let answer = answer.expect(503);
    let _ = answer.retry_after();
    assert_eq!(answer.field("cache-control"), "no-store", "{answer:?}");
    let problem = answer.problem();
    assert_eq!(problem["type"], "urn:lockgate:problem:lock-lost");
    assert!(is(problem["loss"].as_str(), loss), "{problem}");
    assert!(problem["detail"].is_string(), "what has become of the change: {problem}");
    answer
}

/// Whoever looks at a lock that is at its end before the agent does finds that it has lapsed.
fn is(told: Option<&str>, loss: &str) -> bool {
    told == Some(loss) || (loss, told) == ("too-long", Some("lapsed"))
}

/// It is the default: nothing else is set on this route. Deferral is for requests that were busy: one that ran, and lost,
/// is not run again.
pub(crate) async fn a_handler_is_stopped(case: Case) {
    let site = case.site().await;
    let hold = site.hold("/brief/7?tag=stopped").await;
    let deferrable = site.hold("/brief-refund/8?tag=stopped").await;
    for (hold, order) in [(hold, "7"), (deferrable, "8")] {
        let answer = lost(hold.answer().await, "too-long");
        assert!(!answer.has("lock-lost") && !answer.has("location"), "{answer:?}");
        passes_at_once(&site, order).await;
    }
    assert_eq!(case.desk.tags(), ["", ""], "the handlers were dropped where they stood");
    // And the connection, the worker thread and the routes go on.
    let _ = site.post("/brief/7").send().await.expect(200);
}

pub(crate) async fn a_handler_may_finish_and_is_marked(case: Case) {
    let site = case.site().await;
    let hold = site.hold("/finish/7?tag=late").await;
    // Somebody else has had the lock meanwhile.
    passes_at_once(&site, "7").await;
    let answer = hold.let_go().await.expect(200);
    assert!(is(Some(answer.field("lock-lost")), "too-long"), "{answer:?}");
    let _ = fence(&answer);
    assert_eq!(case.desk.tags(), ["", "late"]);
    let in_time = site.post("/finish/7").send().await.expect(200);
    assert!(!in_time.has("lock-lost"), "{in_time:?}");
}

pub(crate) async fn an_answer_is_replaced(case: Case) {
    let site = case.site().await;
    let hold = site.hold("/replace/7?tag=late&cookie=1").await;
    passes_at_once(&site, "7").await;
    let answer = lost(hold.let_go().await, "too-long");
    assert!(!answer.has("set-cookie"), "nothing of the handler's: {answer:?}");
    assert_eq!(case.desk.tags(), ["", "late"]);
    let _ = site.post("/replace/7").send().await.expect(200);
}

/// The layer further in stops the handler; the outer one has lost the lock too, and says so on the 503.
/// The quota around both of them tells what is left, as on every answer.
pub(crate) async fn layers_further_out_see_the_answer(case: Case) {
    let site = case.site().await;
    let hold = site.hold("/layered/7").await;
    let answer = lost(hold.answer().await, "too-long");
    assert!(is(Some(answer.field("lock-lost")), "too-long"), "{answer:?}");
    assert!(answer.field("ratelimit").contains("r=4"), "{answer:?}");
    passes_at_once(&site, "7").await;
}

/// Its worker's own lock is what counts: the settings of the layer do not.
pub(crate) async fn a_deferred_run_is_not_stopped_by_the_layer(case: Case) {
    let site = case.site().await;
    let hold = site.hold("/orders/7/pay").await;
    let job = super::accepted(site.post("/brief-refund/7?gate=run&tag=run").send().await);
    let _ = hold.let_go().await.expect(200);
    case.desk.gates.arrived("run").await;
    // Far longer than the layer lets a request hold its lock.
    lost(site.hold("/brief/8").await.answer().await, "too-long");
    case.desk.gates.open("run");
    let seen = job.done(&site).await;
    assert!(seen["fence"].is_u64(), "{seen}");
}
