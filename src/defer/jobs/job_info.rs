//! Metadata of jobs: never bodies, nor values of headers.

use std::{
    fmt,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use serde::Serialize;

use super::job_cursor::JobCursor;
use crate::{
    defer::envelope::StoredRequest,
    json_time::{optional_duration_ms, optional_time_ms},
    key::{Key, LogHash},
    store::{JobId, JobState, JobView, ShardStats},
};

/// A deferred request. Its JSON form has times in milliseconds since 1970.
#[derive(Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct JobInfo {
    /// Id of the job.
    pub id: JobId,
    /// State of the job.
    pub state: JobState,
    /// Number of runs charged to it.
    pub attempts: u32,
    /// Position in its queue, from 1; `None` outside of it.
    pub position: Option<u64>,
    /// Reason of its state, if there is one.
    pub reason: Option<String>,
    /// Owner of the request; empty if it has none.
    pub owner: String,
    /// Lock of the request, if it is still known.
    pub lock: Option<Key>,
    /// Method and route pattern of the request, such as `POST /orders/{id}`. `None` if the layer
    /// found no pattern, for a webhook, and after the job has become a tombstone.
    pub route: Option<String>,
    /// Stored size, in bytes.
    pub bytes: u64,
    /// Time of acceptance, by the store's clock, like the next two.
    #[serde(rename = "accepted_ms", serialize_with = "optional_time_ms")]
    pub accepted: Option<SystemTime>,
    /// Start of its last run.
    #[serde(rename = "began_ms", serialize_with = "optional_time_ms")]
    pub began: Option<SystemTime>,
    /// Time of its end.
    #[serde(rename = "ended_ms", serialize_with = "optional_time_ms")]
    pub ended: Option<SystemTime>,
    /// Time until it may run, if it is delayed.
    #[serde(rename = "due_in_ms", serialize_with = "optional_duration_ms")]
    pub due_in: Option<Duration>,
    /// Number of runs with a dead worker.
    pub crashes: u32,
    /// Number of runs that met another busy lock; they are not charged.
    pub busy: u32,
    /// Its last runs, oldest first, at most 20.
    pub runs: Vec<JobRun>,
    /// Job that superseded it.
    pub superseded_by: Option<JobId>,
    /// True if it was evicted for space, or purged. Only state, owner, lock, reason and the times
    /// of acceptance and end remain, until the retention ends. It is in no listing and can't be
    /// redriven.
    pub tombstone: bool,
}

impl fmt::Debug for JobInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The owner is an account, so only its hash is logged. Reasons are texts of lockgate.
        let Self {
            id, state, attempts, position, reason, owner, lock, bytes, crashes, busy, ..
        } = self;
        f.debug_struct("JobInfo")
            .field("id", id)
            .field("state", state)
            .field("attempts", attempts)
            .field("position", position)
            .field("reason", reason)
            .field("owner", &format_args!("{}", LogHash(owner)))
            .field("lock", lock)
            .field("bytes", bytes)
            .field("crashes", crashes)
            .field("busy", busy)
            .finish_non_exhaustive()
    }
}

/// One run of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct JobRun {
    /// Number of the attempt, from 1.
    pub attempt: u32,
    /// Start of the run.
    #[serde(rename = "began_ms", serialize_with = "optional_time_ms")]
    pub began: Option<SystemTime>,
    /// End of the run.
    #[serde(rename = "ended_ms", serialize_with = "optional_time_ms")]
    pub ended: Option<SystemTime>,
    /// Outcome in a few words.
    pub outcome: String,
}

/// Head of a stored request, without its values.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct JobHead {
    /// Method of the request.
    pub method: String,
    /// Path without its query.
    pub path: String,
    /// Names of the headers, in order, repeats kept.
    pub header_names: Vec<String>,
    /// Length of the body, in bytes.
    pub body_len: usize,
}

/// A page of a listing.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct JobPage {
    /// Jobs, at most as many as requested, in no order of time.
    pub jobs: Vec<JobInfo>,
    /// Start of the next page; `None` after the last one.
    pub next: Option<JobCursor>,
}

