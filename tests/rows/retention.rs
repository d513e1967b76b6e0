//! Ended requests and their keys beyond the storage limits.

use lockgate_tests::{TestCase, TestRequest, TestResponse, TestSite, eventually};

use super::{JobReceipt, expect_accepted};

/// The route retains one byte of ended jobs per shard, so only the newest job. The user is the
/// owner.
fn post_evicting(site: &TestSite, key: &str, query: &str) -> TestRequest {
    let sent = site.post(&format!("/evicting/7?{query}")).header("x-user", "ada");
    sent.header("idempotency-key", key)
}

fn status_requests(site: &TestSite, job: &JobReceipt, user: &str) -> [TestRequest; 5] {
    let response = format!("{}/response", job.location);
    let requests = [
        site.get(&job.location),
        site.get(&job.location).header("prefer", "wait=5"),
        site.get(&job.location).header("accept", "text/event-stream"),
        site.get(&response),
        site.delete(&job.location),
    ];
    requests.map(|request| if user.is_empty() { request } else { request.header("x-user", user) })
}

#[track_caller]
fn expect_gone(answer: TestResponse) -> TestResponse {
    let answer = answer.expect_status(410);
    let problem = answer.problem_document();
    assert_eq!(problem["type"], "urn:lockgate:problem:no-longer-kept", "{problem}");
    answer
}

async fn wait_for_done_as_ada(site: &TestSite, job: &JobReceipt) {
    eventually("it to end", async || {
        let answer = site.get(&job.location).header("x-user", "ada").send().await;
        answer.expect_status(200).json()["state"] == "done"
    })
    .await;
}

pub(crate) async fn evicted_job_is_gone_for_its_owner_and_unknown_to_others(case: TestCase) {
    let (site, other) = (case.start_site().await, case.start_site().await);
    let hold = site.post_held("/orders/7/pay?tag=hold").await;
    let first = expect_accepted(post_evicting(&site, "one", "tag=one").send().await);
    let second = expect_accepted(post_evicting(&site, "two", "tag=two").send().await);
    let _ = hold.finish().await.expect_status(200);
    wait_for_done_as_ada(&site, &second).await;
    for site in [&site, &other] {
        for request in status_requests(site, &first, "ada") {
            let answer = expect_gone(request.send().await);
            assert_eq!(answer.problem_document()["state"], "done", "{answer:?}");
        }
        let unknown = site
            .get("/own-jobs/00112233445566778899aabbccddeeff00")
            .send()
            .await
            .expect_status(404);
        for request in ["bob", ""].into_iter().flat_map(|user| status_requests(site, &first, user))
        {
            assert_eq!(request.send().await.expect_status(404).body, unknown.body);
        }
        // The run is complete, and a retry gets 410.
        let _ = expect_gone(post_evicting(site, "one", "tag=one").send().await);
    }
    assert_eq!(case.handler.run_tags(), ["hold", "one", "two"]);
}

pub(crate) async fn evicted_direct_run_is_not_repeated(case: TestCase) {
    let site = case.start_site().await;
    for key in ["one", "two"] {
        let _ = post_evicting(&site, key, &format!("tag={key}")).send().await.expect_status(200);
    }
    let _ = expect_gone(post_evicting(&site, "one", "tag=one").send().await);
    let retained = post_evicting(&site, "two", "tag=two").send().await;
    assert_eq!(retained.json()["state"], "done", "{retained:?}");
    let retained = expect_accepted(retained);
    // Eviction affects the largest owner only; other owners keep their records.
    let bob = site.post("/evicting/7?tag=bob").header("x-user", "bob");
    let _ = bob.header("idempotency-key", "one").send().await.expect_status(200);
    for request in status_requests(&site, &retained, "") {
        let _ = request.send().await.expect_status(404);
    }
    assert_eq!(case.handler.run_tags(), ["one", "two", "bob"]);
}

pub(crate) async fn keys_beyond_limit_are_refused_and_known_keys_work(case: TestCase) {
    let site = case.start_site().await;
    let send = |user: &str, key: &str| {
        let sent = site.post(&format!("/few-keys/7?tag={user}-{key}")).header("x-user", user);
        sent.header("idempotency-key", key).send()
    };
    let refused = async |key: &str| {
        let answer = send("ada", key).await.expect_status(429);
        let _ = answer.retry_after_seconds();
        let problem = answer.problem_document();
        assert_eq!(problem["type"], "urn:lockgate:problem:too-many-idempotency-keys", "{problem}");
    };
    let _ = send("ada", "one").await.expect_status(200);
    refused("two").await;
    let known_key_answer = send("ada", "one").await;
    assert_eq!(
        expect_accepted(known_key_answer).status_document_of(&site, "ada").await["state"],
        "done"
    );
    let _ = send("bob", "two").await.expect_status(200);
    // The limit applies to direct and deferred requests. A request without a key runs.
    let hold = site.post_held("/orders/7/pay?tag=hold").await;
    refused("two").await;
    let _ = expect_accepted(send("ada", "one").await);
    let plain = site.post("/few-keys/7?tag=plain").header("x-user", "ada");
    let plain = expect_accepted(plain.send().await);
    let _ = hold.finish().await.expect_status(200);
    wait_for_done_as_ada(&site, &plain).await;
    assert_eq!(case.handler.run_tags(), ["ada-one", "bob-two", "hold", "plain"]);
}

impl JobReceipt {
    async fn status_document_of(&self, site: &TestSite, user: &str) -> serde_json::Value {
        site.get(&self.location).header("x-user", user).send().await.expect_status(200).json()
    }
}
