//! `OpenTelemetryPropagator`: trace context by `tracing-opentelemetry`.

use std::collections::HashMap;

use lockgate::{TraceContext, TracePropagator};
use opentelemetry::{Context, propagation::TextMapPropagator, trace::TraceContextExt as _};
use opentelemetry_sdk::propagation::TraceContextPropagator;
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt as _;

/// Names of the headers, as [`TraceContextPropagator`] reads and writes them.
const TRACEPARENT: &str = "traceparent";
const TRACESTATE: &str = "tracestate";

/// Trace propagator for applications that export their spans by `tracing-opentelemetry`, set by
/// [`Store::with_trace_propagator`](lockgate::Store::with_trace_propagator).
///
/// The format is the W3C Trace Context, whatever the global propagator of `opentelemetry` is: it is
/// the format in the store, which other processes read. Baggage is not stored.
#[derive(Debug, Clone, Copy, Default)]
pub struct OpenTelemetryPropagator;

impl TracePropagator for OpenTelemetryPropagator {
    fn span_context(&self, span: &Span) -> Option<TraceContext> {
        let mut headers = HashMap::<String, String>::new();
        TraceContextPropagator::new().inject_context(&span.context(), &mut headers);
        let tracestate = headers.get(TRACESTATE).map(String::as_str);
        TraceContext::new(headers.get(TRACEPARENT)?, tracestate)
    }

    fn add_link(&self, span: &Span, context: &TraceContext) {
        span.add_link(remote_context(context).span().span_context().clone());
    }

    fn set_parent(&self, span: &Span, context: &TraceContext) {
        // An error means that no OpenTelemetry layer sees this span.
        let _ = span.set_parent(remote_context(context));
    }
}

/// Returns a context whose span is the stored one.
fn remote_context(context: &TraceContext) -> Context {
    let mut headers = HashMap::from([(TRACEPARENT.to_owned(), context.traceparent().to_owned())]);
    if let Some(state) = context.tracestate() {
        headers.insert(TRACESTATE.to_owned(), state.to_owned());
    }
    TraceContextPropagator::new().extract_with_context(&Context::new(), &headers)
}

#[cfg(test)]
mod tests {
    use opentelemetry::trace::TracerProvider as _;
    use opentelemetry_sdk::trace::{InMemorySpanExporter, SdkTracerProvider, SpanData};
    use tracing_subscriber::layer::SubscriberExt as _;

    use super::*;

    /// Returns the spans that `emit` has finished.
    fn exported_spans(emit: impl FnOnce()) -> Vec<SpanData> {
        let exporter = InMemorySpanExporter::default();
        let provider = SdkTracerProvider::builder().with_simple_exporter(exporter.clone()).build();
        let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("test"));
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), emit);
        exporter.get_finished_spans().expect("they are in memory")
    }

    fn stored_context() -> TraceContext {
        let traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        TraceContext::new(traceparent, Some("vendor=1")).expect("it is valid")
    }

    #[test]
    fn child_of_a_stored_context_has_its_trace_and_state() {
        let spans = exported_spans(|| {
            let span = tracing::info_span!("run");
            OpenTelemetryPropagator.set_parent(&span, &stored_context());
            let context = OpenTelemetryPropagator.span_context(&span).expect("it has one");
            assert_eq!(context.tracestate(), Some("vendor=1"));
            assert_eq!(context.traceparent()[..36], stored_context().traceparent()[..36]);
        });
        assert_eq!(spans.len(), 1);
        assert_eq!(spans[0].parent_span_id.to_string(), "b7ad6b7169203331");
    }

    #[test]
    fn linked_span_is_a_trace_of_its_own() {
        let spans = exported_spans(|| {
            let span = tracing::info_span!("run");
            // An accepting span is compared with its client's trace before it is linked to it.
            assert!(OpenTelemetryPropagator.span_context(&span).is_some());
            OpenTelemetryPropagator.add_link(&span, &stored_context());
        });
        let link = &spans[0].links.links[0].span_context;
        assert_eq!(link.trace_id().to_string(), "0af7651916cd43dd8448eb211c80319c");
        assert_eq!(link.span_id().to_string(), "b7ad6b7169203331");
        assert_ne!(spans[0].span_context.trace_id(), link.trace_id());
    }

    #[test]
    fn span_that_no_layer_sees_has_no_context() {
        assert!(OpenTelemetryPropagator.span_context(&Span::none()).is_none());
    }
}
