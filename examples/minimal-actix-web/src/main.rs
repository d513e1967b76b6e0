//! All three layers on actix-web, with a worker and an orderly shutdown.
//!
//! `tests/minimal_examples.rs` runs this program; its build script replaces the store's URL, the
//! address and the body of `refund`.

use std::{net::TcpListener, time::Duration};

use actix_web::{App, web};
use lockgate_actix_web::{
    DeferLayer, DeferWorker, LockLayer, Quota, RateLimitLayer, Store, deferred_routes,
};

/// The routes and all their data, for the server and for the worker.
///
/// The worker does not have the `app_data` of the server's `App`, so the state of the handlers is
/// registered here.
fn orders(store: &Store) -> impl Fn(&mut web::ServiceConfig) + Clone + Send + 'static {
    let store = web::Data::new(store.clone()); // one store for all layers
    move |config| {
        config
            .app_data(store.clone())
            .service(
                web::resource("/orders/{id}/pay")
                    .wrap(LockLayer::by_path_param_as::<u64>("id")) // 409 while it is locked
                    .route(web::post().to(pay)),
            )
            .service(
                web::resource("/orders/{id}/refund")
                    .wrap(LockLayer::by_path_param_as::<u64>("id"))
                    .wrap(DeferLayer::new()) // 202 instead of 409
                    .route(web::post().to(refund)),
            );
    }
}

#[actix_web::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    tracing_subscriber::fmt::init(); // lockgate logs wiring faults, with their fix
    let store = Store::connect("redis://127.0.0.1/").await?; // or Store::memory()

    let orders = orders(&store);
    let worker = DeferWorker::new(&store, orders.clone());
    let limit = RateLimitLayer::by_ip(Quota::requests(100).per(Duration::from_secs(60)));
    let app = move || {
        App::new()
            .wrap(limit.clone()) // one layer for all threads
            .configure(orders.clone())
            .service(deferred_routes("/deferred")) // status of deferred requests
    };

    let listener = TcpListener::bind("127.0.0.1:3000")?;
    // Until SIGTERM or ctrl-c. Then open requests and active runs have 10 s to end.
    lockgate_actix_web::serve(listener, app).worker(worker).await?;
    Ok(())
}

async fn pay() -> &'static str {
    "paid"
}

async fn refund() -> &'static str {
    "refunded"
}
