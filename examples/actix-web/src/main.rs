//! A small order service on actix-web with three routes: one that locks, one that waits for the
//! lock, and one that defers.
//!
//! `LOCKGATE_STORE` is `memory` (default) or the URL of a Redis server. `PORT` is 3000 by default;
//! 0 picks a free port.

mod orders;

use std::{
    env,
    error::Error,
    net::{SocketAddr, TcpListener},
    pin::pin,
    time::Duration,
};

use actix_web::{
    App, HttpResponse, HttpServer, Responder,
    dev::Service as _,
    error::ErrorServiceUnavailable,
    http::{StatusCode, header::ContentType},
    web::{self, Data, PayloadConfig, ServiceConfig},
};
use lockgate_actix_web::{
    DeferLayer, DeferWorker, LockLayer, Quota, RateLimitLayer, Store, deferred_routes,
};
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::watch,
};

use self::orders::OrderLog;

/// Time that active requests and jobs have to finish after SIGTERM.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

/// Timeout of a call to Redis. It is above the default of 250 ms, so that a busy development
/// machine does not count as an outage.
const STORE_CALL_TIMEOUT: Duration = Duration::from_secs(3);

#[actix_web::main]
async fn main() -> Result<(), Box<dyn Error>> {
    tracing_subscriber::fmt()
        .with_env_filter(env::var("RUST_LOG").unwrap_or_else(|_| "info".to_owned()))
        .with_writer(std::io::stderr)
        .init();
    // For `rediss://`. The program chooses the crypto provider.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let store = match env::var("LOCKGATE_STORE").as_deref() {
        Err(_) | Ok("memory") => Store::memory(),
        Ok(url) => Store::builder(url).call_timeout(STORE_CALL_TIMEOUT).connect().await?,
    };
    let port = env::var("PORT").map_or(Ok(3000), |port| port.parse())?;
    let listener = TcpListener::bind(("127.0.0.1", port))?;
    // Installs the signal handlers before the address is printed, so that an early signal is not
    // lost.
    let termination = listen_for_termination()?;
    print_usage(listener.local_addr()?);

    let ((stop, stop_signal), (cut, cut_signal)) = (watch::channel(false), watch::channel(false));
    let routes = routes(&store);
    let worker = actix_web::rt::spawn(
        DeferWorker::new(&store, routes.clone())
            .drain_timeout(DRAIN_TIMEOUT)
            .run(wait_for_stop(stop_signal)),
    );
    let status = deferred_routes("/deferred").store(&store);
    let server = HttpServer::new(move || {
        let cut_signal = cut_signal.clone();
        App::new()
            .wrap_fn(move |request, app| {
                let (response, cut) = (app.call(request), wait_for_stop(cut_signal.clone()));
                async {
                    tokio::select! {
                        response = response => response,
                        () = cut => Err(ErrorServiceUnavailable("")),
                    }
                }
            })
            .configure(routes.clone())
            .service(status.clone())
            .service(web::resource("/").get(index_page).head(index_page))
            .service(web::resource("/healthz").get(health).head(health))
    })
    // Releases the locks of clients that disconnect.
    .h1_allow_half_closed(false)
    // Longer than the timeout below, after which active requests are dropped.
    .shutdown_timeout(2 * DRAIN_TIMEOUT.as_secs())
    .disable_signals()
    .listen(listener)?
    .run();
    let handle = server.handle();
    actix_web::rt::spawn(server);

    termination.await;
    // The worker stops claiming and the server stops accepting. Active requests may finish.
    stop.send_replace(true);
    let mut drained = pin!(async {
        handle.pause().await;
        // Remembered requests of disconnected clients run on the server's threads and end with the
        // server.
        store.wait_for_direct_runs(DRAIN_TIMEOUT).await;
        tokio::join!(handle.stop(true), worker)
    });
    if tokio::time::timeout(DRAIN_TIMEOUT + Duration::from_secs(3), &mut drained).await.is_err() {
        // Drops active requests, so that their locks are released. Otherwise the locks stay held
        // until their leases expire.
        cut.send_replace(true);
        let _ = tokio::time::timeout(Duration::from_secs(1), drained).await;
    }
    store.shutdown(Duration::from_secs(1)).await;
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

fn print_usage(address: SocketAddr) {
    println!("listening on http://{address}");
    println!("  curl -i http://{address}/limited");
    println!("  curl -i -X POST 'http://{address}/orders/7/pay?ms=2000'");
    println!("  curl -i -X POST 'http://{address}/orders/7/ship?ms=100'");
    println!("  curl -i -X POST 'http://{address}/orders/7/refund' -d 'too late'");
    println!("  curl -s http://{address}/orders/7");
}

async fn wait_for_stop(mut stop_signal: watch::Receiver<bool>) {
    // The channel fails only if `main` has ended, which also means stop.
    let _ = stop_signal.wait_for(|stop| *stop).await;
}

/// Starts to listen for signals at once. The returned future resolves at the first one.
fn listen_for_termination() -> std::io::Result<impl Future<Output = ()>> {
    let (mut term, mut int) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    Ok(async move {
        tokio::select! {
            _ = term.recv() => {}
            _ = int.recv() => {}
        }
    })
}
