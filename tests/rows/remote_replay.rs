//! A worker whose requests run in another process, and its settings.

use std::{net::SocketAddr, time::Duration};

use axum::{Router, http::StatusCode, response::IntoResponse as _, routing::any};
use lockgate::{JobId, SharedSecret, http_replay::HttpReplayer};
use lockgate_tests::{TestCase, TestSite, WebFramework};
use tokio::{net::TcpListener, sync::oneshot, task::JoinHandle};

use super::expect_accepted;

const MAX_RETRY_AFTER: Duration = Duration::from_secs(5);

/// Starts the remote application. `/orders/{id}/refund` answers with `?letters` bytes, or with 500
/// and `Retry-After: 3600`.
async fn start_remote_app() -> SocketAddr {
    let refund = any(async |request: axum::extract::Request| {
        match request.uri().query().and_then(|query| query.strip_prefix("letters=")) {
            Some(letters) => "x".repeat(letters.parse().expect("a number")).into_response(),
            None => (StatusCode::INTERNAL_SERVER_ERROR, [("retry-after", "3600")]).into_response(),
        }
    });
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("it is bound");
    let routes = Router::new().route("/orders/{id}/refund", refund);
    tokio::spawn(async { axum::serve(listener, routes).await });
    address
}

/// Starts a worker of the case's framework. It stops when the sender is dropped.
fn start_remote_worker(
    case: &TestCase,
    site: &TestSite,
    remote_addr: SocketAddr,
) -> (oneshot::Sender<()>, JoinHandle<()>) {
    let (stop, stopped) = oneshot::channel::<()>();
    let stopped = async {
        let _ = stopped.await;
    };
    let store = site.store();
    let replayer =
        HttpReplayer::new(store, &format!("http://{remote_addr}"), &SharedSecret::new([7; 32]));
    let ended = match case.framework {
        WebFramework::Axum => {
            let worker = lockgate_axum::DeferWorker::with_replayer(store, replayer);
            tokio::spawn(worker.max_retry_after(MAX_RETRY_AFTER).response_limit(4).run(stopped))
        }
        WebFramework::Actix => {
            let worker = lockgate_actix_web::DeferWorker::with_replayer(store, replayer);
            tokio::spawn(worker.max_retry_after(MAX_RETRY_AFTER).response_limit(4).run(stopped))
        }
    };
    (stop, ended)
}

/// The worker's limit decides how much of the response is stored.
pub(crate) async fn remote_run_stores_response_up_to_limit(case: TestCase) {
    let (site, remote_addr) =
        (case.site_builder().await.without_worker().start().await, start_remote_app().await);
    let (stop, ended) = start_remote_worker(&case, &site, remote_addr);
    let hold = site.post_held("/orders/7/pay").await;
    let within_limit = expect_accepted(site.post("/orders/7/refund?letters=4").send().await);
    let over_limit = expect_accepted(site.post("/orders/7/refund?letters=5").send().await);
    let _ = hold.finish().await.expect_status(200);
    for (job, stored) in [(&within_limit, "body"), (&over_limit, "too long")] {
        let document = job.wait_for_final_status(&site).await;
        let response = &document["response"];
        assert_eq!((&document["state"], &response["status"]), (&"done".into(), &200.into()));
        assert_eq!(response["stored"], stored, "{document}");
    }
    let answer =
        site.get(&format!("{}/response", within_limit.location)).send().await.expect_status(200);
    assert_eq!(answer.body, "xxxx");
    assert_eq!(case.handler.completed_runs().len(), 1, "here the other one alone has run");
    drop(stop);
    ended.await.expect("it ends well");
}

/// The backoff adds at most one second.
pub(crate) async fn retry_after_of_handler_is_capped(case: TestCase) {
    let (site, remote_addr) =
        (case.site_builder().await.without_worker().start().await, start_remote_app().await);
    let (stop, ended) = start_remote_worker(&case, &site, remote_addr);
    let hold = site.post_held("/orders/7/pay").await;
    let job = expect_accepted(site.put("/orders/7/refund").send().await);
    let _ = hold.finish().await.expect_status(200);
    let document = job.wait_for_status(&site, |document| document["reason"] == "failed").await;
    assert_eq!((&document["state"], &document["attempts"]), (&"queued".into(), &1.into()));
    let id = job.id.parse::<JobId>().expect("an id");
    let info =
        site.store().deferred_jobs().get(&id).await.expect("it is there").expect("it is stored");
    let due = info.due_in.expect("it waits");
    assert!(due <= MAX_RETRY_AFTER + Duration::from_secs(1), "not an hour: {due:?}");
    let _ = site.delete(&job.location).send().await.expect_status(204);
    drop(stop);
    ended.await.expect("it ends well");
}
