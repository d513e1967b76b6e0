//! Deferred requests: acceptance, run and status.

use lockgate_tests::{TestCase, TestSite, eventually};
use serde_json::json;

use super::{
    JobReceipt, assert_no_token, expect_accepted, lock::expect_busy, quota::spend_quota,
    response_fence,
};

/// Sends a POST that is deferred.
pub(super) async fn defer_refund(site: &TestSite, query: &str) -> JobReceipt {
    let target = format!("/orders/7/refund?{query}");
    expect_accepted(site.post(&target).send().await)
}

pub(crate) async fn request_for_busy_lock_is_deferred_and_runs(case: TestCase) {
    let site = case.start_site().await;
    let hold = site.post_held("/orders/7/pay").await;
    let answer = site.post("/orders/7/refund").body("note").send().await;
    assert_eq!(answer.json()["state"], "queued");
    assert_eq!(answer.json()["position"], 1);
    // No hold has been measured, so each is assumed to take 2 s: the holder's and the job's own.
    assert_eq!(answer.retry_after_seconds(), 4);
    let job = expect_accepted(answer);
    assert_eq!(job.location, format!("/deferred/{}", job.id));

    // Until the worker's first heartbeat, the document reports that there is no worker.
    job.wait_for_status(&site, |document| document.get("worker").is_none()).await;
    let answer = site.get(&job.location).send().await.expect_status(200);
    let _ = answer.retry_after_seconds();
    assert_eq!(answer.header("cache-control"), "no-store");
    assert_no_token(&answer, &job.id);
    let document = answer.json();
    let accepted_at = document["accepted"].as_str().expect("a time").to_owned();
    let queued = json!({
        "id": job.id, "state": "queued", "position": 1, "attempts": 0,
        "accepted": accepted_at, "began": null, "ended": null,
    });
    assert_eq!(document, queued);
    let response = format!("{}/response", job.location);
    let _ = site.get(&response).send().await.expect_status(202).retry_after_seconds();

    let held = response_fence(&hold.finish().await.expect_status(200));
    let document = job.wait_for_final_status(&site).await;
    assert_eq!(document["state"], "done", "{document}");
    assert_eq!(document["attempts"], 1, "{document}");
    assert_eq!(document["response"]["status"], 200, "{document}");
    let seen = &document["response"]["body"];
    assert_eq!(seen["body"], "note", "{document}");
    assert_eq!(seen["deferred"], json!({ "id": job.id, "attempt": 1 }), "{document}");
    assert!(seen["fence"].as_u64() > Some(held), "{document}");
    assert_eq!(seen["run"], seen["fence"], "{document}");
    let at = |name: &str| document[name].as_str().unwrap_or_else(|| panic!("{name}: {document}"));
    // RFC 3339 in UTC with a fixed length: the text order is the time order.
    assert!(accepted_at.ends_with('Z') && at("accepted") == accepted_at, "{document}");
    assert!(at("accepted") <= at("began") && at("began") <= at("ended"), "{document}");
    let answer = site.get(&job.location).send().await;
    assert!(!answer.has_header("retry-after"), "nothing more to come: {answer:?}");
}

/// axum strips the prefix of a nested router from the URI that a layer inside of it sees.
pub(crate) async fn nested_route_runs_by_its_full_path(case: TestCase) {
    let site = case.start_site().await;
    let hold = site.post_held("/shops/3/orders/7/pay").await;
    let job = expect_accepted(site.post("/shops/3/orders/7/later").send().await);
    let _ = hold.finish().await.expect_status(200);
    let document = job.wait_for_final_status(&site).await;
    assert_eq!(document["response"]["status"], 200, "{document}");
}

pub(crate) async fn bodyless_response_is_replayed_without_body(case: TestCase) {
    let site = case.start_site().await;
    for status in [204, 205, 304] {
        let hold = site.post_held("/orders/7/pay").await;
        // The handler writes a body anyway.
        let job = defer_refund(&site, &format!("status={status}&text=word")).await;
        let _ = hold.finish().await.expect_status(200);
        let _ = job.wait_until_done(&site).await;
        let response = site.get(&format!("{}/response", job.location));
        let answer = response.send().await.expect_status(status);
        assert!(answer.body.is_empty(), "{answer:?}");
        // `Content-Length` is omitted or zero too (RFC 9110 section 8.6).
        assert!(matches!(&*answer.header_list("content-length"), "" | "0"), "{answer:?}");
        assert!(status != 204 || !answer.has_header("content-length"), "{answer:?}");
    }
}

pub(crate) async fn stored_response_is_returned_unchanged(case: TestCase) {
    let site = case.start_site().await;
    let hold = site.post_held("/orders/7/pay").await;
    let job = defer_refund(&site, "status=422&text=hello&cookie=1").await;
    let _ = hold.finish().await.expect_status(200);
    let document = job.wait_for_final_status(&site).await;
    assert_eq!(document["state"], "done", "an answer of the handler: {document}");
    assert_eq!(document["response"]["status"], 422);
    assert_eq!(document["response"]["body"], "hello");
    assert!(!document.to_string().contains("secret"), "{document}");
    let response = format!("{}/response", job.location);
    let answer = site.get(&response).send().await.expect_status(422);
    assert_eq!(answer.text(), "hello");
    assert_eq!(answer.header("content-type"), "text/plain");
    assert!(!answer.has_header("set-cookie"), "{answer:?}");
    // The stored response can be fetched repeatedly.
    let repeated = site.get(&response).send().await.expect_status(422);
    assert_eq!(repeated.body, answer.body);
    let head = site.request("HEAD", &response).send().await.expect_status(422);
    assert!(head.body.is_empty());
}

