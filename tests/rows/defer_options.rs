//! Conditions under which a request is accepted, and the options of its run.

use std::time::{Duration, Instant};

use http::StatusCode;
use lockgate_tests::{TestCase, TestRequest, TestResponse, TestSite, WebFramework, eventually};
use parking_lot::Mutex;
use serde_json::Value;

use super::{JobReceipt, expect_accepted, lock::expect_busy, wait_for_queue_length};

#[track_caller]
fn assert_preference_applied(answer: &TestResponse, preference: &str) {
    assert_eq!(answer.header("preference-applied"), preference, "{answer:?}");
}

fn post_with_preference(site: &TestSite, target: &str, preference: &str) -> TestRequest {
    site.post(target).header("prefer", preference)
}

pub(crate) async fn request_that_waits_long_enough_is_not_deferred(case: TestCase) {
    let (site, first_site, second_site) =
        (case.start_site().await, case.start_site().await, case.start_site().await);
    let hold = site.post_held("/orders/7/pay?tag=hold").await;
    let route_wait = first_site.post("/waits/7?tag=route").spawn();
    wait_for_queue_length(site.store(), "7", 1).await;
    let client_wait =
        post_with_preference(&second_site, "/orders/7/refund?tag=client", "wait=20").spawn();
    wait_for_queue_length(site.store(), "7", 2).await;
    let _ = hold.finish().await.expect_status(200);
    let _ = route_wait.response().await.expect_status(200);
    let _ = client_wait.response().await.expect_status(200);
    assert_eq!(case.handler.run_tags(), ["hold", "route", "client"]);
}

pub(crate) async fn request_is_deferred_after_its_wait(case: TestCase) {
    let site = case.start_site().await;
    let hold = site.post_held("/orders/7/pay?tag=hold").await;
    let started = Instant::now();
    let answer = post_with_preference(&site, "/waits/7?tag=job", "wait=1").send().await;
    assert!(started.elapsed() >= Duration::from_secs(1));
    assert_preference_applied(&answer, "wait=1");
    let job = expect_accepted(answer);
    let _ = hold.finish().await.expect_status(200);
    let _ = job.wait_until_done(&site).await;
    assert_eq!(case.handler.run_tags(), ["hold", "job"]);
}

pub(crate) async fn respond_async_defers_on_a_free_lock(case: TestCase) {
    let site = case.start_site().await;
    let sent = post_with_preference(&site, "/async/7?tag=job", "respond-async");
    let answer = sent.body("note").send().await;
    assert_preference_applied(&answer, "respond-async");
    let job = expect_accepted(answer);
    assert_eq!(job.wait_until_done(&site).await["body"], "note");
    // `respond-async` takes effect only if the request asks for it and the route allows it.
    let _ = site.post("/async/7").send().await.expect_status(200);
    let answer = post_with_preference(&site, "/orders/7/refund", "respond-async")
        .send()
        .await
        .expect_status(200);
    assert!(!answer.has_header("preference-applied"), "{answer:?}");
    // With `wait`, the request acquires the free lock.
    let _ = post_with_preference(&site, "/async/7", "respond-async, wait=5")
        .send()
        .await
        .expect_status(200);
    // A request that cannot be stored runs at once.
    let sent = post_with_preference(&site, "/async/7", "respond-async").header("cookie", "a=b");
    let _ = sent.send().await.expect_status(200);
    let sent =
        post_with_preference(&site, "/async/7", "respond-async").body(vec![b'x'; 64 * 1024 + 1]);
    let _ = sent.send().await.expect_status(200);
    let long_target = format!("/async/7?long={}", "x".repeat(16 * 1024));
    let _ =
        post_with_preference(&site, &long_target, "respond-async").send().await.expect_status(200);
}

pub(crate) async fn always_deferred_request_never_runs_directly(case: TestCase) {
    let site = case.start_site().await;
    let answer = site.post("/always/7?tag=job").send().await;
    assert_eq!(answer.json()["state"], "queued");
    let job = expect_accepted(answer);
    assert_eq!(job.wait_until_done(&site).await["deferred"]["attempt"], 1);
    expect_busy(site.post("/always/7?tag=long").body([b'x'; 17].to_vec()).send().await);
    assert_eq!(case.handler.run_tags(), ["job"]);
    // Requests under permits are never deferred, so the route is misconfigured.
    let _ = site.post("/always-shared/7").send().await.expect_status(500).problem_document();
}

