//! `BoxedSpan`: a span in 8 bytes.

use tracing::{Span, Value};

/// Span that lives as long as an operation. A disabled one has no box: the futures of requests must
/// stay below 1 KiB, and a `Span` has 40 bytes.
#[derive(Debug, Default)]
pub(crate) struct BoxedSpan(Option<Box<Span>>);

impl BoxedSpan {
    pub(crate) fn new(span: Span) -> Self {
        Self((!span.is_disabled()).then(|| Box::new(span)))
    }

    pub(crate) fn is_enabled(&self) -> bool {
        self.0.is_some()
    }

    /// Records a field that the span was created with.
    pub(crate) fn record(&self, field: &str, value: impl Value) {
        if let Some(span) = &self.0 {
            span.record(field, value);
        }
    }
}
