//! Span of a run of a task.

use tracing::{Instrument as _, Span, field::Empty};

use super::{queue_worker::QueueWorker, task::TaskAttemptInfo, task_run::TaskRunResult};
use crate::trace::TraceContext;

impl QueueWorker {
    /// Creates the span of a run, related to the span that pushed the task. It is no child of the
    /// worker's span, which would be as long as the process lives.
    pub(super) fn run_span(&self, info: &TaskAttemptInfo, trace: Option<TraceContext>) -> Span {
        let span = tracing::info_span!(
            parent: None,
            "lockgate.task.run",
            otel.kind = "consumer",
            otel.status_code = Empty,
            messaging.system = "lockgate",
            messaging.operation.name = "run",
            messaging.operation.type = "process",
            messaging.destination.name = %self.log_name(),
            messaging.message.id = info.id.log_prefix(),
            queue = %self.log_name(),
            task = info.id.log_prefix(),
            attempt = info.attempt,
            fault = Empty,
        );
        self.store.relate_run_span(&span, self.trace_relation, || trace);
        span
    }
}

/// Runs a task in its span, which ends with the run.
pub(super) async fn run_in_span(
    span: Span,
    run: impl Future<Output = TaskRunResult>,
) -> TaskRunResult {
    let result = run.instrument(span.clone()).await;
    if let Err((fault, _)) = &result {
        span.record("otel.status_code", "ERROR");
        span.record("fault", tracing::field::display(fault));
    }
    result
}
