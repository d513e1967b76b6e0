//! All three layers on actix-web, with a worker and an orderly shutdown.
//!
//! `tests/minimal_examples.rs` runs this program; its build script replaces the store's URL, the
//! address and the body of `refund`.

use std::time::Duration;

use actix_web::{
    App, HttpServer,
    rt::signal::{
        ctrl_c,
        unix::{SignalKind, signal},
    },
    web,
};
use lockgate_actix_web::{
    DeferLayer, DeferWorker, LockLayer, Quota, RateLimitLayer, Store, deferred_routes,
};

/// The routes, for the server and for the worker.
///
/// Register the state of the handlers here too, with `config.app_data(..)`: the worker does not
/// have the `app_data` of the server's `App`.
fn orders(config: &mut web::ServiceConfig) {
    config
        .service(
            web::resource("/orders/{id}/pay")
                .wrap(LockLayer::by_path_param_as::<u64>("id")) // 409 while the order is locked
                .route(web::post().to(pay)),
        )
        .service(
            web::resource("/orders/{id}/refund")
                .wrap(LockLayer::by_path_param_as::<u64>("id"))
                .wrap(DeferLayer::new()) // 202 instead of 409
                .route(web::post().to(refund)),
        );
}

#[actix_web::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let store = Store::connect("redis://127.0.0.1/").await?; // or Store::memory()

    let worker = DeferWorker::new(&store, orders);
    let worker = actix_web::rt::spawn(worker.run(shutdown()));

    let limit = RateLimitLayer::by_ip(Quota::requests(100).per(Duration::from_secs(60)));
    let app_store = store.clone();
    HttpServer::new(move || {
        App::new()
            .app_data(web::Data::new(app_store.clone())) // one store for all layers
            .wrap(limit.clone()) // one layer for all threads
            .configure(orders)
            .service(deferred_routes("/deferred").store(&app_store)) // status of deferred requests
    })
    .h1_allow_half_closed(false) // a client that disconnects releases its lock at once
    .shutdown_signal(shutdown())
    .bind("127.0.0.1:3000")?
    .run()
    .await?;
    worker.await?; // waits for active runs, 10 s by default
    store.shutdown(Duration::from_secs(1)).await; // releases the remaining locks
    Ok(())
}

async fn pay() -> &'static str {
    "paid"
}

async fn refund() -> &'static str {
    "refunded"
}

async fn shutdown() {
    let mut terminate = signal(SignalKind::terminate()).expect("a runtime with signals enabled");
    tokio::select! {
        _ = terminate.recv() => {}
        _ = ctrl_c() => {}
    }
}
