//! A small order service on actix-web with three routes: one that locks, one that waits for the
//! lock, and one that defers.
//!
//! `LOCKGATE_STORE` is `memory` (default) or the URL of a Redis server. `PORT` is 3000 by default;
//! 0 picks a free port.

mod dead_letters;
mod orders;
#[path = "../../assets/prometheus_exporter.rs"]
mod prometheus_exporter;

use std::{
    env,
    error::Error,
    future::IntoFuture as _,
    net::{SocketAddr, TcpListener},
    panic::AssertUnwindSafe,
    time::Duration,
};

use actix_web::{
    App, HttpResponse, Responder,
    dev::Service as _,
    error::ErrorInternalServerError,
    http::{StatusCode, header::ContentType},
    middleware::from_fn,
    web::{self, Data, PayloadConfig, ServiceConfig},
};
use futures_util::FutureExt as _;
use lockgate_actix_web::{
    DeferLayer, DeferWorker, LocalOperator, LockLayer, Quota, RateLimitLayer, Store,
    admin::Permission, console, deferred_routes, loopback_only, metrics,
};
use metrics_exporter_prometheus::PrometheusHandle;

use self::orders::OrderLog;

/// Timeout of a call to Redis. It is above the default of 250 ms, so that a busy development
/// machine does not count as an outage.
const STORE_CALL_TIMEOUT: Duration = Duration::from_secs(3);

/// Commands to try, for the default port. Each of them makes the lock busy that it needs.
const CURL_LINES: &str = include_str!("../../assets/curl-lines.txt");

const METRICS_CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

#[actix_web::main]
async fn main() -> Result<(), Box<dyn Error>> {
    tracing_subscriber::fmt()
        .with_env_filter(env::var("RUST_LOG").unwrap_or_else(|_| "info".to_owned()))
        .with_writer(std::io::stderr)
        .init();
    // For `rediss://`. The program chooses the crypto provider.
    let _ = rustls::crypto::ring::default_provider().install_default();
    // Before the store: a counter counts from the installation of the recorder on.
    let exporter = Data::new(prometheus_exporter::install()?);
    metrics::describe();
    let store = match env::var("LOCKGATE_STORE").as_deref() {
        Err(_) | Ok("memory") => Store::memory(),
        Ok(url) => Store::builder(url).call_timeout(STORE_CALL_TIMEOUT).connect().await?,
    };
    let port = env::var("PORT").map_or(Ok(3000), |port| port.parse())?;
    let listener = TcpListener::bind(("127.0.0.1", port))?;
    let address = listener.local_addr()?;
    let routes = routes(&store);
    let worker = DeferWorker::new(&store, routes.clone());
    let status = deferred_routes("/deferred").store(&store);
    let ops = console("/ops", LocalOperator::new(Permission::SeePayloads)).store(&store);
    let app = move || {
        let metrics_page = web::resource("/metrics").get(show_metrics).head(show_metrics);
        App::new()
            .wrap_fn(|request, app| catch_panic(app.call(request)))
            .configure(routes.clone())
            .service(status.clone())
            .service(ops.clone())
            .service(web::resource("/").get(index_page).head(index_page))
            .service(web::resource("/healthz").get(health).head(health))
            .service(metrics_page.wrap(from_fn(loopback_only)))
            .app_data(exporter.clone())
    };
    // Until SIGTERM or ctrl-c. They are caught before the address is printed, so that an early one
    // is not lost.
    let server = lockgate_actix_web::serve(listener, app).worker(worker).into_future();
    print_usage(address);
    server.await?;
    Ok(())
}

fn routes(store: &Store) -> impl Fn(&mut ServiceConfig) + Send + Clone + 'static {
    let store = Data::new(store.clone());
    let orders = Data::new(OrderLog::default());
    move |config| {
        // axum's `get` also answers HEAD.
        let limited = web::resource("/limited").get(limited).head(limited).wrap(
            RateLimitLayer::by_ip(Quota::requests(10).per(Duration::from_secs(10)))
                .policy_name("limited"),
        );
        let show = web::resource("/orders/{id}").get(orders::list_events).head(orders::list_events);
        let live = web::resource("/live/{id}").get(orders::show_live).head(orders::show_live);
        let dead = web::resource("/dead").get(dead_letters::list).head(dead_letters::list);
        let redrive = web::resource("/dead/{id}/redrive").post(dead_letters::redrive);
        // The handlers take ids as text. For `Path<u64>` use `by_path_param_as::<u64>("id")`.
        let pay = web::resource("/orders/{id}/pay")
            .post(orders::pay)
            .wrap(LockLayer::by_path_param("id"));
        let ship = web::resource("/orders/{id}/ship")
            .post(orders::ship)
            .wrap(LockLayer::by_path_param("id").wait(Duration::from_secs(5)));
        let refund = web::resource("/orders/{id}/refund")
            .post(orders::refund)
            .wrap(LockLayer::by_path_param("id"))
            .wrap(DeferLayer::new());
        config
            .service(show)
            .service(live)
            .service(dead)
            .service(redrive)
            .service(pay)
            .service(ship)
            .service(refund)
            .service(limited)
            .app_data(PayloadConfig::new(64 * 1024))
            .app_data(store.clone())
            .app_data(orders.clone());
    }
}

async fn limited() -> &'static str {
    "ok"
}

async fn index_page() -> impl Responder {
    HttpResponse::Ok()
        .content_type(ContentType::html())
        .body(include_str!("../../assets/index.html"))
}

async fn health(store: Data<Store>) -> HttpResponse {
    HttpResponse::new(match store.ping().await {
        Ok(()) => StatusCode::OK,
        Err(_) => StatusCode::SERVICE_UNAVAILABLE,
    })
}

/// Metrics in the text format of Prometheus.
async fn show_metrics(store: Data<Store>, exporter: Data<PrometheusHandle>) -> impl Responder {
    metrics::collect(&store).await;
    HttpResponse::Ok().content_type(METRICS_CONTENT_TYPE).body(exporter.render())
}

fn print_usage(address: SocketAddr) {
    println!("listening on http://{address}");
    for line in CURL_LINES.lines() {
        println!("  {}", line.replace("127.0.0.1:3000", &address.to_string()));
    }
}

/// Answers a panic with 500. actix-web would close the connection, and a browser would then send
/// the request again. Runs of the worker do not pass this.
async fn catch_panic<R>(
    call: impl Future<Output = Result<R, actix_web::Error>>,
) -> Result<R, actix_web::Error> {
    AssertUnwindSafe(call)
        .catch_unwind()
        .await
        .unwrap_or_else(|_| Err(ErrorInternalServerError("the handler panicked")))
}
