//! What becomes of a job after a run.

use std::time::{Duration, SystemTime};

use super::{
    envelope::{EnvelopeBinding, StoredBodyStatus, StoredResponseHead, encode_response},
    job_backoff::{JobBackoff, parse_retry_after},
    replayer::{ReplayBody, ReplayOutcome, ReplayResponse},
    stored_headers::{HeaderList, stored_response_headers},
};
use crate::{
    gate::{ReplayMarker, RunningJob},
    store::Settlement,
};

/// It could not be sent to where it runs.
pub(super) const UNREACHABLE: &str = "unreachable";

/// No route of this worker is its own.
pub(super) const UNROUTABLE: &str = "unroutable";

/// What the worker knows of a run besides its answer.
pub(super) struct RunContext<'a> {
    pub(super) replay: &'a ReplayMarker,
    pub(super) binding: EnvelopeBinding<'a>,
    pub(super) max_attempts: u32,
    pub(super) rules: &'a SettlementRules,
}

/// How a worker judges.
#[derive(Debug, Clone)]
pub(super) struct SettlementRules {
    pub(super) done_retention: Duration,
    pub(super) dead_retention: Duration,
    pub(super) backoff: JobBackoff,
    /// Fields of responses that are kept besides the usual ones; in lower case.
    pub(super) keep_headers: Vec<String>,
}

/// Any answer but these: they say that the request was not let in, or came to nothing.
pub(super) fn is_success_status(status: u16) -> bool {
    !matches!(status, 401 | 403 | 408 | 425 | 429 | 500..=599)
}

impl RunContext<'_> {
    /// Success is any answer but 401, 403, 408, 425, 429 and 5xx.
    pub(super) fn classify(&self, ran: ReplayOutcome) -> Settlement {
        let answer = match ran {
            ReplayOutcome::Answered(answer) => answer,
            ReplayOutcome::Panicked => return self.retry_or_dead_letter("panicked", None),
            ReplayOutcome::Failed => return self.retry_or_dead_letter("error", None),
            ReplayOutcome::Unreachable => {
                return Settlement::Postpone { delay: self.age_backoff(), reason: UNREACHABLE };
            }
        };
        // Another lock on the way was busy, or the store was away: nothing has run, nothing is charged.
        if self.replay.met_busy_lock_with(answer.status) {
            return Settlement::Postpone { delay: Duration::from_secs(1), reason: "busy" };
        }
        if matches!(answer.status, 401 | 403) {
            tracing::error!(
                job = ?self.replay.job().id, status = answer.status,
                "deferred request refused by authentication; give the worker the routes inside the \
                 authentication layer, and whose request it is by .carry::<T>() and .restore::<T>()"
            );
            return self.dead_letter("auth");
        }
        match answer.status {
            // Also from a layer outside the lock, such as a timeout.
            status if !is_success_status(status) => {
                let RunningJob { id, attempt, .. } = self.replay.job();
                tracing::warn!(job = ?id, attempt, status, "run failed");
                self.retry_or_dead_letter("failed", self.requested_delay(&answer.headers))
            }
            status if !self.replay.has_passed_lock() => self.classify_unlocked(status),
            _ => self.completed(answer),
        }
    }

    /// By the clock of this process: an answer's date is by that of another one, and good for seconds.
    fn requested_delay(&self, headers: &HeaderList) -> Option<Duration> {
        parse_retry_after(headers, SystemTime::now())
    }

    /// The run did not come through the job's own LockLayer.
    fn classify_unlocked(&self, status: u16) -> Settlement {
        let id = &self.replay.job().id;
        if matches!(status, 404 | 405) {
            tracing::error!(job = ?id, "deferred request matches no route of this worker");
            return Settlement::Postpone { delay: self.age_backoff(), reason: UNROUTABLE };
        }
        tracing::error!(
            job = ?id, status,
            "a deferred request was answered without passing its LockLayer; give the worker the same \
             routes, layers included"
        );
        self.dead_letter("wiring")
    }

    fn retry_or_dead_letter(&self, reason: &'static str, asked: Option<Duration>) -> Settlement {
        let attempt = self.replay.job().attempt;
        if attempt >= self.max_attempts {
            return self.dead_letter(reason);
        }
        Settlement::Retry { delay: self.rules.backoff.delay_after(attempt, asked), reason }
    }

    fn dead_letter(&self, reason: &'static str) -> Settlement {
        Settlement::Dead { reason, retention: self.rules.dead_retention }
    }

    fn completed(&self, answer: ReplayResponse) -> Settlement {
        let (stored, body) = match answer.body {
            ReplayBody::Full(body) => (StoredBodyStatus::Full, body),
            ReplayBody::TooLong => (StoredBodyStatus::TooLong, bytes::Bytes::new()),
            ReplayBody::Stream => (StoredBodyStatus::Stream, bytes::Bytes::new()),
        };
        let headers = stored_response_headers(answer.headers, &self.rules.keep_headers);
        let head = StoredResponseHead { status: answer.status, headers, body_status: stored };
        let response = encode_response(self.binding, &head, &body);
        Settlement::Done { response, status: answer.status, retention: self.rules.done_retention }
    }

    fn age_backoff(&self) -> Duration {
        age_backoff(self.replay.job().accepted_at)
    }
}

/// A pause within this: the job is left to another worker meanwhile.
const AGE_BACKOFF_BOUNDS: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(60)];

/// Doubles as time goes by, with nothing to count it: as long as the job is old, within bounds.
///
/// Of deferred requests this is the one place where a worker's clock is compared with the store's; of tasks it is done for the
/// same pause, and to tell whether one has been unreadable for an hour (`queue/sealed.rs`, `queue/run.rs`). However wrong it is, the pause is one that
/// a younger or an older job would have; no order, attempt or deadline depends on it.
pub(super) fn age_backoff(first_seen: SystemTime) -> Duration {
    age_backoff_at(SystemTime::now(), first_seen)
}

fn age_backoff_at(now: SystemTime, first_seen: SystemTime) -> Duration {
    let [least, most] = AGE_BACKOFF_BOUNDS;
    now.duration_since(first_seen).unwrap_or_default().clamp(least, most)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_is_wrong_makes_no_pause_that_another_job_would_not_have() {
        let (seen, second) = (SystemTime::now(), Duration::from_secs(1));
        assert_eq!(age_backoff_at(seen + 7 * second, seen), 7 * second);
        let hours = 10_000 * 3600 * second;
        let clocks = [seen - hours, seen - second, seen, seen + hours];
        assert_eq!(
            clocks.map(|now| age_backoff_at(now, seen)),
            [second, second, second, 60 * second]
        );
    }
}