pub(crate) async fn binary_bodies_are_preserved(case: TestCase) {
    let site = case.start_site().await;
    let hold = site.post_held("/orders/7/pay").await;
    let all_bytes: Vec<u8> = (0..=255).collect();
    let sent = site.post("/orders/7/refund?echo=1").body(all_bytes.clone());
    let job = expect_accepted(sent.send().await);
    let _ = hold.finish().await.expect_status(200);
    let document = job.wait_for_final_status(&site).await;
    assert!(document["response"]["body"].is_null(), "no text: {document}");
    assert_eq!(document["response"]["stored"], "body", "{document}");
    let response = format!("{}/response", job.location);
    let answer = site.get(&response).send().await.expect_status(200);
    assert_eq!(answer.body, all_bytes);
    assert_eq!(answer.header("content-type"), "application/octet-stream");
}

/// Two processes accept jobs of one lock; the order of acceptance is global.
pub(crate) async fn jobs_run_in_the_order_of_acceptance(case: TestCase) {
    let other_site = case.site_builder().await.framework(case.framework.other());
    let (site, other_site) = (case.start_site().await, other_site.start().await);
    let hold = site.post_held("/orders/7/pay?tag=hold").await;
    let mut jobs = Vec::new();
    for n in 1..=6 {
        let site = if n % 2 == 0 { &site } else { &other_site };
        let answer = site.post(&format!("/orders/7/refund?tag={n}")).send().await;
        assert_eq!(answer.json()["position"], n);
        jobs.push(expect_accepted(answer));
    }
    let _ = hold.finish().await.expect_status(200);
    let mut fences = Vec::new();
    for job in &jobs {
        let _ = job.wait_until_done(&other_site).await;
        fences.push(job.wait_until_done(&site).await["fence"].as_u64());
    }
    assert_eq!(case.handler.run_tags(), ["hold", "1", "2", "3", "4", "5", "6"]);
    assert!(fences.is_sorted_by(|a, b| a < b), "{fences:?}");
}

pub(crate) async fn job_can_run_in_the_other_framework(case: TestCase) {
    let site = case.site_builder().await.without_worker().start().await;
    let other_site = case.site_builder().await.framework(case.framework.other());
    let other_site = other_site.start().await;
    let hold = site.post_held("/orders/a%2Fb/pay").await;
    let sent = site.post("/orders/a%2Fb/refund?tag=x").header("x-many", "1");
    let job = expect_accepted(sent.header("x-many", "2").body("note").send().await);
    let _ = hold.finish().await.expect_status(200);
    let seen = job.wait_until_done(&site).await;
    assert_eq!(seen["site"], other_site.name());
    assert_eq!(seen["target"], "/orders/a%2Fb/refund?tag=x");
    assert_eq!(seen["id"], "a/b");
    assert_eq!(seen["body"], "note");
}

pub(crate) async fn run_holds_the_lock(case: TestCase) {
    let site = case.start_site().await;
    let hold = site.post_held("/orders/7/pay").await;
    let job = defer_refund(&site, "gate=run").await;
    let _ = hold.finish().await.expect_status(200);
    case.handler.sync_points.wait_for_arrival("run").await;
    expect_busy(site.post("/orders/7/pay").send().await);
    let answer = site.get(&job.location).send().await;
    let _ = answer.retry_after_seconds();
    let document = answer.json();
    assert_eq!((&document["state"], &document["attempts"]), (&json!("running"), &json!(1)));
    let response = format!("{}/response", job.location);
    assert_eq!(site.get(&response).send().await.expect_status(202).json()["state"], "running");
    let waiter = site.post("/orders/7/ship?tag=waiter").spawn();
    case.handler.sync_points.open("run");
    let _ = job.wait_until_done(&site).await;
    let _ = waiter.response().await.expect_status(200);
    assert_eq!(case.handler.run_tags(), ["", "", "waiter"]);
}

pub(crate) async fn shutdown_waits_for_active_run(case: TestCase) {
    let (site, other) = (case.start_site().await, case.site_builder().await.without_worker());
    let other = other.start().await;
    let hold = site.post_held("/orders/7/pay").await;
    let job = defer_refund(&site, "gate=run").await;
    let _ = hold.finish().await.expect_status(200);
    case.handler.sync_points.wait_for_arrival("run").await;
    let addr = site.addr;
    let stopped = tokio::spawn(site.stop());
    eventually("new connections to be refused", async || {
        tokio::net::TcpStream::connect(addr).await.is_err()
    })
    .await;
    assert_eq!(job.status_document(&other).await["state"], "running");
    assert!(!stopped.is_finished());
    case.handler.sync_points.open("run");
    stopped.await.expect("it stops");
    let document = job.status_document(&other).await;
    assert_eq!(document["state"], "done", "{document}");
}

pub(crate) async fn namespaces_share_nothing(case: TestCase) {
    let stranger = case.site_builder_on(case.new_unrelated_store().await).start().await;
    let site = case.site_builder().await.without_worker().start().await;
    for site in [&site, &stranger] {
        spend_quota(site, "/quota/three", 3).await;
    }
    let hold = site.post_held("/orders/7/pay").await;
    let _ = stranger.post("/orders/7/pay").send().await.expect_status(200);
    let job = defer_refund(&site, "").await;
    let _ = stranger.get(&job.location).send().await.expect_status(404);
    let _ = stranger.delete(&job.location).send().await.expect_status(404);
    let _ = stranger.post("/orders/7/refund").send().await.expect_status(200);
    let _ = hold.finish().await.expect_status(200);
    let document = job.status_document(&site).await;
    assert_eq!(document["reason"], "no worker", "the other job has its own reason: {document}");
}
