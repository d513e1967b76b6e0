//! `StoreTracePropagator`: the trace propagator of a store handle.

use std::sync::Arc;

use parking_lot::RwLock;
use tracing::Span;

use super::Store;
use crate::trace::{TraceContext, TracePropagator, TraceRelation};

/// Trace propagator of a store handle and its clones.
#[derive(Default)]
struct StoreTracePropagator(RwLock<Option<Arc<dyn TracePropagator>>>);

impl Store {
    /// Sets the trace propagator of this handle and all of its clones. It stores the context of the
    /// accepting span with each deferred request and each task, and relates the span of a run to
    /// it: see [`TraceRelation`]. A second call replaces the propagator from then on.
    ///
    /// Default: none. Spans are created all the same, and a client's `traceparent` is stored with
    /// its request like other headers.
    ///
    /// The context of a deferred request is stored among its headers, where it replaces the
    /// client's `traceparent` and `tracestate`, and is sealed with them. If the client's context is
    /// of another trace, the accepting span gets a link to it. The context of a task is stored
    /// beside its payload, and is not sealed.
    #[must_use]
    pub fn with_trace_propagator(self, propagator: impl TracePropagator) -> Self {
        *self.extension::<StoreTracePropagator>().0.write() = Some(Arc::new(propagator));
        self
    }

    fn trace_propagator(&self) -> Option<Arc<dyn TracePropagator>> {
        self.extension::<StoreTracePropagator>().0.read().clone()
    }

    /// Returns the context of a span, for storage with what it accepts. `None` if the span is
    /// disabled, or the store has no propagator.
    pub(crate) fn trace_context(&self, span: &Span) -> Option<TraceContext> {
        let is_enabled = !span.is_disabled();
        is_enabled.then(|| self.trace_propagator())??.span_context(span)
    }

    /// Replaces a client's context in the headers of a request by that of the accepting span. If
    /// the span does not continue the client's trace, it gets a link to it.
    pub(crate) fn write_trace_context(&self, span: &Span, headers: &mut Vec<(String, Vec<u8>)>) {
        let Some(context) = self.trace_context(span) else { return };
        if let Some(propagator) = self.trace_propagator()
            && let Some(client) = TraceContext::from_headers(headers)
            && client.trace_id() != context.trace_id()
        {
            propagator.add_link(span, &client);
        }
        context.write_to(headers);
    }

    /// Relates the span of a run to the stored context. `context` is called only if it is needed.
    pub(crate) fn relate_run_span(
        &self,
        span: &Span,
        relation: TraceRelation,
        context: impl FnOnce() -> Option<TraceContext>,
    ) {
        if span.is_disabled() {
            return;
        }
        if let Some(propagator) = self.trace_propagator()
            && let Some(context) = context()
        {
            match relation {
                TraceRelation::Link => propagator.add_link(span, &context),
                TraceRelation::Parent => propagator.set_parent(span, &context),
            }
        }
    }
}
