//! Applications that are configured wrongly: their requests are refused and never pass.

use lockgate_tests::{TestCase, TestResponse};

use super::{expect_accepted, lock::expect_busy};

/// Expects a 500 that reveals no detail.
#[track_caller]
pub(super) fn expect_server_error(answer: TestResponse) {
    let answer = answer.expect_status(500);
    super::assert_no_token(&answer, "");
    let problem = answer.problem_document();
    let members: Vec<_> = problem.as_object().expect("a document").keys().collect();
    assert_eq!(members, ["status", "title", "type"], "{problem}");
    let title = problem["title"].as_str().unwrap_or_default();
    let internal_words = ["redis", "store", "layer", "axum", "actix", "param", "wait"];
    let title = title.to_lowercase();
    assert!(!internal_words.iter().any(|internal_word| title.contains(internal_word)), "{title}");
}

pub(crate) async fn missing_store_is_server_error(case: TestCase) {
    let site = case.site_builder().await.without_worker().without_request_store().start().await;
    expect_server_error(site.post("/orders/7/pay").send().await);
    expect_server_error(site.post("/orders/7/refund").send().await);
    expect_server_error(site.get("/quota/three").send().await);
    expect_server_error(site.get("/deferred/00112233445566778899aabbccddeeff00").send().await);
    let _ = site.get("/orders/7/pay").send().await.expect_status(200);
    let _ = site.post("/nothing").send().await.expect_status(404);
    assert_eq!(case.handler.completed_runs().len(), 1, "only the request without a store has run");
}

pub(crate) async fn unknown_path_parameter_is_server_error(case: TestCase) {
    let site = case.start_site().await;
    expect_server_error(site.post("/wrong/7").send().await);
    assert_eq!(case.handler.completed_runs().len(), 0);
}

/// A lock on the prefix's value would leave the handler's order without a lock.
pub(crate) async fn duplicate_path_parameter_is_server_error(case: TestCase) {
    let site = case.start_site().await;
    let operations = ["pay", "pay-number", "later", "to/8", "of/8", "quota"];
    for operation in operations {
        for tenant in [3, 7] {
            let target = format!("/tenants/{tenant}/orders/7/{operation}");
            expect_server_error(site.post(&target).body("note").send().await);
        }
    }
    expect_server_error(site.post("/hosted/3/orders/7/pay").send().await);
    expect_server_error(site.post("/around-tenants/3/orders/7").send().await);
    assert_eq!(case.handler.completed_runs().len(), 0);
    // A name that occurs once is valid, and so are the same routes under a prefix of another name.
    let held = site.post_held("/orders/7/pay").await;
    expect_busy(site.post("/tenants/3/orders/8/other/7").send().await);
    for operation in &operations[..2] {
        expect_busy(site.post(&format!("/shops/3/orders/7/{operation}")).send().await);
        let _ =
            site.post(&format!("/shops/7/orders/8/{operation}")).send().await.expect_status(200);
    }
    let _ = held.finish().await.expect_status(200);
}

pub(crate) async fn defer_layer_inside_lock_layer_is_server_error(case: TestCase) {
    let site = case.start_site().await;
    for target in ["/inverted/7", "/inverted-whole/7", "/between-locks/7"] {
        expect_server_error(site.post(target).body("note").send().await);
        assert_eq!(case.handler.completed_runs().len(), 0);
        // The lock of the outer layer is released.
        let _ = site.post("/orders/7/pay").send().await.expect_status(200);
        case.handler.clear_runs();
    }
}

/// This nesting is the supported one, with any setting of the lock.
pub(crate) async fn defer_layer_outside_lock_layer_works(case: TestCase) {
    let site = case.start_site().await;
    let hold = site.post_held("/orders/7/pay").await;
    let jobs = ["/orders/7/refund", "/whole-refund/7", "/brief-refund/7", "/slow-refund/7"];
    let mut accepted_jobs = Vec::new();
    for target in jobs {
        accepted_jobs.push(expect_accepted(site.post(target).body("note").send().await));
    }
    let _ = hold.finish().await.expect_status(200);
    for job in accepted_jobs {
        assert_eq!(job.wait_until_done(&site).await["body"], "note");
    }
}
