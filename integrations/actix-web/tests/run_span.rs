//! The span of a run around a handler in the thread of the routes, and the headers of the run. The
//! subscriber is that of the process, so this is the only test here.

use actix_web::{
    App, HttpRequest,
    body::to_bytes,
    dev::Service as _,
    test,
    web::{self, ServiceConfig},
};
use lockgate_actix_web::{
    DeferLayer, DeferWorker, Key, LockLayer, TraceContext, TracePropagator, deferred_routes,
    testing::TestKit,
};
use tracing::Span;

const CLIENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
const ACCEPTED: &str = "00-0af7651916cd43dd8448eb211c80319c-00f067aa0ba902b7-01";

/// Gives every span the same context.
struct FixedContext;

impl TracePropagator for FixedContext {
    fn span_context(&self, _: &Span) -> Option<TraceContext> {
        TraceContext::new(ACCEPTED, None)
    }

    fn add_link(&self, _: &Span, _: &TraceContext) {}

    fn set_parent(&self, _: &Span, _: &TraceContext) {}
}

/// Answers with the names of the current span and the trace headers.
async fn describe_trace(request: HttpRequest) -> String {
    let span = Span::current().metadata().map_or("none", |metadata| metadata.name());
    let header = |name| {
        let value = request.headers().get(name).map(|value| value.to_str().expect("text"));
        value.unwrap_or("none")
    };
    format!("{span} {} {}", header("traceparent"), header("tracestate"))
}

fn routes(config: &mut ServiceConfig) {
    let refund = web::resource("/orders/{id}/refund")
        .post(describe_trace)
        .wrap(LockLayer::by_path_param("id"))
        .wrap(DeferLayer::new());
    config.service(refund);
}

#[actix_web::test]
async fn handler_runs_in_the_span_of_its_run_and_has_the_context_of_the_acceptance() {
    tracing_subscriber::fmt().with_test_writer().init();
    let kit = TestKit::new();
    let store = kit.store().clone().with_trace_propagator(FixedContext);
    let app = App::new()
        .configure(routes)
        .service(deferred_routes("/deferred"))
        .app_data(web::Data::new(store.clone()));
    let app = test::init_service(app).await;
    let mut worker =
        kit.defer_worker(DeferWorker::new(&store, routes)).await.expect("an embedded store");

    let guard = kit.hold_lock(Key::path_param("id", "7")).await.expect("it is free");
    let refund = test::TestRequest::post()
        .uri("/orders/7/refund")
        .insert_header(("traceparent", CLIENT))
        .insert_header(("tracestate", "client=1"));
    let accepted = app.call(refund.to_request()).await.expect("an answer");
    assert_eq!(accepted.status(), 202);
    let location = accepted.headers().get("location").expect("one").to_str().expect("a path");
    drop(guard);
    assert_eq!(worker.run_due().await.expect("it is there").len(), 1);
    let response = test::TestRequest::get().uri(&format!("{location}/response"));
    let response = app.call(response.to_request()).await.expect("an answer");
    let body = to_bytes(response.into_body()).await.expect("short");
    assert_eq!(body, format!("lockgate.defer.run {ACCEPTED} none"));
}
