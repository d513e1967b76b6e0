//! `JobRecord`: a job as stored in a shard, with the history of its runs.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;

use super::memory_shard::ServerTime;
use crate::{
    durations::ceil_millis,
    key::Key,
    store::backend::{JobHistory, JobId, JobState, JobView, LockToken, Settlement, WebhookJobSpec},
};

/// Minimum time for which a stored job is remembered.
const DUPLICATE_CALL_WINDOW: Duration = Duration::from_secs(60);

/// Maximum number of runs in a job's history.
const MAX_RECENT_RUNS: usize = 20;

/// The key kinds j, b and r of a job in one value: they expire together.
pub(super) struct JobRecord {
    pub(super) lock: Key,
    pub(super) seq: u64,
    pub(super) state: JobState,
    /// Token of the last run. It stays after the run, so that settling is idempotent.
    pub(super) run_token: Option<LockToken>,
    /// First fence of the last run.
    pub(super) first_fence: u64,
    pub(super) attempts: u32,
    pub(super) max_attempts: u32,
    pub(super) retry_after_crash: bool,
    pub(super) reason: &'static str,
    pub(super) owner: String,
    /// Method and route pattern of the request; empty if unknown.
    pub(super) route: String,
    /// The job's idempotency record, and those of merged requests, each with its minimum expiry,
    /// whatever becomes of the job.
    pub(super) idempotency_records: Vec<(Arc<str>, u64)>,
    /// Webhook that reports the end.
    pub(super) webhook: Option<WebhookJobSpec>,
    pub(super) accepted_us: u64,
    pub(super) bytes: u64,
    pub(super) envelope: Bytes,
    pub(super) response: Option<Bytes>,
    /// Status of `response`; 0 without one.
    pub(super) response_status: u16,
    /// For a webhook job: the end that it reports.
    pub(super) webhook_event: Option<String>,
    /// Deadline, if any.
    pub(super) deadline_ms: Option<u64>,
    /// Other jobs may overtake it while it waits for a retry.
    pub(super) allows_overtaking: bool,
    /// Job that has superseded this one.
    pub(super) superseded_by: Option<JobId>,
    /// Direct run, which is in no queue.
    pub(super) is_direct: bool,
    /// For a direct run: deadline of its next renewal, in ms.
    pub(super) direct_lease_ms: u64,
    /// Tombstone of an evicted or purged job.
    pub(super) is_tombstone: bool,
    /// Start of the last run, in µs; 0 before the first run.
    pub(super) started_us: u64,
    /// End of the job, in µs; 0 before it has ended.
    pub(super) ended_us: u64,
    pub(super) crash_count: u32,
    pub(super) busy_count: u32,
    /// History of runs, at most `MAX_RECENT_RUNS`.
    pub(super) recent_runs: Vec<String>,
}

impl JobRecord {
    /// Creates a record with default values.
    pub(super) fn new(lock: &Key, now: ServerTime) -> Self {
        Self {
            lock: lock.clone(),
            seq: 0,
            state: JobState::Queued,
            run_token: None,
            first_fence: 0,
            attempts: 0,
            max_attempts: 1,
            retry_after_crash: false,
            reason: "",
            owner: String::new(),
            route: String::new(),
            idempotency_records: Vec::new(),
            webhook: None,
            accepted_us: now.us,
            bytes: 0,
            envelope: Bytes::new(),
            response: None,
            response_status: 0,
            webhook_event: None,
            deadline_ms: None,
            allows_overtaking: false,
            superseded_by: None,
            is_direct: false,
            direct_lease_ms: 0,
            is_tombstone: false,
            started_us: 0,
            ended_us: 0,
            crash_count: 0,
            busy_count: 0,
            recent_runs: Vec::new(),
        }
    }

    pub(super) fn set_ended(&mut self, state: JobState, reason: &'static str, now_us: u64) {
        (self.state, self.reason, self.ended_us) = (state, reason, now_us);
    }

