//! Deferred requests: accepted, run, looked up.

use lockgate_tests::{Case, Site, eventually};
use serde_json::json;

use super::{Job, accepted, fence, lock::busy, quota::spend, tells_no_token};

/// Sends a POST that is deferred.
pub(super) async fn refund(site: &Site, query: &str) -> Job {
    let target = format!("/orders/7/refund?{query}");
    accepted(site.post(&target).send().await)
}

pub(crate) async fn a_busy_resource_defers_the_request(case: Case) {
    let site = case.site().await;
    let hold = site.hold("/orders/7/pay").await;
    let answer = site.post("/orders/7/refund").body("note").send().await;
    assert_eq!(answer.json()["state"], "queued");
    assert_eq!(answer.json()["position"], 1);
    let job = accepted(answer);
    assert_eq!(job.location, format!("/deferred/{}", job.id));

    // The site's worker may not have given its first sign of life yet: till then it is told that there is none.
    job.becomes(&site, |document| document.get("worker").is_none()).await;
    let answer = site.get(&job.location).send().await.expect(200);
    let _ = answer.retry_after();
    assert_eq!(answer.field("cache-control"), "no-store");
    tells_no_token(&answer, &job.id);
    let document = answer.json();
    let accepted_at = document["accepted"].as_str().expect("a time").to_owned();
    let queued = json!({
        "id": job.id, "state": "queued", "position": 1, "attempts": 0,
        "accepted": accepted_at, "began": null, "ended": null,
    });
    assert_eq!(document, queued);
    let response = format!("{}/response", job.location);
    let _ = site.get(&response).send().await.expect(202).retry_after();

    let held = fence(&hold.let_go().await.expect(200));
    let document = job.ended(&site).await;
    assert_eq!(document["state"], "done", "{document}");
    assert_eq!(document["attempts"], 1, "{document}");
    assert_eq!(document["response"]["status"], 200, "{document}");
    let seen = &document["response"]["body"];
    assert_eq!(seen["body"], "note", "{document}");
    assert_eq!(seen["deferred"], json!({ "id": job.id, "attempt": 1 }), "{document}");
    assert!(seen["fence"].as_u64() > Some(held), "{document}");
    assert_eq!(seen["run"], seen["fence"], "{document}");
    let at = |name: &str| document[name].as_str().unwrap_or_else(|| panic!("{name}: {document}"));
    // RFC 3339 in UTC, all of one length: in the order of their letters.
    assert!(accepted_at.ends_with('Z') && at("accepted") == accepted_at, "{document}");
    assert!(at("accepted") <= at("began") && at("began") <= at("ended"), "{document}");
    let answer = site.get(&job.location).send().await;
    assert!(!answer.has("retry-after"), "nothing more to come: {answer:?}");
}

/// axum strips the prefix of a nested router from the URI that a layer inside of it sees.
pub(crate) async fn a_nested_route_runs_by_its_whole_path(case: Case) {
    let site = case.site().await;
    let hold = site.hold("/shops/3/orders/7/pay").await;
    let job = accepted(site.post("/shops/3/orders/7/later").send().await);
    let _ = hold.let_go().await.expect(200);
    let document = job.ended(&site).await;
    assert_eq!(document["response"]["status"], 200, "{document}");
}

pub(crate) async fn a_response_that_has_no_body_is_given_back_without(case: Case) {
    let site = case.site().await;
    for status in [204, 205, 304] {
        let hold = site.hold("/orders/7/pay").await;
        // The handler has one all the same.
        let job = refund(&site, &format!("status={status}&text=word")).await;
        let _ = hold.let_go().await.expect(200);
        let _ = job.done(&site).await;
        let response = site.get(&format!("{}/response", job.location));
        let answer = response.send().await.expect(status);
        assert!(answer.body.is_empty(), "{answer:?}");
        // Nor is one spoken of (RFC 9110 section 8.6).
        assert!(matches!(&*answer.list("content-length"), "" | "0"), "{answer:?}");
        assert!(status != 204 || !answer.has("content-length"), "{answer:?}");
    }
}

pub(crate) async fn the_response_is_given_back_as_it_was(case: Case) {
    let site = case.site().await;
    let hold = site.hold("/orders/7/pay").await;
    let job = refund(&site, "status=422&text=hello&cookie=1").await;
    let _ = hold.let_go().await.expect(200);
    let document = job.ended(&site).await;
    assert_eq!(document["state"], "done", "an answer of the handler: {document}");
    assert_eq!(document["response"]["status"], 422);
    assert_eq!(document["response"]["body"], "hello");
    assert!(!document.to_string().contains("secret"), "{document}");
    let response = format!("{}/response", job.location);
    let answer = site.get(&response).send().await.expect(422);
    assert_eq!(answer.text(), "hello");
    assert_eq!(answer.field("content-type"), "text/plain");
    assert!(!answer.has("set-cookie"), "{answer:?}");
    // As often as it is asked for.
    let again = site.get(&response).send().await.expect(422);
    assert_eq!(again.body, answer.body);
    let head = site.request("HEAD", &response).send().await.expect(422);
    assert!(head.body.is_empty());
}

