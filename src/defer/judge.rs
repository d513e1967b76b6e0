//! What becomes of a job after a run.

use std::time::{Duration, SystemTime};

use super::{
    envelope::{StoredHead, write_response},
    headers::of_response,
    run::{Answer, Ran},
};
use crate::{gate::Replay, store::Verdict};

/// What the worker knows of a run besides its answer.
pub(super) struct Run<'a> {
    pub(super) marker: &'a Replay,
    pub(super) max_attempts: u32,
    pub(super) keep_done: Duration,
    pub(super) keep_dead: Duration,
}

/// Any answer but these: they say that the request was not let in, or came to nothing.
pub(super) fn is_success(status: u16) -> bool {
    !matches!(status, 401 | 403 | 408 | 425 | 429 | 500..=599)
}

impl Run<'_> {
    /// Success is any answer but 401, 403, 408, 425, 429 and 5xx.
    pub(super) fn judge(&self, ran: Ran) -> Verdict {
        let answer = match ran {
            Ran::Answered(answer) => answer,
            Ran::Panicked => return self.failed("panicked"),
            Ran::Failed => return self.failed("failed"),
        };
        // Another lock on the way was busy, or the store was away: nothing has run, nothing is charged.
        if self.marker.was_busy() && matches!(answer.status, 409 | 503) {
            return Verdict::Back { delay: Duration::from_secs(1), reason: "busy" };
        }
        if matches!(answer.status, 401 | 403) {
            tracing::error!(
                job = ?self.marker.deferred().id, status = answer.status,
                "deferred request refused by authentication; give the worker the routes inside the \
                 authentication layer"
            );
            return self.dead("auth");
        }
        match answer.status {
            // Also from a layer outside the lock, such as a timeout.
            status if !is_success(status) => self.failed("failed"),
            status if !self.marker.was_seen() => self.missed(status),
            _ => self.done(answer),
        }
    }

    /// The run did not come through the job's own LockLayer.
    fn missed(&self, status: u16) -> Verdict {
        let id = &self.marker.deferred().id;
        if matches!(status, 404 | 405) {
            tracing::error!(job = ?id, "deferred request matches no route of this worker");
            return Verdict::Back { delay: self.by_age(), reason: "unroutable" };
        }
        tracing::error!(
            job = ?id, status,
            "a deferred request was answered without passing its LockLayer; give the worker the same \
             routes, layers included"
        );
        self.dead("wiring")
    }

    fn failed(&self, reason: &'static str) -> Verdict {
        let attempt = self.marker.deferred().attempt;
        if attempt >= self.max_attempts {
            return self.dead(reason);
        }
        Verdict::Retry { delay: backoff(attempt), reason }
    }

    fn dead(&self, reason: &'static str) -> Verdict {
        Verdict::Dead { reason, retention: self.keep_dead }
    }

    fn done(&self, answer: Answer) -> Verdict {
        let head = StoredHead {
            status: answer.status,
            headers: of_response(answer.headers),
            whole: answer.body.is_some(),
        };
        let response = write_response(&head, &answer.body.unwrap_or_default());
        Verdict::Done { response, retention: self.keep_done }
    }

    /// Doubles as time goes by, with nothing to count it: as long as the job is old, within bounds.
    fn by_age(&self) -> Duration {
        let age = SystemTime::now().duration_since(self.marker.deferred().accepted);
        age.unwrap_or_default().clamp(Duration::from_secs(1), Duration::from_secs(60))
    }
}

/// Exponential, with full jitter: between nothing and 1, 2, 4 ... seconds, at most five minutes.
fn backoff(attempt: u32) -> Duration {
    let most = (1000u64 << attempt.saturating_sub(1).min(20)).min(300_000);
    // The lower half of a random UUID has its fixed bits at the top, out of a remainder's reach.
    let random = uuid::Uuid::new_v4().as_u64_pair().1;
    Duration::from_millis(random % most + 1)
}
