//! Replies to deferred requests: the 202, and those about a recorded or an uncertain job.

use std::time::Duration;

use serde_json::json;

use super::{defer_layer::DeferLayer, gate_impl::DeferCandidate};
use crate::{
    defer::{
        status::{StatusPaths, gone_reply},
        worker::MIN_RETENTION,
    },
    gate::RequestKind,
    reply::{Reply, problem},
    store::{JobId, JobState, JobView},
};

/// Longest estimated `Retry-After`. The estimate may be too long: jobs can be cancelled or run
/// faster.
const MAX_ESTIMATED_WAIT: Duration = Duration::from_secs(300);

/// Least time for which a job can be looked up after it was stored. Workers retain ended jobs for
/// at least as long, and so does the tombstone of an evicted or purged job.
pub(super) const MIN_LOOKUP_TTL: Duration = MIN_RETENTION;

/// Part of that time that a client loses to the transit of the response and of its lookup.
const LOOKUP_MARGIN: Duration = Duration::from_secs(10);

impl<R: RequestKind> DeferLayer<R> {
    /// Returns the `Location` of a job.
    pub(super) fn status_location(&self, candidate: &DeferCandidate, id: &JobId) -> String {
        let store = &candidate.parked.store;
        let configured = self.0.status_path.as_deref();
        format!("{}/{id}", store.extension::<StatusPaths>().announce(store, configured))
    }

    /// Returns the 202. Position 0 means outside of a queue.
    pub(super) fn accepted_reply(
        &self,
        candidate: &DeferCandidate,
        id: &JobId,
        state: JobState,
        position: u64,
    ) -> Reply {
        let queue_position = Some(position).filter(|position| *position > 0);
        let body =
            json!({ "id": id.as_str(), "state": state.as_str(), "position": queue_position });
        let wait = if state == JobState::Queued {
            self.estimate_wait(candidate, position)
        } else {
            Duration::ZERO
        };
        let reply = Reply::json(202, &body)
            .header("location", self.status_location(candidate, id))
            .retry_after(wait);
        match candidate.applied_preferences.header_value() {
            Some(applied) => reply.header("preference-applied", applied),
            None => reply,
        }
    }

    /// Estimates the time until the result: a typical hold for the current holder, for each job
    /// before this one, and for the job itself.
    fn estimate_wait(&self, candidate: &DeferCandidate, position: u64) -> Duration {
        let runs = u32::try_from(position.saturating_add(1)).unwrap_or(u32::MAX);
        let queue_wait = candidate.parked.typical_hold.saturating_mul(runs);
        let delay = if position == 0 { self.0.run.delay } else { Duration::ZERO };
        delay.saturating_add(queue_wait.min(MAX_ESTIMATED_WAIT))
    }

    /// Returns the reply to a request with a record that names this job.
    pub(super) async fn look_up_recorded_job(
        &self,
        candidate: &DeferCandidate,
        id: &JobId,
    ) -> RecordedJobReply {
        RecordedJobReply::Reply(match candidate.parked.store.backend().job_view(id.clone()).await {
            Ok(Some(job)) if is_running_directly(&job) => return RecordedJobReply::RunningDirectly,
            Ok(Some(job)) if job.is_tombstone => gone_reply(Some(&job)),
            Ok(Some(job)) => {
                self.accepted_reply(candidate, id, job.state, job.position.unwrap_or(0))
            }
            Ok(None) => return RecordedJobReply::Forgotten,
            // Nothing proves that the job is stored: it may be a direct run.
            Err(_) if self.0.idempotency.idempotent_direct => outcome_unknown_reply(
                self.status_location(candidate, id),
                self.0.idempotency.ttl.max(MIN_LOOKUP_TTL),
                true,
            ),
            // The job was accepted before; a failed read does not change that.
            Err(_) => self.accepted_reply(candidate, id, JobState::Queued, 0),
        })
    }
}

/// State of the job that a record names.
pub(super) enum RecordedJobReply {
    /// The job was accepted, or has run.
    Reply(Reply),
    /// A direct run holds the record. Its body is not stored, and a refusal or a repeatable failure
    /// leaves no record, so the retry must not be answered with a 202.
    RunningDirectly,
    /// Only the id of the job is known.
    Forgotten,
}

/// A stored job has bytes; a direct run has none.
fn is_running_directly(job: &JobView) -> bool {
    job.state == JobState::Running && job.history.bytes == 0
}

pub(super) fn key_reused_reply() -> Reply {
    let title = "This Idempotency-Key was used for another request";
    Reply::problem(422, problem::IDEMPOTENCY_KEY_REUSED, title)
}

/// Returns the reply to a request that may be stored.
///
/// The status resource has the answer once the store is available, even if that is a 404. After
/// `lookup_ttl` the job may have ended, and its tombstone too. A retry with the same key is safe
/// while the record is kept.
pub(super) fn outcome_unknown_reply(
    location: String,
    lookup_ttl: Duration,
    has_key: bool,
) -> Reply {
    let title = "The request may have been accepted; its location tells";
    let seconds = lookup_ttl.saturating_sub(LOOKUP_MARGIN).as_secs();
    let with_key = if has_key { " with the same Idempotency-Key" } else { "" };
    let detail = format!(
        "If its location is 404, it was not accepted, and may be sent again{with_key}. This holds for {seconds} s: after that \
         a 404 tells nothing."
    );
    Reply::problem(503, problem::OUTCOME_UNKNOWN, title)
        .with_member("detail", detail)
        .with_member("valid_for_s", seconds)
        .header("location", location)
        .retry_after(Duration::from_secs(1))
}
