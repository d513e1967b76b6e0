//! Actions of the operators' console on deferred requests that run, are delayed or are dead.

use std::time::Duration;

use axum::{
    Extension, Router,
    body::{Body, to_bytes},
    routing::post,
};
use http::Request;
use lockgate::Store;
use lockgate_axum::{DeferLayer, LockLayer};
use lockgate_tests::eventually;
use tower::ServiceExt as _;

use crate::{
    console_page::ConsolePage,
    demo_page::{DemoPage, ORDER},
};

pub(crate) async fn running_request_is_cancelled(page: &DemoPage, _: &Store) {
    let console = ConsolePage::open(page).await;
    let (id, _running) = console.defer(&format!("/orders/{ORDER}/refund?ms=60000"), "").await;
    console.wait_for_state(&id, "running").await;
    console.go_to(&format!("jobs?id={id}")).await;
    console.act("Cancel").await;
    page.wait_for_text("#notice", "The request is cancelled.").await;
    console.wait_for_state(&id, "cancelled").await;
    console.expect_record("cancel-job", &id).await;
}

pub(crate) async fn delayed_request_is_run_now(page: &DemoPage, store: &Store) {
    let console = ConsolePage::open(page).await;
    let id = defer_for_long(store).await;
    console.go_to("jobs?state=delayed").await;
    console.wait_for(&id[..10]).await;
    console.go_to(&format!("jobs?id={id}")).await;
    console.act("Run now").await;
    page.wait_for_text("#notice", "The request runs as soon as its lock is free.").await;
    console.wait_for_state(&id, "done").await;
    console.expect_record("run-job-now", &id).await;
}

/// On a busy machine the answer may say that the action goes on, so only its effect counts.
pub(crate) async fn dead_requests_are_redriven_and_purged_together(page: &DemoPage, _: &Store) {
    let console = ConsolePage::open(page).await;
    let mut ids = Vec::new();
    for _ in 0..2 {
        // It fails in its first run only.
        let (id, _running) = console.defer_refund("fails=1", "").await;
        console.wait_for_state(&id, "dead").await;
        ids.push(id);
    }
    console.go_to("jobs?state=dead").await;
    console.act_with("Redrive all", &[("pace", "100")]).await;
    for id in &ids {
        console.wait_for_state(id, "done").await;
    }
    console.expect_record("redrive-dead-jobs", "deferred requests").await;

    let (id, _running) = console.defer_refund("panic=1", "").await;
    console.wait_for_state(&id, "dead").await;
    console.go_to("jobs?state=dead").await;
    console.act_with("Purge all", &[("hours", "0")]).await;
    eventually("the request to be gone", async || {
        page.demo.get(&format!("/deferred/{id}")).send().await.status == 410
    })
    .await;
    console.expect_record("purge-dead-jobs", "deferred requests").await;
}

/// Defers a refund for ten minutes at a route of this process. Returns its id.
async fn defer_for_long(store: &Store) -> String {
    let delayed = DeferLayer::new().background().delay(Duration::from_secs(600));
    let service = Router::new()
        .route("/orders/{id}/refund", post(async || "ok"))
        .layer(LockLayer::by_path_param("id"))
        .layer(delayed)
        .layer(Extension(store.clone()));
    let target = format!("/orders/{ORDER}/refund?ms=0");
    let request = Request::post(target).body(Body::empty()).expect("it is valid");
    let Ok(response) = service.oneshot(request).await;
    assert_eq!(response.status(), 202);
    let body = to_bytes(response.into_body(), 64 * 1024).await.expect("a body");
    let accepted: serde_json::Value = serde_json::from_slice(&body).expect("JSON");
    accepted["id"].as_str().expect("an id").to_owned()
}