    /// Removes all data that a tombstone does not report.
    pub(super) fn reduce_to_tombstone(&mut self, now: ServerTime) {
        let Self { state, reason, accepted_us, ended_us, .. } = *self;
        let owner = std::mem::take(&mut self.owner);
        let tombstone =
            Self { is_tombstone: true, state, reason, owner, ..Self::new(&self.lock, now) };
        *self = Self { accepted_us, ended_us, ..tombstone };
    }

    /// Returns the time until which the job must be remembered: a copy of the call that stored it
    /// may still arrive.
    pub(super) fn duplicate_window_end(&self) -> u64 {
        self.accepted_us / 1000 + ceil_millis(DUPLICATE_CALL_WINDOW)
    }

    /// Returns the description of the end that a webhook reports.
    pub(super) fn end_event(&self) -> String {
        let Self { state, attempts, ended_us, response_status: status, reason, .. } = self;
        format!("{} {attempts} {ended_us} {status} {reason}", state.as_str())
    }

    /// Resolves the settlement of a webhook job: if the reported job has ended again meanwhile, the
    /// webhook is postponed and reports that end too.
    pub(super) fn resolve_settlement(&self, settlement: Settlement) -> Settlement {
        let latest_end_us = self
            .webhook_event
            .as_ref()
            .and_then(|end_event| end_event.split(' ').nth(2)?.parse().ok());
        match settlement {
            Settlement::WebhookSettled { ended_us, .. }
                if latest_end_us.is_some_and(|latest_end_us: u64| latest_end_us != ended_us) =>
            {
                Settlement::Postpone { delay: Duration::from_millis(1), reason: "ended again" }
            }
            Settlement::WebhookSettled {
                response: Some((response, status)), retention, ..
            } => Settlement::Done { response, status, retention },
            settlement => settlement,
        }
    }

    /// Returns the job to its queue. A run that is not charged does not count as an attempt.
    pub(super) fn return_to_queue(&mut self, reason: &'static str, is_charged: bool) {
        (self.state, self.reason) = (JobState::Queued, reason);
        self.attempts = self.attempts.saturating_sub(u32::from(!is_charged));
    }

    /// Adds a run to the history.
    pub(super) fn record_run(&mut self, now_us: u64, outcome: &str) {
        if self.recent_runs.len() == MAX_RECENT_RUNS {
            self.recent_runs.remove(0);
        }
        self.recent_runs.push(format!("{} {} {now_us} {outcome}", self.attempts, self.started_us));
    }

    /// Returns the state and reason that end the job instead of a run: it was running and its
    /// worker crashed, or its deadline has passed.
    pub(super) fn unrunnable_outcome(&self, now: u64) -> Option<(JobState, &'static str)> {
        if self.state == JobState::Running
            && (!self.retry_after_crash || self.attempts >= self.max_attempts)
        {
            return Some((JobState::Dead, "crashed, may have run"));
        }
        let is_expired = self.deadline_ms.is_some_and(|deadline_ms| deadline_ms <= now);
        is_expired.then_some((JobState::Expired, "deadline"))
    }

    /// Returns the part of the view that the record contains.
    pub(super) fn to_view(&self) -> JobView {
        JobView {
            state: self.state,
            attempts: self.attempts,
            position: None,
            reason: Some(self.reason.to_owned()).filter(|reason| !reason.is_empty()),
            owner: self.owner.clone(),
            is_watched: false,
            response: None,
            is_tombstone: self.is_tombstone,
            history: JobHistory {
                lock: Some(self.lock.clone()),
                route: Some(self.route.clone()).filter(|route| !route.is_empty()),
                bytes: self.bytes,
                accepted_us: self.accepted_us,
                started_us: self.started_us,
                ended_us: self.ended_us,
                crash_count: self.crash_count,
                busy_count: self.busy_count,
                due_in: None,
                recent_runs: self.recent_runs.clone(),
                superseded_by: self.superseded_by.clone(),
                webhook_event: None,
            },
        }
    }
}
