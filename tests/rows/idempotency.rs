//! `Idempotency-Key` of deferred requests.

use lockgate_tests::{TestCase, TestRequest, TestSite};

use super::expect_accepted;

fn keyed_refund(site: &TestSite, key: &str) -> TestRequest {
    site.post("/orders/7/refund?tag=job").header("idempotency-key", key)
}

pub(crate) async fn equal_keys_create_one_job(case: TestCase) {
    let (site, other) = (case.start_site().await, case.start_site().await);
    let hold = site.post_held("/orders/7/pay?tag=hold").await;
    let job = expect_accepted(keyed_refund(&site, "\"k\"").body("note").send().await);
    let retried = keyed_refund(&other, "\"k\"").body("note").send().await;
    assert_eq!(retried.json()["position"], 1, "{retried:?}");
    assert_eq!(expect_accepted(retried).id, job.id);
    let bare = expect_accepted(keyed_refund(&site, "k").body("note").send().await);
    assert_eq!(bare.id, job.id);
    let other_key = expect_accepted(keyed_refund(&site, "\"l\"").body("note").send().await);
    assert_ne!(other_key.id, job.id);
    let with_parameters =
        expect_accepted(keyed_refund(&site, "\"k\"; v=1;w").body("note").send().await);
    assert_eq!(with_parameters.id, job.id, "they are not part of the string");
    let _ = hold.finish().await.expect_status(200);
    let _ = job.wait_until_done(&site).await;
    let _ = other_key.wait_until_done(&site).await;
    assert_eq!(case.handler.run_tags(), ["hold", "job", "job"]);
}

/// RFC 8941 section 3.3.3 allows spaces, and escaped quotes and backslashes.
pub(crate) async fn quoted_keys_may_contain_escapes(case: TestCase) {
    let site = case.start_site().await;
    let hold = site.post_held("/orders/7/pay").await;
    let mut ids = Vec::new();
    for key in [r#""a b""#, r#""a\"b""#, r#""a\\b""#, r#""a;b""#] {
        let job = expect_accepted(keyed_refund(&site, key).send().await);
        assert_eq!(expect_accepted(keyed_refund(&site, key).send().await).id, job.id, "{key}");
        assert!(!ids.contains(&job.id), "{key}");
        ids.push(job.id);
    }
    let _ = hold.finish().await.expect_status(200);
}

pub(crate) async fn key_reuse_with_different_request_is_refused(case: TestCase) {
    let site = case.start_site().await;
    let hold = site.post_held("/orders/7/pay?tag=hold").await;
    let job = expect_accepted(keyed_refund(&site, "k").body("note").send().await);
    let _ =
        keyed_refund(&site, "k").body("other").send().await.expect_status(422).problem_document();
    let query = site.post("/orders/7/refund?tag=other").header("idempotency-key", "k");
    let _ = query.body("note").send().await.expect_status(422).problem_document();
    let _ = hold.finish().await.expect_status(200);
    let _ = job.wait_until_done(&site).await;
    // The key is looked up before the lock is acquired, so the result is the same with a free lock.
    let _ =
        keyed_refund(&site, "k").body("other").send().await.expect_status(422).problem_document();
    assert_eq!(case.handler.run_tags(), ["hold", "job"]);
}

/// The 202 is lost and the client retries: while the job runs, and after it has run and the lock is
/// free.
pub(crate) async fn retry_with_same_key_returns_the_job(case: TestCase) {
    let (site, other) = (case.start_site().await, case.start_site().await);
    let hold = site.post_held("/orders/7/pay?tag=hold").await;
    let send = |site: &TestSite| {
        let sent = site.post("/orders/7/refund?tag=job&gate=run");
        sent.header("idempotency-key", "k").body("note").send()
    };
    let job = expect_accepted(send(&site).await);
    let _ = hold.finish().await.expect_status(200);
    case.handler.sync_points.wait_for_arrival("run").await;
    let retried = send(&site).await;
    assert_eq!(retried.json()["state"], "running", "{retried:?}");
    assert_eq!(expect_accepted(retried).id, job.id);
    case.handler.sync_points.open("run");
    let _ = job.wait_until_done(&site).await;
    for site in [&site, &other] {
        let answer = send(site).await;
        assert_eq!(answer.json()["state"], "done", "{answer:?}");
        assert_eq!(expect_accepted(answer).id, job.id);
    }
    assert_eq!(case.handler.sync_points.arrival_count("run"), 1);
    assert_eq!(case.handler.run_tags(), ["hold", "job"], "it has run once");
    // The lookup does not touch the lock.
    let _ = site.post("/orders/7/pay").send().await.expect_status(200);
}

/// The same key with another method or route belongs to another request and is no mismatch.
pub(crate) async fn keys_are_scoped_by_method_and_route(case: TestCase) {
    let site = case.start_site().await;
    let hold = site.post_held("/orders/7/pay").await;
    let send = |method, target| {
        let sent = site.request(method, target).header("idempotency-key", "k");
        async move { expect_accepted(sent.send().await).id }
    };
    let requests = [("POST", "/orders/7/refund"), ("PUT", "/orders/7/refund"), ("POST", "/kept/7")];
    let mut ids = Vec::new();
    for (method, target) in requests {
        ids.push(send(method, target).await);
    }
    assert!(ids[0] != ids[1] && ids[0] != ids[2] && ids[1] != ids[2], "{ids:?}");
    for ((method, target), id) in requests.into_iter().zip(&ids) {
        assert_eq!(send(method, target).await, *id, "{method} {target}");
    }
    let _ = hold.finish().await.expect_status(200);
}

pub(crate) async fn malformed_keys_are_refused(case: TestCase) {
    let site = case.start_site().await;
    let long = "x".repeat(256);
    for key in ["\"\"", "a b", "\"a", r#""a\"#, r#""a\b""#, "\"a\"b", "\"a\";V=1", &long] {
        let _ = keyed_refund(&site, key).send().await.expect_status(400).problem_document();
    }
    let twice = keyed_refund(&site, "a").header("Idempotency-Key", "b");
    let _ = twice.send().await.expect_status(400).problem_document();
    assert_eq!(case.handler.completed_runs().len(), 0);
    let longest = "x".repeat(255);
    let _ = keyed_refund(&site, &longest).send().await.expect_status(200);
}
