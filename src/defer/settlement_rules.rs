//! `SettlementRules`: the classification of a replay's outcome as a settlement.

use std::time::{Duration, SystemTime};

use super::{
    envelope::{
        EnvelopeBinding, HeaderPairs, StoredBodyStatus, StoredResponseHead, encode_response,
    },
    job_backoff::{JobBackoff, parse_retry_after},
    next_step::NextStep,
    replayer::{ReplayBody, ReplayOutcome, ReplayResponse},
    run_label::RunLabel,
    stored_response_headers::stored_response_headers,
};
use crate::{
    gate::{ReplayMarker, RunningJob},
    store::Settlement,
};

/// Reason of a postponement: the process that runs the request could not be reached.
pub(super) const UNREACHABLE: &str = "unreachable";

/// Reason of a postponement: no route of this worker matches.
pub(super) const UNROUTABLE: &str = "unroutable";

/// Data about a run, besides its outcome, that its settlement depends on.
pub(super) struct RunContext<'a> {
    pub(super) replay: &'a ReplayMarker,
    pub(super) binding: EnvelopeBinding<'a>,
    pub(super) max_attempts: u32,
    pub(super) rules: &'a SettlementRules,
    /// Method and route, for log records.
    pub(super) label: &'a RunLabel,
}

/// Settings of a worker for settlements.
#[derive(Debug, Clone)]
pub(super) struct SettlementRules {
    pub(super) done_retention: Duration,
    pub(super) dead_retention: Duration,
    pub(super) backoff: JobBackoff,
    /// Response headers that are stored besides the default ones; in lower case.
    pub(super) keep_headers: Vec<String>,
}

/// Returns true for any status but those that say that the request was not admitted or failed.
pub(super) fn is_success_status(status: u16) -> bool {
    !matches!(status, 401 | 403 | 408 | 425 | 429 | 500..=599)
}

