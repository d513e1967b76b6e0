//! Traces of deferred requests, on axum with `tracing-opentelemetry`.
//!
//! Each finished span is one line on the standard output; replace `LineExporter` by an OTLP
//! exporter to send spans to a collector. `ROLE=web` only accepts requests, `ROLE=worker` also runs
//! them. Run both on one Redis, and the run in the second process is linked to the request of the
//! first:
//!
//! ```sh
//! ROLE=web LISTEN=127.0.0.1:3000 cargo run -p example-observability
//! ROLE=worker LISTEN=127.0.0.1:3001 cargo run -p example-observability
//! ```

mod line_exporter;
mod request_span;

use std::{env, error::Error};

use axum::{Extension, Router, middleware, routing::post};
use lockgate_axum::{DeferLayer, DeferWorker, LockLayer, Store, deferred_routes};
use lockgate_opentelemetry::OpenTelemetryPropagator;
use opentelemetry::trace::TracerProvider as _;
use opentelemetry_sdk::trace::SdkTracerProvider;
use tracing_subscriber::{Layer as _, filter::LevelFilter, layer::SubscriberExt as _};

use self::{line_exporter::LineExporter, request_span::trace_request};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let role = env::var("ROLE").unwrap_or_else(|_| "worker".to_owned());
    let provider = SdkTracerProvider::builder().with_simple_exporter(LineExporter).build();
    let spans = tracing_opentelemetry::layer()
        .with_location(false)
        .with_threads(false)
        .with_target(false)
        .with_tracked_inactivity(false)
        .with_tracer(provider.tracer("shop"))
        .with_filter(LevelFilter::INFO);
    tracing::subscriber::set_global_default(tracing_subscriber::registry().with(spans))?;

    let url = env::var("LOCKGATE_STORE").unwrap_or_else(|_| "redis://127.0.0.1/".to_owned());
    let store = Store::connect(&url).await?.with_trace_propagator(OpenTelemetryPropagator);
    let routes = Router::new()
        .route("/orders/{id}/refund", post(refund))
        .layer(LockLayer::by_path_param_as::<u64>("id"))
        .layer(DeferLayer::new())
        .layer(Extension(store.clone()));
    // Runs have a span of their own, so the worker gets the routes without the requests' span.
    let app = routes.clone().layer(middleware::from_fn(trace_request));
    let app = app.merge(deferred_routes("/deferred").store(&store));

    let listen = env::var("LISTEN").unwrap_or_else(|_| "127.0.0.1:3000".to_owned());
    let serving = lockgate_axum::serve(tokio::net::TcpListener::bind(listen).await?, app);
    match role.as_str() {
        "web" => serving.await?,
        _ => serving.worker(DeferWorker::new(&store, routes)).await?,
    }
    provider.shutdown()?;
    Ok(())
}

/// Runs within the span of the run, or of the request if the order was free.
async fn refund() -> &'static str {
    tracing::info_span!("refund").in_scope(|| "refunded")
}
