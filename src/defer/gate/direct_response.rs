//! `DirectResponse`: the response of a direct run, its classification, and the part of it that its
//! record stores.

use bytes::{Bytes, BytesMut};

use super::{defer_layer::DeferLayer, gate_impl::DeferTicket};
use crate::{
    defer::{
        envelope::{
            EnvelopeBinding, HeaderPairs, StoredBodyStatus, StoredResponseHead, encode_response,
        },
        is_event_stream,
        settlement_rules::is_success_status,
        stored_response_headers::stored_response_headers,
    },
    gate::{
        IdempotentRun, ParkingSlot, RequestFingerprint, RequestKind, STOPPED_REASON, ServiceOutcome,
    },
};

/// Reason of a record after a failing status or an incomplete response.
const FAILED_MAY_HAVE_RUN: &str = "failed, may have run";

/// Response of a direct run, collected as it passes.
#[derive(Default)]
pub(super) struct DirectResponse {
    headers: HeaderPairs,
    /// Length of the body, if it is known.
    content_length: Option<u64>,
    /// The body is an event stream, which has no end worth waiting for.
    is_stream: bool,
    /// Status of the response while its body continues.
    streaming_status: Option<u16>,
    body: DirectBody,
}

#[derive(Default)]
enum DirectBody {
    /// The driver reports no body.
    #[default]
    NotRecorded,
    Buffered {
        /// The bytes so far.
        bytes: BytesMut,
        /// Number of further bytes that may be stored.
        remaining: usize,
    },
    TooLong,
}

/// Result of a direct run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DirectRunResult {
    /// The run is complete, with this status.
    Completed(u16),
    /// The request was not executed; a retry runs.
    NotExecuted,
    /// The progress of the run is unknown.
    MayHaveRun(&'static str),
}

/// Data about a direct run besides its response.
#[derive(Debug, Clone, Copy)]
pub(super) struct DirectRunContext {
    /// The handler returned under its lock.
    handler_finished: bool,
    /// The request body was cut off.
    request_truncated: bool,
    /// Status with which a gate inside the lock refused the request.
    gate_refusal_status: Option<u16>,
}

impl DirectRunContext {
    pub(super) fn from_slot(slot: &ParkingSlot) -> Self {
        Self {
            handler_finished: slot.is_answered(),
            request_truncated: slot.is_body_truncated(),
            gate_refusal_status: slot.refusal_status(),
        }
    }
}

/// Classifies a direct run by its response.
///
/// - The handler did not return under its lock: it may have run.
/// - The request body was cut off and the handler failed: the request was not executed as a whole,
///   so a retry runs.
/// - The response is the refusal of a gate inside the lock (a busy lock, an exhausted quota, an
///   unavailable store): no handler ran, so a retry runs. The same status from a handler or another
///   layer proves nothing.
/// - 401 and 403: a retry runs, since it may bring a new token. A deferred run with such a response
///   is dead.
/// - A status that is a success for a deferred run, 409 and 423 included: the run is complete.
/// - 408, 425, 429, 5xx, an error, or an incomplete response body: it may have run.
pub(super) fn classify_direct_run(
    response: Option<&DirectResponse>,
    outcome: ServiceOutcome,
    context: DirectRunContext,
) -> DirectRunResult {
    let DirectRunContext { handler_finished, request_truncated, gate_refusal_status } = context;
    let body_failed = outcome == ServiceOutcome::BodyFailed;
    let streaming_status =
        response.and_then(|response| response.streaming_status).filter(|_| !body_failed);
    match outcome.status().or(streaming_status) {
        _ if !handler_finished => DirectRunResult::MayHaveRun(STOPPED_REASON),
        Some(400..) if request_truncated => DirectRunResult::NotExecuted,
        Some(status) if gate_refusal_status == Some(status) => DirectRunResult::NotExecuted,
        Some(status) => classify_status(status),
        None => DirectRunResult::MayHaveRun(FAILED_MAY_HAVE_RUN),
    }
}

