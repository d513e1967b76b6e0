//! What becomes of a job after a run.

use std::time::{Duration, SystemTime};

use super::{
    backoff::{Backoff, retry_after},
    envelope::{At, Stored, StoredHead, write_response},
    headers::{Headers, of_response},
    run::{Answer, Kept, Ran},
};
use crate::{
    gate::{Deferred, Replay},
    store::Settlement,
};

/// It could not be sent to where it runs.
pub(super) const UNREACHABLE: &str = "unreachable";

/// No route of this worker is its own.
pub(super) const UNROUTABLE: &str = "unroutable";

/// What the worker knows of a run besides its answer.
pub(super) struct Run<'a> {
    pub(super) marker: &'a Replay,
    pub(super) at: At<'a>,
    pub(super) max_attempts: u32,
    pub(super) rules: &'a Rules,
}

/// How a worker judges.
#[derive(Debug, Clone)]
pub(super) struct Rules {
    pub(super) keep_done: Duration,
    pub(super) keep_dead: Duration,
    pub(super) backoff: Backoff,
    /// Fields of responses that are kept besides the usual ones; in lower case.
    pub(super) keep_headers: Vec<String>,
}

/// Any answer but these: they say that the request was not let in, or came to nothing.
pub(super) fn is_success(status: u16) -> bool {
    !matches!(status, 401 | 403 | 408 | 425 | 429 | 500..=599)
}

impl Run<'_> {
    /// Success is any answer but 401, 403, 408, 425, 429 and 5xx.
    pub(super) fn judge(&self, ran: Ran) -> Settlement {
        let answer = match ran {
            Ran::Answered(answer) => answer,
            Ran::Panicked => return self.failed("panicked", None),
            Ran::Failed => return self.failed("error", None),
            Ran::Unreachable => {
                return Settlement::Postpone { delay: self.by_age(), reason: UNREACHABLE };
            }
        };
        // Another lock on the way was busy, or the store was away: nothing has run, nothing is charged.
        if self.marker.was_busy_with(answer.status) {
            return Settlement::Postpone { delay: Duration::from_secs(1), reason: "busy" };
        }
        if matches!(answer.status, 401 | 403) {
            tracing::error!(
                job = ?self.marker.deferred().id, status = answer.status,
                "deferred request refused by authentication; give the worker the routes inside the \
                 authentication layer, and whose request it is by .carry::<T>() and .restore::<T>()"
            );
            return self.dead("auth");
        }
        match answer.status {
            // Also from a layer outside the lock, such as a timeout.
            status if !is_success(status) => {
                let Deferred { id, attempt, .. } = self.marker.deferred();
                tracing::warn!(job = ?id, attempt, status, "run failed");
                self.failed("failed", self.asked(&answer.headers))
            }
            status if !self.marker.was_seen() => self.missed(status),
            _ => self.done(answer),
        }
    }

    /// By the clock of this process: an answer's date is by that of another one, and good for seconds.
    fn asked(&self, headers: &Headers) -> Option<Duration> {
        retry_after(headers, SystemTime::now())
    }

    /// The run did not come through the job's own LockLayer.
    fn missed(&self, status: u16) -> Settlement {
        let id = &self.marker.deferred().id;
        if matches!(status, 404 | 405) {
            tracing::error!(job = ?id, "deferred request matches no route of this worker");
            return Settlement::Postpone { delay: self.by_age(), reason: UNROUTABLE };
        }
        tracing::error!(
            job = ?id, status,
            "a deferred request was answered without passing its LockLayer; give the worker the same \
             routes, layers included"
        );
        self.dead("wiring")
    }

    fn failed(&self, reason: &'static str, asked: Option<Duration>) -> Settlement {
        let attempt = self.marker.deferred().attempt;
        if attempt >= self.max_attempts {
            return self.dead(reason);
        }
        Settlement::Retry { delay: self.rules.backoff.after(attempt, asked), reason }
    }

    fn dead(&self, reason: &'static str) -> Settlement {
        Settlement::Dead { reason, retention: self.rules.keep_dead }
    }

    fn done(&self, answer: Answer) -> Settlement {
        let (stored, body) = match answer.body {
            Kept::Body(body) => (Stored::Body, body),
            Kept::TooLong => (Stored::TooLong, bytes::Bytes::new()),
            Kept::Stream => (Stored::Stream, bytes::Bytes::new()),
        };
        let headers = of_response(answer.headers, &self.rules.keep_headers);
        let head = StoredHead { status: answer.status, headers, stored };
        let response = write_response(self.at, &head, &body);
        Settlement::Done { response, status: answer.status, retention: self.rules.keep_done }
    }

    fn by_age(&self) -> Duration {
        by_age(self.marker.deferred().first_seen)
    }
}

/// A pause within this: the job is left to another worker meanwhile.
const PAUSE: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(60)];

/// Doubles as time goes by, with nothing to count it: as long as the job is old, within bounds.
///
/// Of deferred requests this is the one place where a worker's clock is compared with the store's; of tasks it is done for the
/// same pause, and to tell whether one has been unreadable for an hour (`queue/sealed.rs`, `queue/run.rs`). However wrong it is, the pause is one that
/// a younger or an older job would have; no order, attempt or deadline depends on it.
pub(super) fn by_age(first_seen: SystemTime) -> Duration {
    pause_at(SystemTime::now(), first_seen)
}

fn pause_at(now: SystemTime, first_seen: SystemTime) -> Duration {
    let [least, most] = PAUSE;
    now.duration_since(first_seen).unwrap_or_default().clamp(least, most)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_is_wrong_makes_no_pause_that_another_job_would_not_have() {
        let (seen, second) = (SystemTime::now(), Duration::from_secs(1));
        assert_eq!(pause_at(seen + 7 * second, seen), 7 * second);
        let hours = 10_000 * 3600 * second;
        let clocks = [seen - hours, seen - second, seen, seen + hours];
        assert_eq!(clocks.map(|now| pause_at(now, seen)), [second, second, second, 60 * second]);
    }
}