/// Counts of a store's jobs, present and past.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct DeferStats {
    /// Jobs that are queued or running.
    pub pending: u64,
    /// Stored bytes of the pending jobs.
    pub bytes: u64,
    /// Pending jobs that wait for a time.
    pub delayed: u64,
    /// Retained done jobs.
    pub done: u64,
    /// Retained dead jobs.
    pub dead: u64,
    /// Done jobs deleted at the end of their retention, or for space.
    pub trimmed_done: u64,
    /// Dead jobs deleted for the same reasons.
    pub trimmed_dead: u64,
    /// Jobs that have ever expired.
    pub expired: u64,
    /// Jobs that were ever cancelled.
    pub cancelled: u64,
}

impl JobInfo {
    pub(super) fn from_view(id: JobId, job: JobView) -> Self {
        let history = job.history;
        Self {
            id,
            state: job.state,
            attempts: job.attempts,
            position: job.position,
            reason: job.reason,
            owner: job.owner,
            lock: history.lock,
            route: history.route,
            bytes: history.bytes,
            accepted: system_time(history.accepted_us),
            began: system_time(history.started_us),
            ended: system_time(history.ended_us).filter(|_| !job.state.is_pending()),
            due_in: history.due_in,
            crashes: history.crash_count,
            busy: history.busy_count,
            runs: history.recent_runs.iter().filter_map(|run| JobRun::parse(run)).collect(),
            superseded_by: history.superseded_by,
            tombstone: job.is_tombstone,
        }
    }
}

impl JobRun {
    /// Parses `<attempt> <began us> <ended us> <outcome>`.
    fn parse(entry: &str) -> Option<Self> {
        let mut parts = entry.splitn(4, ' ');
        let attempt = parts.next()?.parse().ok()?;
        let mut next_time = || parts.next()?.parse().ok().map(system_time);
        let (began, ended) = (next_time()?, next_time()?);
        Some(Self { attempt, began, ended, outcome: parts.next().unwrap_or_default().to_owned() })
    }
}

impl JobHead {
    pub(super) fn from_request(request: &StoredRequest) -> Self {
        let head = &request.head;
        let path = head.target.split('?').next().unwrap_or_default();
        Self {
            method: head.method.clone(),
            path: path.to_owned(),
            header_names: head.headers.iter().map(|(name, _)| name.clone()).collect(),
            body_len: request.body.len(),
        }
    }
}

impl DeferStats {
    pub(super) fn add_shard(self, shard: ShardStats) -> Self {
        Self {
            pending: self.pending + shard.pending,
            bytes: self.bytes + shard.bytes,
            delayed: self.delayed + shard.delayed,
            done: self.done + shard.done,
            dead: self.dead + shard.dead,
            trimmed_done: self.trimmed_done + shard.trimmed_done,
            trimmed_dead: self.trimmed_dead + shard.trimmed_dead,
            expired: self.expired + shard.expired,
            cancelled: self.cancelled + shard.cancelled,
        }
    }
}

/// Converts microseconds since 1970. 0 means "not yet".
fn system_time(us: u64) -> Option<SystemTime> {
    (us > 0).then(|| UNIX_EPOCH + Duration::from_micros(us))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn job_info_debug_hides_id_owner_and_key() {
        let job = JobInfo {
            id: JobId::parse(&format!("07{}", "7".repeat(32))).expect("an id"),
            state: JobState::Dead,
            attempts: 1,
            position: None,
            reason: Some("deadline".to_owned()),
            owner: "alice@example.org".to_owned(),
            lock: Some(Key::ip([192, 0, 2, 7].into())),
            route: None,
            bytes: 17,
            accepted: None,
            began: None,
            ended: None,
            due_in: None,
            crashes: 0,
            busy: 0,
            runs: Vec::new(),
            superseded_by: None,
            tombstone: false,
        };
        let text = format!("{job:?}");
        // Ten digits of the id are shown, as in logs.
        for secret in ["alice", "77777777777", "192"] {
            assert!(!text.contains(secret), "{text}");
        }
        assert!(text.contains("Dead") && text.contains("deadline"), "{text}");
    }

    #[test]
    fn job_run_parses_its_stored_form() {
        let run = JobRun::parse("2 1000000 3000000 500, may have run").expect("one");
        assert_eq!((run.attempt, &*run.outcome), (2, "500, may have run"));
        assert_eq!(run.began, Some(UNIX_EPOCH + Duration::from_secs(1)));
        assert_eq!(run.ended, Some(UNIX_EPOCH + Duration::from_secs(3)));
        assert_eq!(JobRun::parse("2 x"), None);
    }
}
