//! Response of a direct run, and the part of it that its record stores.

use bytes::{Bytes, BytesMut};

use super::{defer_layer::DeferLayer, gate_impl::DeferTicket};
use crate::{
    defer::{
        envelope::{EnvelopeBinding, StoredBodyStatus, StoredResponseHead, encode_response},
        is_event_stream,
        settlement_rules::is_success_status,
        stored_headers::{HeaderPairs, stored_response_headers},
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
    /// The bytes so far, and the number of further bytes that may be stored.
    Buffered(BytesMut, usize),
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

/// Facts about a direct run besides its response.
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
        let (answered, cut_off) = (slot.is_answered(), slot.is_body_truncated());
        Self {
            handler_finished: answered,
            request_truncated: cut_off,
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
    answer: Option<&DirectResponse>,
    outcome: ServiceOutcome,
    facts: DirectRunContext,
) -> DirectRunResult {
    let DirectRunContext {
        handler_finished: answered,
        request_truncated: cut_off,
        gate_refusal_status: refusal,
    } = facts;
    let broke_off = outcome == ServiceOutcome::BodyFailed;
    let head = answer.and_then(|answer| answer.streaming_status).filter(|_| !broke_off);
    match outcome.status().or(head) {
        _ if !answered => DirectRunResult::MayHaveRun(STOPPED_REASON),
        Some(400..) if cut_off => DirectRunResult::NotExecuted,
        Some(status) if refusal == Some(status) => DirectRunResult::NotExecuted,
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
        self.body = DirectBody::Buffered(BytesMut::new(), limit);
    }

    pub(super) fn record_headers(&mut self, fields: Vec<(String, Vec<u8>)>) {
        let field = |sought: &str| fields.iter().find(|(name, _)| name == sought);
        let length = field("content-length").and_then(|(_, value)| str::from_utf8(value).ok());
        self.content_length = length.and_then(|length| length.parse().ok());
        self.is_stream = field("content-type").is_some_and(|(_, value)| is_event_stream(value));
        self.headers = stored_response_headers(fields, &[]);
    }

    pub(super) fn record_body_chunk(&mut self, chunk: &[u8]) {
        if let DirectBody::Buffered(kept, left) = &mut self.body {
            match left.checked_sub(chunk.len()) {
                Some(rest) => {
                    kept.extend_from_slice(chunk);
                    *left = rest;
                }
                None => self.body = DirectBody::TooLong,
            }
        }
    }

    /// Returns true if the outcome is known only at the end of the body: the handler may do its
    /// work there, and fail. A body with a known length counts only if it fits the limit.
    fn completes_with_body(&self) -> bool {
        let kept = match &self.body {
            DirectBody::Buffered(_, limit) => {
                self.content_length.is_none_or(|length| length <= *limit as u64)
            }
            // If the driver reports no body, the end of a body with a length may go unseen.
            DirectBody::NotRecorded | DirectBody::TooLong => self.content_length.is_none(),
        };
        kept && !self.is_stream
    }

    /// Returns headers, body state and body for the record. `ended` is true if the body is
    /// complete.
    fn into_stored(self, ended: bool) -> (HeaderPairs, StoredBodyStatus, Bytes) {
        let (stored, body) = match self.body {
            DirectBody::NotRecorded => (StoredBodyStatus::RanDirectly, Bytes::new()),
            _ if self.is_stream => (StoredBodyStatus::Stream, Bytes::new()),
            DirectBody::Buffered(body, _) if ended => (StoredBodyStatus::Full, body.freeze()),
            DirectBody::Buffered(..) | DirectBody::TooLong if self.content_length.is_some() => {
                (StoredBodyStatus::TooLong, Bytes::new())
            }
            DirectBody::Buffered(..) | DirectBody::TooLong => {
                (StoredBodyStatus::Stream, Bytes::new())
            }
        };
        (self.headers, stored, body)
    }
}

impl<R: RequestKind> DeferLayer<R> {
    /// Returns true if the ticket stays with the response body, at whose end the outcome is known.
    pub(super) fn completes_with_body(
        &self,
        ticket: &mut DeferTicket,
        outcome: ServiceOutcome,
    ) -> bool {
        let (begun, facts) = (ticket.slot.has_run(), DirectRunContext::from_slot(&ticket.slot));
        let Some(more) = ticket.details.as_mut().filter(|_| begun) else { return false };
        let answer = &mut more.direct_response;
        let ServiceOutcome::Streaming(status @ 200..) = outcome else { return false };
        let ran =
            classify_direct_run(Some(answer), outcome, facts) == DirectRunResult::Completed(status);
        if ran && answer.completes_with_body() {
            answer.streaming_status = Some(status);
            return true;
        }
        false
    }

    /// Completes, ends or deletes the record of a direct run.
    pub(super) async fn complete_record(
        &self,
        begun: IdempotentRun,
        print: Option<RequestFingerprint>,
        (answer, outcome): (DirectResponse, ServiceOutcome),
        verdict: DirectRunResult,
    ) {
        match verdict {
            DirectRunResult::Completed(status) => {
                let Some((id, lock)) = begun.job_and_key() else { return };
                let ended = !matches!(outcome, ServiceOutcome::Streaming(_));
                let (headers, stored, body) = answer.into_stored(ended);
                let at = EnvelopeBinding { store: begun.store(), id, lock };
                let response = encode_response(
                    at,
                    &StoredResponseHead { status, headers, body_status: stored },
                    &body,
                );
                let print = print.and_then(|print| print.finished_hex());
                begun.record_response(self.0.idempotency.ttl, response, print).await;
            }
            DirectRunResult::MayHaveRun(reason) if !begun.is_repeatable() => {
                begun.record_dead(reason).await;
            }
            DirectRunResult::MayHaveRun(_) | DirectRunResult::NotExecuted => begun.forget().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn direct_result_of_status(status: u16, answered: bool, cut_off: bool) -> DirectRunResult {
        classify_direct_run(
            None,
            ServiceOutcome::Answered(status),
            DirectRunContext {
                handler_finished: answered,
                request_truncated: cut_off,
                gate_refusal_status: None,
            },
        )
    }

    fn direct_result_of_outcome(outcome: ServiceOutcome, cut_off: bool) -> DirectRunResult {
        classify_direct_run(
            None,
            outcome,
            DirectRunContext {
                handler_finished: true,
                request_truncated: cut_off,
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
        let of = |status, refusal| {
            let facts = DirectRunContext {
                handler_finished: true,
                request_truncated: false,
                gate_refusal_status: refusal,
            };
            classify_direct_run(None, ServiceOutcome::Answered(status), facts)
        };
        for status in [409, 423, 429, 503, 418] {
            assert_eq!(of(status, Some(status)), DirectRunResult::NotExecuted, "{status}");
        }
        // A layer in between changed the status.
        assert_eq!(of(200, Some(429)), DirectRunResult::Completed(200));
        assert_eq!(of(503, Some(429)), DirectRunResult::MayHaveRun(FAILED_MAY_HAVE_RUN));
    }

    /// Any status, since a layer in between may have changed it.
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