/// Without a lock there is no queue to defer to. A layer that answers before a handler is reached
/// keeps its response.
pub(crate) async fn always_deferred_request_without_lock_is_refused(case: TestCase) {
    let site = case.start_site().await;
    let _ = site.post("/always-unlocked/7?status=404").send().await.expect_status(404);
    for query in ["?status=303", ""] {
        let answer =
            site.post(&format!("/always-unlocked/7{query}")).send().await.expect_status(500);
        assert_eq!(answer.problem_document()["type"], "urn:lockgate:problem:server-error");
    }
    // From now on the layer knows the route, and runs nothing. In actix each thread has a layer of
    // its own.
    let runs = case.handler.completed_runs().len();
    for id in 1..=8 {
        let answer = site.post(&format!("/always-unlocked/{id}")).send().await.expect_status(500);
        assert_eq!(answer.problem_document()["type"], "urn:lockgate:problem:server-error");
    }
    let more_runs = case.handler.completed_runs().len() - runs;
    let other_threads = usize::from(matches!(case.framework, WebFramework::Actix));
    assert!(more_runs <= other_threads, "{more_runs}");
    let _ = site.get("/always-unlocked/7").send().await.expect_status(200);
}

pub(crate) async fn required_worker_must_be_alive_to_defer(case: TestCase) {
    let mut site = case.site_builder().await.without_worker().start().await;
    let hold = site.post_held("/orders/7/pay").await;
    expect_busy(site.post("/worker-required/7").send().await);
    let job = expect_accepted(site.post("/orders/7/refund").send().await);
    site.start_worker();
    let accepted = async || site.post("/worker-required/7").send().await.status.as_u16() == 202;
    eventually("a worker to be registered", accepted).await;
    let _ = hold.finish().await.expect_status(200);
    let _ = job.wait_until_done(&site).await;
}

pub(crate) async fn body_beyond_buffer_budget_is_not_deferred(case: TestCase) {
    let site = case.start_site().await;
    let hold = site.post_held("/orders/7/pay").await;
    expect_busy(site.post("/small-budget/7").body(vec![b'x'; 4_096]).send().await);
    // The buffer budget is shared with other tests of this process.
    let answer = Mutex::new(None);
    eventually("space in the buffer budget for a request head", async || {
        let sent = site.post("/small-budget/7").send().await;
        let is_deferred = sent.status == StatusCode::ACCEPTED;
        *answer.lock() = Some(sent);
        is_deferred
    })
    .await;
    let job = expect_accepted(answer.into_inner().expect("it was sent"));
    let _ = hold.finish().await.expect_status(200);
    let _ = job.wait_until_done(&site).await;
}

pub(crate) async fn only_named_methods_are_deferred(case: TestCase) {
    let site = case.start_site().await;
    let hold = site.post_held("/orders/7/pay").await;
    expect_busy(site.post("/puts/7").send().await);
    let job = expect_accepted(site.put("/puts/7").send().await);
    let _ = hold.finish().await.expect_status(200);
    let _ = job.wait_until_done(&site).await;
}

async fn defer_put(site: &TestSite, target: &str, body: &'static str) -> JobReceipt {
    expect_accepted(site.put(target).body(body).send().await)
}

pub(crate) async fn first_wins_merges_equal_requests(case: TestCase) {
    let site = case.start_site().await;
    let hold = site.post_held("/orders/7/pay?tag=hold").await;
    let first = defer_put(&site, "/first/7?tag=a", "one").await;
    assert_eq!(defer_put(&site, "/first/7?tag=a", "two").await.id, first.id);
    let other = defer_put(&site, "/first/7?tag=b", "one").await;
    assert_ne!(other.id, first.id, "another target");
    let post = || site.post("/first/7?tag=c").send();
    let (first_empty, second_empty) =
        (expect_accepted(post().await), expect_accepted(post().await));
    assert_ne!(first_empty.id, second_empty.id, "a method that may not be left out");
    let _ = hold.finish().await.expect_status(200);
    assert_eq!(first.wait_until_done(&site).await["body"], "one");
    let _ = second_empty.wait_until_done(&site).await;
    assert_eq!(case.handler.run_tags(), ["hold", "a", "b", "c", "c"]);
    let again = put_directly(&site).await;
    assert_eq!(again["body"], "three", "an ended job merges no request");
}

async fn put_directly(site: &TestSite) -> Value {
    site.put("/first/7?tag=a").body("three").send().await.expect_status(200).json()
}

