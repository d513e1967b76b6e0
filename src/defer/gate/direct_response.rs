//! The answer of a request that ran at once and is remembered, and what its record keeps of it.

use bytes::{Bytes, BytesMut};

use super::{defer_gate::DeferGate, gate_impl::DeferTicket};
use crate::{
    defer::{
        envelope::{EnvelopeBinding, StoredBodyStatus, StoredResponseHead, encode_response},
        is_event_stream,
        settlement_rules::is_success_status,
        stored_headers::{HeaderList, stored_response_headers},
    },
    gate::{IdempotentRun, ParkingSlot, RequestFingerprint, STOPPED_REASON, ServiceOutcome},
};

/// The handler said that it failed, or its answer broke off.
const FAILED_MAY_HAVE_RUN: &str = "failed, may have run";

/// An answer, as it is heard.
#[derive(Default)]
pub(super) struct DirectResponse {
    headers: HeaderList,
    /// Of its body, where that is known.
    content_length: Option<u64>,
    /// It has no end worth waiting for.
    is_stream: bool,
    /// Its status, while its body goes on.
    streaming_status: Option<u16>,
    body: DirectBody,
}

#[derive(Default)]
enum DirectBody {
    /// Its driver keeps none.
    #[default]
    NotRecorded,
    /// So far, and how many bytes more are kept.
    Buffered(BytesMut, usize),
    TooLong,
}

/// End of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DirectRunResult {
    /// It has run, with this status.
    Completed(u16),
    /// It came to nothing: a retry runs.
    NotExecuted,
    /// It is unknown how far it came.
    MayHaveRun(&'static str),
}

/// Facts about a run besides its answer.
#[derive(Debug, Clone, Copy)]
pub(super) struct DirectRunContext {
    /// The handler came to its end under its lock.
    handler_finished: bool,
    /// The body of the request was cut off.
    request_truncated: bool,
    /// Status by which a gate within the lock refused the request.
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

/// Decides about a run by its answer.
///
/// - The handler did not come to its end under its lock: it may have run.
/// - The body of the request was cut off, and the handler failed: nobody executed the whole request, so a retry runs.
/// - The answer is the refusal of a gate within the lock (a busy lock, a spent quota, a store that is away): nothing ran,
///   so a retry runs. The same status of a handler, or of another layer, tells no such thing.
/// - 401 and 403: a retry runs, since it may bring a new token. A deferred run with such an answer is dead.
/// - An answer that a deferred run would take for a success is the outcome, 409 and 423 included.
/// - 408, 425, 429, 5xx, an error, a body that broke off: it may have run.
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
    /// The body is heard too: so many bytes of it are kept.
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

    /// True if the body is to be read before the outcome is known: the handler may do its work in it, and fail. Where its
    /// length is known, only if it is kept.
    fn completes_with_body(&self) -> bool {
        let kept = match &self.body {
            DirectBody::Buffered(_, limit) => {
                self.content_length.is_none_or(|length| length <= *limit as u64)
            }
            // A driver that hears nothing may not see the end of what has a length.
            DirectBody::NotRecorded | DirectBody::TooLong => self.content_length.is_none(),
        };
        kept && !self.is_stream
    }

    /// What is stored of it, and how that is told.
    fn into_stored(self, ended: bool) -> (HeaderList, StoredBodyStatus, Bytes) {
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

impl<N: ?Sized> DeferGate<N> {
    /// True if the ticket stays with the body of the answer, at whose end the outcome is known.
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

    /// Ends the record of a run.
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

    fn of(status: u16, answered: bool, cut_off: bool) -> DirectRunResult {
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

    fn of_outcome(outcome: ServiceOutcome, cut_off: bool) -> DirectRunResult {
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
    fn a_run_is_judged_by_its_answer() {
        use DirectRunResult::{Completed, MayHaveRun, NotExecuted};
        for status in [200, 204, 303, 400, 404, 409, 412, 422, 423] {
            assert_eq!(of(status, true, false), Completed(status));
        }
        for status in [401, 403] {
            assert_eq!(of(status, true, false), NotExecuted, "{status}");
        }
        for status in [408, 425, 429, 500, 502, 503, 504] {
            assert_eq!(of(status, true, false), MayHaveRun(FAILED_MAY_HAVE_RUN), "{status}");
        }
        for outcome in [ServiceOutcome::Failed, ServiceOutcome::BodyFailed] {
            assert_eq!(of_outcome(outcome, false), MayHaveRun(FAILED_MAY_HAVE_RUN));
        }
    }

    #[test]
    fn only_the_refusal_of_a_gate_tells_that_nothing_ran() {
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
        // A layer in between answered something else.
        assert_eq!(of(200, Some(429)), DirectRunResult::Completed(200));
        assert_eq!(of(503, Some(429)), DirectRunResult::MayHaveRun(FAILED_MAY_HAVE_RUN));
    }

    /// Whatever a layer in between has made of that.
    #[test]
    fn a_handler_that_was_dropped_may_have_run() {
        for status in [200, 408, 429, 500, 503] {
            assert_eq!(of(status, false, false), DirectRunResult::MayHaveRun(STOPPED_REASON));
            assert_eq!(of(status, false, true), DirectRunResult::MayHaveRun(STOPPED_REASON));
        }
    }

    #[test]
    fn a_request_that_never_came_whole_locks_nobody_out() {
        for status in [400, 408, 413, 500] {
            assert_eq!(of(status, true, true), DirectRunResult::NotExecuted, "{status}");
        }
        assert_eq!(of(202, true, true), DirectRunResult::Completed(202), "the handler took it");
        let panicked = of_outcome(ServiceOutcome::Failed, true);
        assert_eq!(
            panicked,
            DirectRunResult::MayHaveRun(FAILED_MAY_HAVE_RUN),
            "it has not answered"
        );
    }
}
