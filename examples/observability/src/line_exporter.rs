//! `LineExporter`: prints finished spans.

use opentelemetry::trace::SpanId;
use opentelemetry_sdk::{
    error::OTelSdkResult,
    trace::{SpanData, SpanExporter},
};

/// Exporter that prints each finished span as one line on the standard output.
#[derive(Debug)]
pub(crate) struct LineExporter;

impl SpanExporter for LineExporter {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        batch.iter().for_each(|span| println!("{}", span_line(span)));
        Ok(())
    }
}

/// Returns `<name> <kind> trace=.. span=..`, then the parent and links if there are any, then the
/// attributes.
fn span_line(span: &SpanData) -> String {
    let kind = format!("{:?}", span.span_kind).to_lowercase();
    let context = &span.span_context;
    let mut line =
        format!("{} {kind} trace={} span={}", span.name, context.trace_id(), context.span_id());
    if span.parent_span_id != SpanId::INVALID {
        line.push_str(&format!(" parent={}", span.parent_span_id));
    }
    for link in span.links.iter() {
        let linked = &link.span_context;
        line.push_str(&format!(" link={}/{}", linked.trace_id(), linked.span_id()));
    }
    for attribute in &span.attributes {
        line.push_str(&format!(" {}={}", attribute.key, attribute.value));
    }
    line
}