fn classify_status(status: u16) -> DirectRunResult {
    match status {
        401 | 403 => DirectRunResult::NotExecuted,
        status if is_success_status(status) => DirectRunResult::Completed(status),
        _ => DirectRunResult::MayHaveRun(FAILED_MAY_HAVE_RUN),
    }
}

impl DirectResponse {
    /// Starts to record the body, up to `limit` bytes.
    pub(super) fn buffer_body(&mut self, limit: usize) {
        self.body = DirectBody::Buffered { bytes: BytesMut::new(), remaining: limit };
    }

    pub(super) fn record_headers(&mut self, headers: Vec<(String, Vec<u8>)>) {
        let find = |sought: &str| headers.iter().find(|(name, _)| name == sought);
        let length = find("content-length").and_then(|(_, value)| str::from_utf8(value).ok());
        self.content_length = length.and_then(|length| length.parse().ok());
        self.is_stream = find("content-type").is_some_and(|(_, value)| is_event_stream(value));
        self.headers = stored_response_headers(headers, &[]);
    }

    pub(super) fn record_body_chunk(&mut self, chunk: &[u8]) {
        if let DirectBody::Buffered { bytes, remaining } = &mut self.body {
            match remaining.checked_sub(chunk.len()) {
                Some(new_remaining) => {
                    bytes.extend_from_slice(chunk);
                    *remaining = new_remaining;
                }
                None => self.body = DirectBody::TooLong,
            }
        }
    }

    /// Returns true if the outcome is known only at the end of the body: the handler may do its
    /// work there, and fail. A body with a known length counts only if it fits the limit.
    fn completes_with_body(&self) -> bool {
        let is_recorded = match &self.body {
            DirectBody::Buffered { remaining, .. } => {
                self.content_length.is_none_or(|length| length <= *remaining as u64)
            }
            // If the driver reports no body, the end of a body with a length may go unseen.
            DirectBody::NotRecorded | DirectBody::TooLong => self.content_length.is_none(),
        };
        is_recorded && !self.is_stream
    }

    /// Returns headers, body state and body for the record.
    fn into_stored(self, is_complete: bool) -> (HeaderPairs, StoredBodyStatus, Bytes) {
        let (body_status, body) = match self.body {
            DirectBody::NotRecorded => (StoredBodyStatus::RanDirectly, Bytes::new()),
            _ if self.is_stream => (StoredBodyStatus::Stream, Bytes::new()),
            DirectBody::Buffered { bytes, .. } if is_complete => {
                (StoredBodyStatus::Full, bytes.freeze())
            }
            DirectBody::Buffered { .. } | DirectBody::TooLong if self.content_length.is_some() => {
                (StoredBodyStatus::TooLong, Bytes::new())
            }
            DirectBody::Buffered { .. } | DirectBody::TooLong => {
                (StoredBodyStatus::Stream, Bytes::new())
            }
        };
        (self.headers, body_status, body)
    }
}

impl<R: RequestKind> DeferLayer<R> {
    /// Returns true if the ticket stays with the response body, at whose end the outcome is known.
    pub(super) fn completes_with_body(
        &self,
        ticket: &mut DeferTicket,
        outcome: ServiceOutcome,
    ) -> bool {
        let has_run = ticket.slot.has_run();
        let context = DirectRunContext::from_slot(&ticket.slot);
        let Some(details) = ticket.details.as_mut().filter(|_| has_run) else { return false };
        let response = &mut details.direct_response;
        let ServiceOutcome::Streaming(status @ 200..) = outcome else { return false };
        let result = classify_direct_run(Some(response), outcome, context);
        if result == DirectRunResult::Completed(status) && response.completes_with_body() {
            response.streaming_status = Some(status);
            return true;
        }
        false
    }

