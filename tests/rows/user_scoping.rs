//! Users of one layer, distinguished by the snapshot that their requests carry.

use std::panic::catch_unwind;

use lockgate_tests::{TestCase, TestRequest, TestSite};
use serde_json::Value;

use super::{
    JobReceipt, expect_accepted, lock::expect_busy, misconfiguration::expect_server_error,
};

/// Authenticates a request. `token` is the user, a dot and the number of the token.
fn authorize(token: &str, request: TestRequest) -> TestRequest {
    request.header("authorization", &format!("Bearer {token}"))
}

fn keyed_post(site: &TestSite, path: &str, token: &str) -> TestRequest {
    authorize(token, site.post(path)).header("idempotency-key", "k")
}

/// Returns the state of a job as its owner sees it. The other user gets 404.
async fn job_state_for(site: &TestSite, job: &JobReceipt, user: &str) -> Value {
    let other = if user == "ada" { "bob" } else { "ada" };
    let _ = site
        .get(&job.location)
        .header("x-user", other)
        .send()
        .await
        .expect_status(404)
        .problem_document();
    let seen = site.get(&job.location).header("x-user", user).send().await.expect_status(200);
    seen.json()["state"].clone()
}

pub(crate) async fn idempotency_keys_are_scoped_by_user(case: TestCase) {
    let site = case.site_builder().await.without_worker().start().await;
    let hold = site.post_held("/orders/7/pay").await;
    let sent = async |token| {
        expect_accepted(keyed_post(&site, "/named/7", token).body("note").send().await)
    };
    let (ada, bob) = (sent("ada.1").await, sent("bob.1").await);
    assert_ne!(ada.id, bob.id);
    for token in ["ada.1", "ada.2"] {
        assert_eq!(sent(token).await.id, ada.id, "{token}: both tokens are of one user");
    }
    assert_eq!(job_state_for(&site, &ada, "ada").await, "queued");
    assert_eq!(job_state_for(&site, &bob, "bob").await, "queued");
    let other = keyed_post(&site, "/named/7", "bob.2").body("other");
    let _ = other.send().await.expect_status(422).problem_document();
    let _ = hold.finish().await.expect_status(200);
}

pub(crate) async fn direct_runs_are_scoped_by_user(case: TestCase) {
    let (site, other) = (case.start_site().await, case.start_site().await);
    for token in ["ada.1", "bob.1"] {
        let _ = keyed_post(&site, "/named/7?tag=ran", token).send().await.expect_status(200);
    }
    assert_eq!(case.handler.run_tags(), ["ran", "ran"], "one for each user");
    for user in ["ada", "bob"] {
        let again = keyed_post(&other, "/named/7?tag=ran", &format!("{user}.2"));
        let job = expect_accepted(again.send().await);
        assert_eq!(job_state_for(&other, &job, user).await, "done");
    }
    assert_eq!(case.handler.run_tags().len(), 2);
}

/// By the layer, the worker and the status routes with one type: no function names the user again.
pub(crate) async fn user_is_carried_and_sees_own_jobs_alone(case: TestCase) {
    let site = case.start_site().await;
    let hold = site.post_held("/orders/7/pay").await;
    let job = expect_accepted(authorize("ada.1", site.post("/for-user/7")).send().await);
    assert!(job.location.starts_with("/own/"), "{}", job.location);
    let response = format!("{}/response", job.location);
    let expect_hidden = async || {
        for path in [&job.location, &response] {
            let anonymous = site.get(path).send().await.expect_status(404);
            let _ = anonymous.problem_document();
            let _ = authorize("bob.1", site.get(path)).send().await.expect_status(404);
        }
    };
    expect_hidden().await;
    let own = |path: &str| authorize("ada.2", site.get(path)).send();
    assert_eq!(own(&job.location).await.expect_status(200).json()["state"], "queued");
    let _ = hold.finish().await.expect_status(200);
    let answer = authorize("ada.2", site.get(&response)).header("prefer", "wait=10").send().await;
    assert_eq!(answer.expect_status(200).json()["user"], "ada.1");
    assert_eq!(own(&job.location).await.expect_status(200).json()["state"], "done");
    expect_hidden().await;
}

pub(crate) async fn first_wins_is_scoped_by_user(case: TestCase) {
    let site = case.site_builder().await.without_worker().start().await;
    let hold = site.post_held("/orders/7/pay").await;
    let put =
        async |token| expect_accepted(authorize(token, site.put("/named-first/7")).send().await);
    let (ada, bob) = (put("ada.1").await, put("bob.1").await);
    assert_ne!(ada.id, bob.id);
    assert_eq!(put("ada.2").await.id, ada.id);
    assert_eq!(put("bob.2").await.id, bob.id);
    let _ = hold.finish().await.expect_status(200);
}

