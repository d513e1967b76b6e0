//! The answer of a request that ran at once and is remembered, and what its record keeps of it.

use bytes::{Bytes, BytesMut};

use super::{passage::DeferTicket, settings::DeferGate};
use crate::{
    defer::{
        envelope::{At, Stored, StoredHead, write_response},
        headers::{Headers, of_response},
        is_stream,
        judge::is_success,
    },
    gate::{Begun, Outcome, Print, STOPPED, Slot},
};

/// The handler said that it failed, or its answer broke off.
const FAILED: &str = "failed, may have run";

/// An answer, as it is heard.
#[derive(Default)]
pub(super) struct DirectAnswer {
    headers: Headers,
    /// Of its body, where that is known.
    length: Option<u64>,
    /// It has no end worth waiting for.
    is_stream: bool,
    /// Its status, while its body goes on.
    head: Option<u16>,
    body: Body,
}

#[derive(Default)]
enum Body {
    /// Its driver keeps none.
    #[default]
    Unheard,
    /// So far, and how many bytes more are kept.
    Heard(BytesMut, usize),
    TooLong,
}

/// End of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DirectVerdict {
    /// It has run, with this status.
    Ran(u16),
    /// It came to nothing: a retry runs.
    CameToNothing,
    /// It is unknown how far it came.
    MayHaveRun(&'static str),
}

/// Facts about a run besides its answer.
#[derive(Debug, Clone, Copy)]
pub(super) struct RunFacts {
    /// The handler came to its end under its lock.
    answered: bool,
    /// The body of the request was cut off.
    cut_off: bool,
    /// Status by which a gate within the lock refused the request.
    refusal: Option<u16>,
}

