//! `TracePropagator`: the bridge to a tracing system.

use tracing::Span;

use super::TraceContext;

/// Bridge between the spans of `tracing` and the contexts of a tracing system.
///
/// The crate `lockgate-opentelemetry` implements it for OpenTelemetry. The methods are called for
/// enabled spans only, do not wait, and must not panic: they run within requests and runs.
///
/// ```
/// use lockgate::{Store, TraceContext, TracePropagator};
/// use tracing::Span;
///
/// /// Stores one context, and ignores stored ones.
/// struct FixedContext(TraceContext);
///
/// impl TracePropagator for FixedContext {
///     fn span_context(&self, _: &Span) -> Option<TraceContext> {
///         Some(self.0.clone())
///     }
///     fn add_link(&self, _: &Span, _: &TraceContext) {}
///     fn set_parent(&self, _: &Span, _: &TraceContext) {}
/// }
///
/// let traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
/// let context = TraceContext::new(traceparent, None).expect("it is valid");
/// let store = Store::memory().with_trace_propagator(FixedContext(context));
/// ```
pub trait TracePropagator: Send + Sync + 'static {
    /// Returns the context of a span; `None` if the tracing system does not know the span.
    fn span_context(&self, span: &Span) -> Option<TraceContext>;

    /// Adds a link from a new span to the span with this context.
    fn add_link(&self, span: &Span, context: &TraceContext);

    /// Makes a new span, which was not entered yet, a child of the span with this context.
    fn set_parent(&self, span: &Span, context: &TraceContext);
}