pub(crate) async fn bytes_that_are_no_text_come_back_too(case: Case) {
    let site = case.site().await;
    let hold = site.hold("/orders/7/pay").await;
    let all: Vec<u8> = (0..=255).collect();
    let sent = site.post("/orders/7/refund?echo=1").body(all.clone());
    let job = accepted(sent.send().await);
    let _ = hold.let_go().await.expect(200);
    let document = job.ended(&site).await;
    assert!(document["response"]["body"].is_null(), "no text: {document}");
    assert_eq!(document["response"]["stored"], "body", "{document}");
    let response = format!("{}/response", job.location);
    let answer = site.get(&response).send().await.expect(200);
    assert_eq!(answer.body, all);
    assert_eq!(answer.field("content-type"), "application/octet-stream");
}

/// Whichever process has accepted them.
pub(crate) async fn jobs_run_in_the_order_of_acceptance(case: Case) {
    let there = case.plan().await.framework(case.framework.other());
    let (here, there) = (case.site().await, there.start().await);
    let hold = here.hold("/orders/7/pay?tag=hold").await;
    let mut jobs = Vec::new();
    for n in 1..=6 {
        let site = if n % 2 == 0 { &here } else { &there };
        let answer = site.post(&format!("/orders/7/refund?tag={n}")).send().await;
        assert_eq!(answer.json()["position"], n);
        jobs.push(accepted(answer));
    }
    let _ = hold.let_go().await.expect(200);
    let mut fences = Vec::new();
    for job in &jobs {
        let _ = job.done(&there).await;
        fences.push(job.done(&here).await["fence"].as_u64());
    }
    assert_eq!(case.desk.tags(), ["hold", "1", "2", "3", "4", "5", "6"]);
    assert!(fences.is_sorted_by(|a, b| a < b), "{fences:?}");
}

pub(crate) async fn the_other_framework_runs_it(case: Case) {
    let here = case.plan().await.no_worker().start().await;
    let there = case.plan().await.framework(case.framework.other());
    let there = there.start().await;
    let hold = here.hold("/orders/a%2Fb/pay").await;
    let sent = here.post("/orders/a%2Fb/refund?tag=x").header("x-many", "1");
    let job = accepted(sent.header("x-many", "2").body("note").send().await);
    let _ = hold.let_go().await.expect(200);
    let seen = job.done(&here).await;
    assert_eq!(seen["site"], there.name());
    assert_eq!(seen["target"], "/orders/a%2Fb/refund?tag=x");
    assert_eq!(seen["id"], "a/b");
    assert_eq!(seen["body"], "note");
}

pub(crate) async fn the_run_holds_the_lock(case: Case) {
    let site = case.site().await;
    let hold = site.hold("/orders/7/pay").await;
    let job = refund(&site, "gate=run").await;
    let _ = hold.let_go().await.expect(200);
    case.desk.gates.arrived("run").await;
    busy(site.post("/orders/7/pay").send().await);
    let answer = site.get(&job.location).send().await;
    let _ = answer.retry_after();
    let document = answer.json();
    assert_eq!((&document["state"], &document["attempts"]), (&json!("running"), &json!(1)));
    let response = format!("{}/response", job.location);
    assert_eq!(site.get(&response).send().await.expect(202).json()["state"], "running");
    let waiter = site.post("/orders/7/ship?tag=waiter").spawn();
    case.desk.gates.open("run");
    let _ = job.done(&site).await;
    let _ = waiter.answer().await.expect(200);
    assert_eq!(case.desk.tags(), ["", "", "waiter"]);
}

pub(crate) async fn a_stopping_site_lets_its_run_end(case: Case) {
    let (site, other) = (case.site().await, case.plan().await.no_worker());
    let other = other.start().await;
    let hold = site.hold("/orders/7/pay").await;
    let job = refund(&site, "gate=run").await;
    let _ = hold.let_go().await.expect(200);
    case.desk.gates.arrived("run").await;
    let addr = site.addr;
    let stopped = tokio::spawn(site.stop());
    eventually("new connections to be refused", async || {
        tokio::net::TcpStream::connect(addr).await.is_err()
    })
    .await;
    assert_eq!(job.document(&other).await["state"], "running");
    assert!(!stopped.is_finished());
    case.desk.gates.open("run");
    stopped.await.expect("it stops");
    let document = job.document(&other).await;
    assert_eq!(document["state"], "done", "{document}");
}

pub(crate) async fn namespaces_share_nothing(case: Case) {
    let stranger = case.plan_on(case.stranger().await).start().await;
    let site = case.plan().await.no_worker().start().await;
    for site in [&site, &stranger] {
        spend(site, "/quota/three", 3).await;
    }
    let hold = site.hold("/orders/7/pay").await;
    let _ = stranger.post("/orders/7/pay").send().await.expect(200);
    let job = refund(&site, "").await;
    let _ = stranger.get(&job.location).send().await.expect(404);
    let _ = stranger.delete(&job.location).send().await.expect(404);
    let _ = stranger.post("/orders/7/refund").send().await.expect(200);
    let _ = hold.let_go().await.expect(200);
    let document = job.document(&site).await;
    assert_eq!(document["reason"], "no worker", "the stranger's is not ours: {document}");
}