pub(crate) async fn last_wins_supersedes_queued_request(case: TestCase) {
    let site = case.start_site().await;
    let hold = site.post_held("/orders/7/pay?tag=hold").await;
    let first = defer_put(&site, "/last/7?tag=a", "one").await;
    let last = defer_put(&site, "/last/7?tag=a", "two").await;
    assert_ne!(first.id, last.id);
    let document = first.status_document(&site).await;
    assert_eq!(document["state"], "cancelled", "{document}");
    assert_eq!(document["reason"], "superseded", "{document}");
    let _ = hold.finish().await.expect_status(200);
    assert_eq!(last.wait_until_done(&site).await["body"], "two");
    assert_eq!(case.handler.run_tags(), ["hold", "a"]);
}

/// The key of a superseded request still returns its cancelled job; a retry does not revive it.
pub(crate) async fn merged_requests_keep_their_idempotency_keys(case: TestCase) {
    let site = case.start_site().await;
    let hold = site.post_held("/orders/7/pay?tag=hold").await;
    let sent = |key: &str, body: &'static str| {
        let put = site.put("/last/7?tag=a").header("idempotency-key", key);
        put.body(body).send()
    };
    let first = expect_accepted(sent("a", "one").await);
    let last = expect_accepted(sent("b", "two").await);
    assert_ne!(first.id, last.id);
    assert_eq!(first.status_document(&site).await["reason"], "superseded");
    let again = sent("a", "one").await;
    assert_eq!(again.json()["state"], "cancelled", "{again:?}");
    assert_eq!(expect_accepted(again).id, first.id);
    assert_eq!(expect_accepted(sent("b", "two").await).id, last.id);
    for key in ["a", "b"] {
        let _ = sent(key, "three").await.expect_status(422).problem_document();
    }
    let document = last.status_document(&site).await;
    assert_eq!((&document["state"], &document["position"]), (&"queued".into(), &1.into()));
    let _ = hold.finish().await.expect_status(200);
    assert_eq!(last.wait_until_done(&site).await["body"], "two");
    assert_eq!(expect_accepted(sent("a", "one").await).id, first.id);
    assert_eq!(case.handler.run_tags(), ["hold", "a"]);
}

pub(crate) async fn delayed_job_runs_after_its_delay(case: TestCase) {
    let site = case.start_site().await;
    let hold = site.post_held("/orders/7/pay").await;
    let started = Instant::now();
    let answer = site.post("/delayed/7").send().await;
    assert!(answer.json()["position"].is_null(), "a delayed job has no position: {answer:?}");
    let job = expect_accepted(answer);
    let _ = hold.finish().await.expect_status(200);
    let _ = job.wait_until_done(&site).await;
    assert!(started.elapsed() >= Duration::from_secs(1), "{:?}", started.elapsed());
}

pub(crate) async fn job_expires_after_its_deadline(case: TestCase) {
    let site = case.start_site().await;
    let hold = site.post_held("/orders/7/pay?tag=hold").await;
    let job = expect_accepted(site.post("/brief-lived/7?tag=late").send().await);
    let document = job.wait_for_final_status(&site).await;
    assert_eq!(document["state"], "expired", "{document}");
    // The job will never have a response, so the status has no `Retry-After`.
    let answer = site.get(&format!("{}/response", job.location)).send().await.expect_status(410);
    assert!(!answer.has_header("retry-after"), "{answer:?}");
    let problem = answer.problem_document();
    assert_eq!(problem["type"], "urn:lockgate:problem:no-response");
    assert_eq!((&problem["state"], &problem["status"]), (&"expired".into(), &410.into()));
    let _ = hold.finish().await.expect_status(200);
    let _ = site.post("/orders/7/pay?tag=next").send().await.expect_status(200);
    assert_eq!(case.handler.run_tags(), ["hold", "next"]);
}

pub(crate) async fn rerunnable_post_is_retried(case: TestCase) {
    let site = case.start_site().await;
    let hold = site.post_held("/orders/7/pay").await;
    let job = expect_accepted(site.post("/repeated/7?fail=1").send().await);
    let worse = expect_accepted(site.post("/repeated/7?fail=2").send().await);
    let _ = hold.finish().await.expect_status(200);
    assert_eq!(job.wait_until_done(&site).await["deferred"]["attempt"], 2);
    let document = worse.wait_until_dead(&site, "failed").await;
    assert_eq!(document["attempts"], 2, "{document}");
}
