//! Span of the acceptance of a request as a job.

use tracing::{Span, field::Empty};

use super::gate_impl::DeferCandidate;
use crate::{gate::BusyLockContext, reply::Reply, store::JobId};

/// Creates the span in which a request is stored as a job. Runs are related to it.
pub(super) fn accept_span(candidate: &DeferCandidate, id: &JobId) -> Span {
    let DeferCandidate { parked: BusyLockContext { store, key, .. }, label, .. } = candidate;
    tracing::info_span!(
        "lockgate.defer.accept",
        otel.kind = "producer",
        otel.status_code = Empty,
        http.request.method = label.method(),
        http.route = label.route(),
        http.response.status_code = Empty,
        messaging.system = "lockgate",
        messaging.operation.name = "accept",
        messaging.operation.type = "send",
        messaging.destination.name = %store.log_name(key),
        messaging.message.id = id.log_prefix(),
        lock = %store.log_name(key),
        job = id.log_prefix(),
    )
}

/// Records the status of the reply; none if the busy response of the lock stands.
pub(super) fn record_accept_reply(span: &Span, reply: Option<&Reply>) {
    if let Some(Reply { status, .. }) = reply {
        span.record("http.response.status_code", status);
        if *status >= 500 {
            span.record("otel.status_code", "ERROR");
        }
    }
}
