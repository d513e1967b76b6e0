//! `RecordingPropagator`: a trace propagator for tests.

use std::sync::Arc;

use parking_lot::Mutex;
use tracing::Span;

use super::{TraceContext, TracePropagator, TraceRelation};

/// Propagator that gives each span the same context, and records the spans that it relates.
#[derive(Clone, Default)]
pub(crate) struct RecordingPropagator(Arc<Mutex<Vec<RelatedSpan>>>);

/// Name of a span, and its relation to a stored context.
pub(crate) type RelatedSpan = (&'static str, TraceRelation, TraceContext);

impl RecordingPropagator {
    pub(crate) fn context() -> TraceContext {
        let traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        TraceContext::new(traceparent, Some("vendor=1")).expect("it is valid")
    }

    pub(crate) fn related_spans(&self) -> Vec<RelatedSpan> {
        self.0.lock().clone()
    }

    fn record(&self, span: &Span, relation: TraceRelation, context: &TraceContext) {
        let name = span.metadata().expect("it is enabled").name();
        self.0.lock().push((name, relation, context.clone()));
    }
}

impl TracePropagator for RecordingPropagator {
    fn span_context(&self, _: &Span) -> Option<TraceContext> {
        Some(Self::context())
    }

    fn add_link(&self, span: &Span, context: &TraceContext) {
        self.record(span, TraceRelation::Link, context);
    }

    fn set_parent(&self, span: &Span, context: &TraceContext) {
        self.record(span, TraceRelation::Parent, context);
    }
}
