//! Span of a run of a job.

use tracing::{Span, field::Empty};

use super::{claim_and_settle::StartedRun, envelope::StoredRequest, job_chain::JobChain};
use crate::{store::Settlement, trace::TraceContext};

impl JobChain {
    /// Creates the span of a run, related to the span that accepted the request. It is no child of
    /// the worker's span, which would be as long as the process lives.
    pub(super) fn run_span(&self, started: &StartedRun, request: Option<&StoredRequest>) -> Span {
        let StartedRun { run, label, .. } = started;
        let store = &self.worker.store;
        let span = tracing::info_span!(
            parent: None,
            "lockgate.defer.run",
            otel.kind = "consumer",
            otel.status_code = Empty,
            http.request.method = label.method(),
            http.route = label.route(),
            messaging.system = "lockgate",
            messaging.operation.name = "run",
            messaging.operation.type = "process",
            messaging.destination.name = %store.log_name(&self.key),
            messaging.message.id = run.id.log_prefix(),
            lock = %store.log_name(&self.key),
            job = run.id.log_prefix(),
            attempt = run.attempt,
            fence = run.fence,
            outcome = Empty,
        );
        let context = || TraceContext::from_headers(&request?.head.headers);
        store.relate_run_span(&span, self.worker.trace_relation, context);
        span
    }
}

/// Records the outcome of a run, as its log record has it. A run that is only left to another
/// worker has not failed.
pub(super) fn record_outcome(span: &Span, settlement: &Settlement, outcome: &'static str) {
    let has_failed = match settlement {
        Settlement::Dead { .. } | Settlement::Retry { .. } => true,
        Settlement::WebhookSettled { response, .. } => response.is_none(),
        Settlement::Done { .. }
        | Settlement::Cancelled { .. }
        | Settlement::Postpone { .. }
        | Settlement::ReturnToQueue { .. } => false,
    };
    span.record("outcome", outcome);
    if has_failed {
        span.record("otel.status_code", "ERROR");
    }
}

/// Records that the run has lost its lock: its result does not count.
pub(super) fn record_lost_lock(span: &Span) {
    span.record("outcome", "lock lost");
    span.record("otel.status_code", "ERROR");
}