impl RunContext<'_> {
    /// Classifies the outcome. Success is any status but 401, 403, 408, 425, 429 and 5xx.
    pub(super) fn classify(&self, outcome: ReplayOutcome) -> Settlement {
        let answer = match outcome {
            ReplayOutcome::Answered(answer) => answer,
            ReplayOutcome::Panicked => return self.failed("panicked", None, None),
            ReplayOutcome::Failed => return self.failed("error", None, None),
            ReplayOutcome::Unreachable => {
                return Settlement::Postpone { delay: self.age_backoff(), reason: UNREACHABLE };
            }
        };
        // Another lock of the route was busy, or the store was unavailable. No handler has run, so
        // no attempt is charged.
        if self.replay.met_busy_lock_with(answer.status) {
            return Settlement::Postpone { delay: Duration::from_secs(1), reason: "busy" };
        }
        if matches!(answer.status, 401 | 403) {
            tracing::error!(
                job = %self.replay.job().id.log_prefix(), method = self.label.method(),
                route = self.label.route(), status = answer.status,
                "run refused by authentication; put the worker's routes inside the authentication \
                 layer, and add .for_user::<U>() to the DeferLayer and to the worker"
            );
            return self.dead_letter("auth");
        }
        match answer.status {
            // The status may come from a layer outside of the lock, such as a timeout.
            status if !is_success_status(status) => {
                self.failed("failed", Some(status), self.requested_delay(&answer.headers))
            }
            status if !self.replay.has_passed_lock() => self.classify_unlocked(status),
            _ => self.completed(answer),
        }
    }

    /// Uses the clock of this process. A date in the response has the clock of another one, and is
    /// accurate to seconds.
    fn requested_delay(&self, headers: &HeaderPairs) -> Option<Duration> {
        parse_retry_after(headers, SystemTime::now())
    }

    /// Settles a run that did not pass the job's own `LockLayer`.
    fn classify_unlocked(&self, status: u16) -> Settlement {
        let id = &self.replay.job().id;
        if matches!(status, 404 | 405) {
            tracing::error!(
                job = %id.log_prefix(), method = self.label.method(),
                route = self.label.route(), status,
                "no route of this worker matches the job; give the worker the whole router, with \
                 the prefix of its nest or scope. Normal while a deployment adds the route"
            );
            return Settlement::Postpone { delay: self.age_backoff(), reason: UNROUTABLE };
        }
        tracing::error!(
            job = %id.log_prefix(), method = self.label.method(), route = self.label.route(),
            status,
            "the run did not pass its LockLayer; give the worker the same routes, layers \
             included"
        );
        self.dead_letter("wiring")
    }

    /// Settles a failed run, and logs what follows.
    fn failed(
        &self,
        reason: &'static str,
        status: Option<u16>,
        requested_delay: Option<Duration>,
    ) -> Settlement {
        let settlement = self.retry_or_dead_letter(reason, requested_delay);
        // The run ends as cancelled, and is logged so.
        if self.replay.cancellation().is_cancelled() {
            return settlement;
        }
        let RunningJob { id, attempt, .. } = self.replay.job();
        let next = NextStep::after(&settlement);
        tracing::warn!(
            job = %id.log_prefix(), attempt, max_attempts = self.max_attempts,
            method = self.label.method(), route = self.label.route(), status, reason,
            then = next.name, retry_in_ms = next.retry_in_ms, "run failed"
        );
        settlement
    }

    fn retry_or_dead_letter(
        &self,
        reason: &'static str,
        requested_delay: Option<Duration>,
    ) -> Settlement {
        let attempt = self.replay.job().attempt;
        if attempt >= self.max_attempts {
            return self.dead_letter(reason);
        }
        let delay = self.rules.backoff.delay_after(attempt, requested_delay);
        Settlement::Retry { delay, reason }
    }

    fn dead_letter(&self, reason: &'static str) -> Settlement {
        Settlement::Dead { reason, retention: self.rules.dead_retention }
    }

    fn completed(&self, answer: ReplayResponse) -> Settlement {
        let (body_status, body) = match answer.body {
            ReplayBody::Full(body) => (StoredBodyStatus::Full, body),
            ReplayBody::TooLong => (StoredBodyStatus::TooLong, bytes::Bytes::new()),
            ReplayBody::Stream => (StoredBodyStatus::Stream, bytes::Bytes::new()),
        };
        let headers = stored_response_headers(answer.headers, &self.rules.keep_headers);
        let head = StoredResponseHead { status: answer.status, headers, body_status };
        let response = encode_response(self.binding, &head, &body);
        Settlement::Done { response, status: answer.status, retention: self.rules.done_retention }
    }

    fn age_backoff(&self) -> Duration {
        age_backoff(self.replay.job().accepted_at)
    }
}

/// Shortest postponement of a job that is left to a peer.
const MIN_AGE_BACKOFF: Duration = Duration::from_secs(1);

/// Longest postponement of a job that is left to a peer.
const MAX_AGE_BACKOFF: Duration = Duration::from_secs(60);

/// Returns a pause that doubles over time without a counter: the age of the job, within bounds.
///
/// This is the only comparison of a worker's clock with the store's among deferred requests. The
/// task queues compare them for the same pause, and for the age of an undecodable task
/// (`queue/sealed_payload.rs`, `queue/task_run.rs`). However wrong the clock is, the pause is one
/// that a younger or an older job would have. No order, attempt or deadline depends on it.
pub(super) fn age_backoff(first_seen: SystemTime) -> Duration {
    age_backoff_at(SystemTime::now(), first_seen)
}

fn age_backoff_at(now: SystemTime, first_seen: SystemTime) -> Duration {
    let age = now.duration_since(first_seen).unwrap_or_default();
    age.clamp(MIN_AGE_BACKOFF, MAX_AGE_BACKOFF)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backoff_by_age_stays_bounded_with_a_wrong_clock() {
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
