//! What is told of jobs: facts, never bodies or the values of fields.

use std::{
    fmt,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use super::job_cursor::JobCursor;
use crate::{
    defer::envelope::StoredRequest,
    key::{Key, LogHash},
    store::{JobId, JobState, JobView, ShardStats},
};

/// One deferred request.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct JobInfo {
    /// Its id.
    pub id: JobId,
    /// What has become of it.
    pub state: JobState,
    /// Runs that were charged to it.
    pub attempts: u32,
    /// Its place in its line, from 1; `None` outside of it.
    pub position: Option<u64>,
    /// Why it is where it is, if that needs a reason.
    pub reason: Option<String>,
    /// Whom it belongs to; empty for nobody in particular.
    pub owner: String,
    /// Its lock, if that is still known.
    pub lock: Option<Key>,
    /// Bytes that are stored of it.
    pub bytes: u64,
    /// When it was accepted, by the store's clock, as the next two.
    pub accepted: Option<SystemTime>,
    /// When its last run began.
    pub began: Option<SystemTime>,
    /// When it ended.
    pub ended: Option<SystemTime>,
    /// How long until it may run, if it waits for a time.
    pub due_in: Option<Duration>,
    /// Runs whose worker died.
    pub crashes: u32,
    /// Runs that met another lock that was busy: not charged.
    pub busy: u32,
    /// Its last runs, oldest first, at most 20.
    pub runs: Vec<JobRun>,
    /// The job that was accepted instead of it.
    pub superseded_by: Option<JobId>,
    /// It was evicted for want of room, or purged: state, owner, lock, reason and the times of acceptance and end are all
    /// that is left, until its time is over. It is in no listing, and can't be put back.
    pub tombstone: bool,
}

impl fmt::Debug for JobInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The owner is an account. (Reasons are words of ours.)
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
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct JobRun {
    /// Which attempt it was, from 1.
    pub attempt: u32,
    /// When it began.
    pub began: Option<SystemTime>,
    /// When it ended.
    pub ended: Option<SystemTime>,
    /// What it came to, in a word or two.
    pub outcome: String,
}

/// What a stored request is, without what it says.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct JobHead {
    /// The method.
    pub method: String,
    /// The path, without its query.
    pub path: String,
    /// Names of the header fields, in order, repeats kept.
    pub header_names: Vec<String>,
    /// Bytes of the body.
    pub body_len: usize,
}

/// A page of a listing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct JobPage {
    /// At most as many as were asked for, in no order of time.
    pub jobs: Vec<JobInfo>,
    /// Where the next page begins; `None` if this was the last one.
    pub next: Option<JobCursor>,
}

/// How many jobs a store has, and has had.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeferStats {
    /// Jobs that wait or run.
    pub pending: u64,
    /// Bytes of what is pending.
    pub bytes: u64,
    /// Those of the pending that wait for a time.
    pub delayed: u64,
    /// Done, and still kept.
    pub done: u64,
    /// Dead, and still kept.
    pub dead: u64,
    /// Done ones that were forgotten when their time was over, or for want of room.
    pub trimmed_done: u64,
    /// Dead ones of which that is true.
    pub trimmed_dead: u64,
    /// Expired, since the beginning.
    pub expired: u64,
    /// Cancelled, since the beginning.
    pub cancelled: u64,
}

impl JobInfo {
    pub(super) fn from_view(id: JobId, job: JobView) -> Self {
        let past = job.history;
        Self {
            id,
            state: job.state,
            attempts: job.attempts,
            position: job.position,
            reason: job.reason,
            owner: job.owner,
            lock: past.lock,
            bytes: past.bytes,
            accepted: system_time(past.accepted_us),
            began: system_time(past.started_us),
            ended: system_time(past.ended_us).filter(|_| !job.state.is_pending()),
            due_in: past.due_in,
            crashes: past.crash_count,
            busy: past.busy_count,
            runs: past.recent_runs.iter().filter_map(|run| JobRun::parse(run)).collect(),
            superseded_by: past.superseded_by,
            tombstone: job.is_tombstone,
        }
    }
}

impl JobRun {
    /// `<attempt> <began us> <ended us> <outcome>`.
    fn parse(line: &str) -> Option<Self> {
        let mut words = line.splitn(4, ' ');
        let attempt = words.next()?.parse().ok()?;
        let mut at = || words.next()?.parse().ok().map(system_time);
        let (began, ended) = (at()?, at()?);
        Some(Self { attempt, began, ended, outcome: words.next().unwrap_or_default().to_owned() })
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
    pub(super) fn add_shard(self, tally: ShardStats) -> Self {
        Self {
            pending: self.pending + tally.pending,
            bytes: self.bytes + tally.bytes,
            delayed: self.delayed + tally.delayed,
            done: self.done + tally.done,
            dead: self.dead + tally.dead,
            trimmed_done: self.trimmed_done + tally.trimmed_done,
            trimmed_dead: self.trimmed_dead + tally.trimmed_dead,
            expired: self.expired + tally.expired,
            cancelled: self.cancelled + tally.cancelled,
        }
    }
}

/// 0 is "not yet".
fn system_time(us: u64) -> Option<SystemTime> {
    (us > 0).then(|| UNIX_EPOCH + Duration::from_micros(us))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whom_a_job_belongs_to_is_not_in_its_debug() {
        let job = JobInfo {
            id: JobId::parse(&format!("07{}", "7".repeat(32))).expect("an id"),
            state: JobState::Dead,
            attempts: 1,
            position: None,
            reason: Some("deadline".to_owned()),
            owner: "alice@example.org".to_owned(),
            lock: Some(Key::ip([192, 0, 2, 7].into())),
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
        for told in ["alice", "777777", "192"] {
            assert!(!text.contains(told), "{text}");
        }
        assert!(text.contains("Dead") && text.contains("deadline"), "{text}");
    }

    #[test]
    fn a_run_is_read_as_it_is_written() {
        let run = JobRun::parse("2 1000000 3000000 500, may have run").expect("one");
        assert_eq!((run.attempt, &*run.outcome), (2, "500, may have run"));
        assert_eq!(run.began, Some(UNIX_EPOCH + Duration::from_secs(1)));
        assert_eq!(run.ended, Some(UNIX_EPOCH + Duration::from_secs(3)));
        assert_eq!(JobRun::parse("2 x"), None);
    }
}
