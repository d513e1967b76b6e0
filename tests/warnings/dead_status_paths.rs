//! A server finds at its start that the `Location` of deferred requests is 404.

use std::{
    future::{IntoFuture as _, pending},
    net::SocketAddr,
    sync::{Arc, LazyLock},
    time::Duration,
};

use lockgate::{Quota, Store};
use lockgate_tests::eventually;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    sync::Notify,
};

use crate::PROCESS_LOG;

const DEAD_PATH_ERROR: &str = "the status of deferred requests is 404";
const UNKNOWN_JOB: &str = "/api/deferred/0123456789abcdef0123456789abcdef01";

/// One request an hour: a check of the server would use it up.
fn quota() -> Quota {
    Quota::requests(1).per(Duration::from_secs(3600))
}

fn count_errors() -> usize {
    PROCESS_LOG.count_lines("ERROR lockgate", DEAD_PATH_ERROR)
}

async fn get_status(addr: SocketAddr, path: &str) -> String {
    let mut stream = TcpStream::connect(addr).await.expect("it listens");
    let head = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).await.expect("it reads");
    let mut response = String::new();
    stream.read_to_string(&mut response).await.expect("a response");
    response.split(' ').nth(1).expect("a status").to_owned()
}

/// Waits until the application has got a request, and checks the quota of its client.
async fn check_served_application(addr: SocketAddr, probed: &Notify) {
    probed.notified().await;
    assert_eq!(get_status(addr, UNKNOWN_JOB).await, "404", "the check is not charged");
    assert_eq!(get_status(addr, UNKNOWN_JOB).await, "429");
}

fn axum_app(status_path: &str, probed: &Arc<Notify>) -> axum::Router {
    use axum::{Router, extract::Request, middleware, routing::post};
    use lockgate_axum::{DeferLayer, LockLayer, RateLimitLayer, deferred_routes};
    let (store, probed) = (Store::memory(), Arc::clone(probed));
    Router::new()
        .route("/api/orders/{id}/refund", post(async || "refunded"))
        .layer(LockLayer::by_path_param("id").store(&store))
        .layer(DeferLayer::new().status_path(status_path))
        .nest("/api", deferred_routes("/deferred").store(&store).into())
        .layer(RateLimitLayer::by_ip(quota()).store(&store))
        .layer(middleware::from_fn(move |request: Request, next: middleware::Next| {
            let probed = Arc::clone(&probed);
            async move {
                let response = next.run(request).await;
                probed.notify_one();
                response
            }
        }))
}

#[tokio::test]
async fn axum_server_reports_status_routes_under_an_unknown_prefix() {
    LazyLock::force(&PROCESS_LOG);
    // The second one is that of a proxy.
    for (path, errors) in [("/api/deferred", 0), ("/public/api/deferred", 0), ("/deferred", 1)] {
        let probed = Arc::new(Notify::new());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let addr = listener.local_addr().expect("it is bound");
        let server = lockgate_axum::serve(listener, axum_app(path, &probed));
        let server = tokio::spawn(server.with_shutdown(pending()).into_future());
        check_served_application(addr, &probed).await;
        eventually("the error", async || count_errors() >= errors).await;
        assert_eq!(count_errors(), errors, "{path}");
        server.abort();
        drop(server.await);
    }
    assert_eq!(PROCESS_LOG.count_lines(DEAD_PATH_ERROR, "path=\"/deferred\""), 1);
}

#[actix_web::test]
async fn actix_server_reports_status_routes_under_an_unknown_prefix() {
    use actix_web::{App, dev::Service as _, web};
    use lockgate_actix_web::{DeferLayer, LockLayer, RateLimitLayer, deferred_routes};
    LazyLock::force(&PROCESS_LOG);
    for (path, errors) in [("/api/deferred", 0), ("/public/api/deferred", 0), ("/deferred", 1)] {
        let (store, probed) = (Store::memory(), Arc::new(Notify::new()));
        let was_probed = Arc::clone(&probed);
        let app = move || {
            let probed = Arc::clone(&was_probed);
            let refund = web::resource("/orders/{id}/refund")
                .post(async || "refunded")
                .wrap(LockLayer::by_path_param("id").store(&store))
                .wrap(DeferLayer::new().status_path(path));
            let status_routes = deferred_routes("/deferred").store(&store);
            App::new()
                .service(web::scope("/api").service(refund).service(status_routes))
                .wrap(RateLimitLayer::by_ip(quota()).store(&store))
                .wrap_fn(move |request, service| {
                    let (response, probed) = (service.call(request), Arc::clone(&probed));
                    async move {
                        let response = response.await;
                        probed.notify_one();
                        response
                    }
                })
        };
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        let addr = listener.local_addr().expect("it is bound");
        let server = lockgate_actix_web::serve(listener, app)
            .http_server(|server| Ok(server.workers(1)))
            .with_shutdown(pending());
        let server = actix_web::rt::spawn(server.into_future());
        check_served_application(addr, &probed).await;
        eventually("the error", async || count_errors() >= errors).await;
        assert_eq!(count_errors(), errors, "{path}");
        server.abort();
        drop(server.await);
    }
    assert_eq!(PROCESS_LOG.count_lines(DEAD_PATH_ERROR, "path=\"/deferred\""), 1);
}