    /// Completes, ends or deletes the record of a direct run.
    pub(super) async fn complete_record(
        &self,
        run: IdempotentRun,
        fingerprint: Option<RequestFingerprint>,
        (response, outcome): (DirectResponse, ServiceOutcome),
        result: DirectRunResult,
    ) {
        match result {
            DirectRunResult::Completed(status) => {
                let Some((id, lock)) = run.job_and_key() else { return };
                let is_complete = !matches!(outcome, ServiceOutcome::Streaming(_));
                let (headers, body_status, body) = response.into_stored(is_complete);
                let binding = EnvelopeBinding { store: run.store(), id, lock };
                let head = StoredResponseHead { status, headers, body_status };
                let stored = encode_response(binding, &head, &body);
                let fingerprint = fingerprint.and_then(|fingerprint| fingerprint.finished_hex());
                run.record_response(self.0.idempotency.ttl, stored, fingerprint).await;
            }
            DirectRunResult::MayHaveRun(reason) if !run.is_repeatable() => {
                run.record_dead(reason).await;
            }
            DirectRunResult::MayHaveRun(_) | DirectRunResult::NotExecuted => run.forget().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn direct_result_of_status(status: u16, finished: bool, truncated: bool) -> DirectRunResult {
        classify_direct_run(
            None,
            ServiceOutcome::Answered(status),
            DirectRunContext {
                handler_finished: finished,
                request_truncated: truncated,
                gate_refusal_status: None,
            },
        )
    }

    fn direct_result_of_outcome(outcome: ServiceOutcome, truncated: bool) -> DirectRunResult {
        classify_direct_run(
            None,
            outcome,
            DirectRunContext {
                handler_finished: true,
                request_truncated: truncated,
                gate_refusal_status: None,
            },
        )
    }

    #[test]
    fn run_is_classified_by_response_status() {
        use DirectRunResult::{Completed, MayHaveRun, NotExecuted};
        for status in [200, 204, 303, 400, 404, 409, 412, 422, 423] {
            assert_eq!(direct_result_of_status(status, true, false), Completed(status));
        }
        for status in [401, 403] {
            assert_eq!(direct_result_of_status(status, true, false), NotExecuted, "{status}");
        }
        for status in [408, 425, 429, 500, 502, 503, 504] {
            assert_eq!(
                direct_result_of_status(status, true, false),
                MayHaveRun(FAILED_MAY_HAVE_RUN),
                "{status}"
            );
        }
        for outcome in [ServiceOutcome::Failed, ServiceOutcome::BodyFailed] {
            assert_eq!(direct_result_of_outcome(outcome, false), MayHaveRun(FAILED_MAY_HAVE_RUN));
        }
    }

    #[test]
    fn only_a_gate_refusal_means_not_executed() {
        let classify = |status, refusal| {
            let context = DirectRunContext {
                handler_finished: true,
                request_truncated: false,
                gate_refusal_status: refusal,
            };
            classify_direct_run(None, ServiceOutcome::Answered(status), context)
        };
        for status in [409, 423, 429, 503, 418] {
            assert_eq!(classify(status, Some(status)), DirectRunResult::NotExecuted, "{status}");
        }
        // A layer in between changed the status.
        assert_eq!(classify(200, Some(429)), DirectRunResult::Completed(200));
        assert_eq!(classify(503, Some(429)), DirectRunResult::MayHaveRun(FAILED_MAY_HAVE_RUN));
    }

    /// The status does not count, since an intermediate layer may have changed it.
    #[test]
    fn dropped_handler_may_have_run() {
        for status in [200, 408, 429, 500, 503] {
            assert_eq!(
                direct_result_of_status(status, false, false),
                DirectRunResult::MayHaveRun(STOPPED_REASON)
            );
            assert_eq!(
                direct_result_of_status(status, false, true),
                DirectRunResult::MayHaveRun(STOPPED_REASON)
            );
        }
    }

    #[test]
    fn truncated_request_with_error_status_is_not_executed() {
        for status in [400, 408, 413, 500] {
            assert_eq!(
                direct_result_of_status(status, true, true),
                DirectRunResult::NotExecuted,
                "{status}"
            );
        }
        assert_eq!(
            direct_result_of_status(202, true, true),
            DirectRunResult::Completed(202),
            "the handler took it"
        );
        let panicked = direct_result_of_outcome(ServiceOutcome::Failed, true);
        assert_eq!(
            panicked,
            DirectRunResult::MayHaveRun(FAILED_MAY_HAVE_RUN),
            "it has not answered"
        );
    }
}