impl RunFacts {
    pub(super) fn of(slot: &Slot) -> Self {
        let (answered, cut_off) = (slot.was_answered(), slot.is_cut_off());
        Self { answered, cut_off, refusal: slot.refusal() }
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
pub(super) fn verdict(
    answer: Option<&DirectAnswer>,
    outcome: Outcome,
    facts: RunFacts,
) -> DirectVerdict {
    let RunFacts { answered, cut_off, refusal } = facts;
    let broke_off = outcome == Outcome::BrokeOff;
    let head = answer.and_then(|answer| answer.head).filter(|_| !broke_off);
    match outcome.status().or(head) {
        _ if !answered => DirectVerdict::MayHaveRun(STOPPED),
        Some(400..) if cut_off => DirectVerdict::CameToNothing,
        Some(status) if refusal == Some(status) => DirectVerdict::CameToNothing,
        Some(status) => by_status(status),
        None => DirectVerdict::MayHaveRun(FAILED),
    }
}

fn by_status(status: u16) -> DirectVerdict {
    match status {
        401 | 403 => DirectVerdict::CameToNothing,
        status if is_success(status) => DirectVerdict::Ran(status),
        _ => DirectVerdict::MayHaveRun(FAILED),
    }
}

impl DirectAnswer {
    /// The body is heard too: so many bytes of it are kept.
    pub(super) fn collect(&mut self, limit: usize) {
        self.body = Body::Heard(BytesMut::new(), limit);
    }

    pub(super) fn hear(&mut self, fields: Vec<(String, Vec<u8>)>) {
        let field = |sought: &str| fields.iter().find(|(name, _)| name == sought);
        let length = field("content-length").and_then(|(_, value)| str::from_utf8(value).ok());
        self.length = length.and_then(|length| length.parse().ok());
        self.is_stream = field("content-type").is_some_and(|(_, value)| is_stream(value));
        self.headers = of_response(fields, &[]);
    }

    pub(super) fn hear_body(&mut self, chunk: &[u8]) {
        if let Body::Heard(kept, left) = &mut self.body {
            match left.checked_sub(chunk.len()) {
                Some(rest) => {
                    kept.extend_from_slice(chunk);
                    *left = rest;
                }
                None => self.body = Body::TooLong,
            }
        }
    }

    /// True if the body is to be read before the outcome is known: the handler may do its work in it, and fail. Where its
    /// length is known, only if it is kept.
    fn ends_with_body(&self) -> bool {
        let kept = match &self.body {
            Body::Heard(_, limit) => self.length.is_none_or(|length| length <= *limit as u64),
            // A driver that hears nothing may not see the end of what has a length.
            Body::Unheard | Body::TooLong => self.length.is_none(),
        };
        kept && !self.is_stream
    }

    /// What is stored of it, and how that is told.
    fn kept(self, ended: bool) -> (Headers, Stored, Bytes) {
        let (stored, body) = match self.body {
            Body::Unheard => (Stored::RanAtOnce, Bytes::new()),
            _ if self.is_stream => (Stored::Stream, Bytes::new()),
            Body::Heard(body, _) if ended => (Stored::Body, body.freeze()),
            Body::Heard(..) | Body::TooLong if self.length.is_some() => {
                (Stored::TooLong, Bytes::new())
            }
            Body::Heard(..) | Body::TooLong => (Stored::Stream, Bytes::new()),
        };
        (self.headers, stored, body)
    }
}

impl<N: ?Sized> DeferGate<N> {
    /// True if the ticket stays with the body of the answer, at whose end the outcome is known.
    pub(super) fn ends_with_body(&self, ticket: &mut DeferTicket, outcome: Outcome) -> bool {
        let (begun, facts) = (ticket.slot.has_begun(), RunFacts::of(&ticket.slot));
        let Some(more) = ticket.more.as_mut().filter(|_| begun) else { return false };
        let answer = &mut more.answer;
        let Outcome::Streams(status @ 200..) = outcome else { return false };
        let ran = verdict(Some(answer), outcome, facts) == DirectVerdict::Ran(status);
        if ran && answer.ends_with_body() {
            answer.head = Some(status);
            return true;
        }
        false
    }

    /// Ends the record of a run.
    pub(super) async fn end(
        &self,
        begun: Begun,
        print: Option<Print>,
        (answer, outcome): (DirectAnswer, Outcome),
        verdict: DirectVerdict,
    ) {
        match verdict {
            DirectVerdict::Ran(status) => {
                let Some((id, lock)) = begun.is() else { return };
                let ended = !matches!(outcome, Outcome::Streams(_));
                let (headers, stored, body) = answer.kept(ended);
                let at = At { store: begun.store(), id, lock };
                let response = write_response(at, &StoredHead { status, headers, stored }, &body);
                let print = print.and_then(|print| print.taken());
                begun.keep(self.0.keys.life, response, print).await;
            }
            DirectVerdict::MayHaveRun(reason) if !begun.may_run_again() => {
                begun.bury(reason).await;
            }
            DirectVerdict::MayHaveRun(_) | DirectVerdict::CameToNothing => begun.forget().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(status: u16, answered: bool, cut_off: bool) -> DirectVerdict {
        verdict(None, Outcome::Answered(status), RunFacts { answered, cut_off, refusal: None })
    }

    fn of_outcome(outcome: Outcome, cut_off: bool) -> DirectVerdict {
        verdict(None, outcome, RunFacts { answered: true, cut_off, refusal: None })
    }

    #[test]
    fn a_run_is_judged_by_its_answer() {
        use DirectVerdict::{CameToNothing, MayHaveRun, Ran};
        for status in [200, 204, 303, 400, 404, 409, 412, 422, 423] {
            assert_eq!(of(status, true, false), Ran(status));
        }
        for status in [401, 403] {
            assert_eq!(of(status, true, false), CameToNothing, "{status}");
        }
        for status in [408, 425, 429, 500, 502, 503, 504] {
            assert_eq!(of(status, true, false), MayHaveRun(FAILED), "{status}");
        }
        for outcome in [Outcome::Failed, Outcome::BrokeOff] {
            assert_eq!(of_outcome(outcome, false), MayHaveRun(FAILED));
        }
    }

    #[test]
    fn only_the_refusal_of_a_gate_tells_that_nothing_ran() {
        let of = |status, refusal| {
            let facts = RunFacts { answered: true, cut_off: false, refusal };
            verdict(None, Outcome::Answered(status), facts)
        };
        for status in [409, 423, 429, 503, 418] {
            assert_eq!(of(status, Some(status)), DirectVerdict::CameToNothing, "{status}");
        }
        // A layer in between answered something else.
        assert_eq!(of(200, Some(429)), DirectVerdict::Ran(200));
        assert_eq!(of(503, Some(429)), DirectVerdict::MayHaveRun(FAILED));
    }

    /// Whatever a layer in between has made of that.
    #[test]
    fn a_handler_that_was_dropped_may_have_run() {
        for status in [200, 408, 429, 500, 503] {
            assert_eq!(of(status, false, false), DirectVerdict::MayHaveRun(STOPPED));
            assert_eq!(of(status, false, true), DirectVerdict::MayHaveRun(STOPPED));
        }
    }

    #[test]
    fn a_request_that_never_came_whole_locks_nobody_out() {
        for status in [400, 408, 413, 500] {
            assert_eq!(of(status, true, true), DirectVerdict::CameToNothing, "{status}");
        }
        assert_eq!(of(202, true, true), DirectVerdict::Ran(202), "the handler took it");
        let panicked = of_outcome(Outcome::Failed, true);
        assert_eq!(panicked, DirectVerdict::MayHaveRun(FAILED), "it has not answered");
    }
}