pub(crate) async fn last_wins_is_scoped_by_user(case: TestCase) {
    let site = case.site_builder().await.without_worker().start().await;
    let hold = site.post_held("/orders/7/pay").await;
    let put =
        async |token| expect_accepted(authorize(token, site.put("/named-last/7")).send().await);
    let (ada, bob) = (put("ada.1").await, put("bob.1").await);
    assert_eq!(job_state_for(&site, &ada, "ada").await, "queued");
    let last = put("ada.2").await;
    assert_eq!(job_state_for(&site, &ada, "ada").await, "cancelled");
    assert_eq!(job_state_for(&site, &last, "ada").await, "queued");
    assert_eq!(job_state_for(&site, &bob, "bob").await, "queued");
    let _ = hold.finish().await.expect_status(200);
}

/// The key is refused: a shared key would leak, and an ignored one would allow a second run.
pub(crate) async fn key_without_owner_scope_is_misconfiguration(case: TestCase) {
    let site = case.start_site().await;
    expect_server_error(keyed_post(&site, "/carried/7", "ada.1").send().await);
    // The authentication did not identify the user, as if it lay inside the layer.
    let post_unidentified = |path: &str| site.post(path).header("cookie", "a=b");
    for path in ["/carried/7", "/named/7"] {
        expect_server_error(post_unidentified(path).header("idempotency-key", "k").send().await);
    }
    assert_eq!(case.handler.completed_runs().len(), 0);
    // A request without a key shares nothing; one without a user or a credential has no owner.
    let _ = post_unidentified("/named/7").send().await.expect_status(200);
    let hold = site.post_held("/orders/7/pay").await;
    let _ = expect_accepted(authorize("ada.1", site.post("/carried/7")).send().await);
    let post_without_owner = || site.post("/carried/7").header("idempotency-key", "k").send();
    assert_eq!(
        expect_accepted(post_without_owner().await).id,
        expect_accepted(post_without_owner().await).id
    );
    expect_busy(post_unidentified("/named/7").send().await);
    let _ = hold.finish().await.expect_status(200);
}

/// A retained credential shows that the request has an owner, but does not identify it.
pub(crate) async fn kept_credentials_share_neither_keys_nor_merges(case: TestCase) {
    let site = case.site_builder().await.without_worker().start().await;
    let of_client = |request: TestRequest, client| request.header("x-api-key", client);
    for path in ["/named-or-key/7", "/carried-or-key/7"] {
        for client in ["a", "b"] {
            let request = of_client(site.post(path), client).header("idempotency-key", "k");
            expect_server_error(request.send().await);
        }
    }
    assert_eq!(case.handler.completed_runs().len(), 0);
    let hold = site.post_held("/orders/7/pay").await;
    for path in ["/named-or-key/7", "/carried-or-key/7"] {
        let put = async |client| expect_accepted(of_client(site.put(path), client).send().await).id;
        let (first, second) = (put("a").await, put("b").await);
        assert_ne!(first, second, "{path}");
        let retried = put("a").await;
        assert!(
            retried != first && retried != second,
            "{path}: requests without a user are not merged"
        );
    }
    // An identified user has scoped keys and merges, whichever API key the request carries.
    let path = "/named-or-key/7";
    let job_id_of = async |token, client| {
        expect_accepted(of_client(keyed_post(&site, path, token), client).send().await).id
    };
    let (ada, bob) = (job_id_of("ada.1", "a").await, job_id_of("bob.1", "a").await);
    assert_ne!(ada, bob);
    assert_eq!(job_id_of("ada.2", "b").await, ada);
    let put = async |token| {
        expect_accepted(of_client(authorize(token, site.put(path)), "a").send().await).id
    };
    assert_eq!(put("ada.1").await, put("ada.2").await);
    let _ = hold.finish().await.expect_status(200);
}

pub(crate) async fn shared_scope_shares_keys_and_merges(case: TestCase) {
    let site = case.site_builder().await.without_worker().start().await;
    let path = "/carried-by-all/7";
    let hold = site.post_held("/orders/7/pay").await;
    let put = async |token| expect_accepted(authorize(token, site.put(path)).send().await);
    assert_eq!(put("ada.1").await.id, put("bob.1").await.id);
    let post = async |token| expect_accepted(keyed_post(&site, path, token).send().await);
    assert_eq!(post("ada.1").await.id, post("bob.1").await.id);
    let _ = hold.finish().await.expect_status(200);
}

pub(crate) async fn merge_layer_without_owner_scope_is_rejected(case: TestCase) {
    let panic =
        catch_unwind(|| case.framework.build_unscoped_merge_layer()).expect_err("it is refused");
    let text = panic.downcast_ref::<String>().expect("a sentence");
    assert!(text.starts_with("DeferLayer::coalesce: "), "{text}");
}
