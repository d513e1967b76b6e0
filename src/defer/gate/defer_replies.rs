//! What a client is told whose request was taken over.

use std::time::Duration;

use serde_json::json;

use super::{defer_gate::DeferGate, gate_impl::DeferCandidate};
use crate::{
    defer::{status::gone_reply, worker::MIN_RETENTION},
    reply::{Reply, problem},
    store::{JobId, JobState, JobView},
};

/// Longest `Retry-After` that is only guessed: a job may be cancelled, or its line move faster.
const MAX_ESTIMATED_WAIT: Duration = Duration::from_secs(300);

/// How long a job can be looked up at least, from when it was stored: workers keep what has ended for as long, and of
/// what is evicted or purged a tombstone is left for as long.
pub(super) const MIN_LOOKUP_TTL: Duration = MIN_RETENTION;

/// What a client loses of that time: the way of the answer, and of its look.
const LOOKUP_MARGIN: Duration = Duration::from_secs(10);

impl<N: ?Sized> DeferGate<N> {
    pub(super) fn status_location(&self, id: &JobId) -> String {
        format!("{}/{id}", self.0.status_path)
    }

    /// Position 0: not in a line.
    pub(super) fn accepted_reply(
        &self,
        parked: &DeferCandidate,
        id: &JobId,
        state: JobState,
        position: u64,
    ) -> Reply {
        let place = Some(position).filter(|position| *position > 0);
        let body = json!({ "id": id.as_str(), "state": state.as_str(), "position": place });
        let wait = if state == JobState::Queued {
            self.estimate_wait(parked, position)
        } else {
            Duration::ZERO
        };
        let reply =
            Reply::json(202, &body).header("location", self.status_location(id)).retry_after(wait);
        match parked.applied_preferences.header_value() {
            Some(applied) => reply.header("preference-applied", applied),
            None => reply,
        }
    }

    /// When its result may be there: the usual time for whoever has the lock, all before, and itself.
    fn estimate_wait(&self, parked: &DeferCandidate, position: u64) -> Duration {
        let turns = u32::try_from(position.saturating_add(1)).unwrap_or(u32::MAX);
        let line =
            parked.parked.typical_hold.map_or(Duration::ZERO, |usual| usual.saturating_mul(turns));
        let late = if position == 0 { self.0.run.delay } else { Duration::ZERO };
        late.saturating_add(line.min(MAX_ESTIMATED_WAIT))
    }

    /// A request whose record names this job: what has become of that.
    pub(super) async fn look_up_recorded_job(
        &self,
        parked: &DeferCandidate,
        id: &JobId,
    ) -> RecordedJobReply {
        RecordedJobReply::Reply(match parked.parked.store.backend().job_view(id.clone()).await {
            Ok(Some(job)) if is_running_directly(&job) => return RecordedJobReply::RunningDirectly,
            Ok(Some(job)) if job.is_tombstone => gone_reply(Some(&job)),
            Ok(Some(job)) => self.accepted_reply(parked, id, job.state, job.position.unwrap_or(0)),
            Ok(None) => return RecordedJobReply::Forgotten,
            // Nothing says that it is stored, where it may be one that runs at once.
            Err(_) if self.0.idempotency.idempotent_direct => outcome_unknown_reply(
                self.status_location(id),
                self.0.idempotency.ttl.max(MIN_LOOKUP_TTL),
                true,
            ),
            // A read that fails does not make it less accepted.
            Err(_) => self.accepted_reply(parked, id, JobState::Queued, 0),
        })
    }
}

/// What is known of the request that has the record.
pub(super) enum RecordedJobReply {
    /// It was accepted, or has run.
    Reply(Reply),
    /// Another one, under its lock. Its body is not stored, and a refusal or a failure that may be repeated leaves no record,
    /// so the retry must not be told that it is accepted.
    RunningDirectly,
    /// No more than its id.
    Forgotten,
}

/// Of what is stored there are bytes.
fn is_running_directly(job: &JobView) -> bool {
    job.state == JobState::Running && job.history.bytes == 0
}

pub(super) fn key_reused_reply() -> Reply {
    let title = "This Idempotency-Key was used for another request";
    Reply::problem(422, problem::IDEMPOTENCY_KEY_REUSED, title)
}

/// It may be stored: the status resource tells the truth once the store is back, also if that is a 404. Later than `known`
/// from its acceptance the job may have ended, and its tombstone too. A retry under the same key is safe for as long as that
/// is remembered.
pub(super) fn outcome_unknown_reply(location: String, known: Duration, keyed: bool) -> Reply {
    let title = "The request may have been accepted; its location tells";
    let seconds = known.saturating_sub(LOOKUP_MARGIN).as_secs();
    let how = if keyed { " with the same Idempotency-Key" } else { "" };
    let detail = format!(
        "If its location is 404, it was not accepted, and may be sent again{how}. This holds for {seconds} s: after that \
         a 404 tells nothing."
    );
    Reply::problem(503, problem::OUTCOME_UNKNOWN, title)
        .with_member("detail", detail)
        .with_member("valid_for_s", seconds)
        .header("location", location)
        .retry_after(Duration::from_secs(1))
}
