//! Span of each request, a child of the span that the client names in `traceparent`.

use std::collections::HashMap;

use axum::{
    extract::{MatchedPath, Request},
    http::HeaderMap,
    middleware::Next,
    response::Response,
};
use opentelemetry::{Context, propagation::TextMapPropagator as _};
use opentelemetry_sdk::propagation::TraceContextPropagator;
use tracing::{Instrument as _, field::Empty};
use tracing_opentelemetry::OpenTelemetrySpanExt as _;

pub(crate) async fn trace_request(request: Request, next: Next) -> Response {
    let route = request.extensions().get::<MatchedPath>().map_or("", MatchedPath::as_str);
    let span = tracing::info_span!(
        "request",
        otel.kind = "server",
        http.request.method = request.method().as_str(),
        http.route = route,
        http.response.status_code = Empty,
    );
    // Without a valid header, the span begins a trace.
    let _ = span.set_parent(client_context(request.headers()));
    let response = next.run(request).instrument(span.clone()).await;
    span.record("http.response.status_code", response.status().as_u16());
    response
}

fn client_context(headers: &HeaderMap) -> Context {
    let text = |value: &axum::http::HeaderValue| value.to_str().unwrap_or_default().to_owned();
    let headers: HashMap<String, String> =
        headers.iter().map(|(name, value)| (name.to_string(), text(value))).collect();
    TraceContextPropagator::new().extract_with_context(&Context::new(), &headers)
}
