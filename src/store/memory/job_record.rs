//! A job, as a shard keeps it.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;

use super::memory_shard::ServerTime;
use crate::{
    clock::ceil_millis,
    key::Key,
    store::backend::{JobId, JobState, LockToken, Settlement, WebhookJobSpec},
};

/// How long it is known of a job at least that it was stored.
const DUPLICATE_CALL_WINDOW: Duration = Duration::from_secs(60);

/// The keys j, b and r of a job in one: they get their TTL together.
pub(super) struct JobRecord {
    pub(super) lock: Key,
    pub(super) seq: u64,
    pub(super) state: JobState,
    /// The run token; it stays when the run has ended, so that settling twice is the same as once.
    pub(super) run_token: Option<LockToken>,
    /// The first that its last run was given.
    pub(super) first_fence: u64,
    pub(super) attempts: u32,
    pub(super) max_attempts: u32,
    pub(super) retry_after_crash: bool,
    pub(super) reason: &'static str,
    pub(super) owner: String,
    /// Its idempotency record, and those of requests that were merged into it; until when each is there at least,
    /// whatever becomes of the job.
    pub(super) idempotency_records: Vec<(Arc<str>, u64)>,
    /// Who is told of its end.
    pub(super) webhook: Option<WebhookJobSpec>,
    pub(super) accepted_us: u64,
    pub(super) bytes: u64,
    pub(super) envelope: Bytes,
    pub(super) response: Option<Bytes>,
    /// Of that response, or 0.
    pub(super) response_status: u16,
    /// Of a call: the end that it tells of.
    pub(super) webhook_event: Option<String>,
    /// Its deadline.
    pub(super) deadline_ms: Option<u64>,
    /// Others may pass it while it waits for its retry.
    pub(super) allows_overtaking: bool,
    /// The job that has superseded it.
    pub(super) superseded_by: Option<JobId>,
    /// It ran at once, and stands in no line.
    pub(super) is_direct: bool,
    /// Of such a run: by when its process renews it, in ms.
    pub(super) direct_lease_ms: u64,
    /// It was evicted or purged: this is its tombstone.
    pub(super) is_tombstone: bool,
    /// When its last run began, and when it ended for good.
    pub(super) started_us: u64,
    pub(super) ended_us: u64,
    pub(super) crash_count: u32,
    pub(super) busy_count: u32,
    /// Its history.
    pub(super) recent_runs: Vec<String>,
}

impl JobRecord {
    /// What is the same of all at first.
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

    /// Drops all that a tombstone does not tell.
    pub(super) fn reduce_to_tombstone(&mut self, now: ServerTime) {
        let Self { state, reason, accepted_us, ended_us, .. } = *self;
        let owner = std::mem::take(&mut self.owner);
        let tomb = Self { is_tombstone: true, state, reason, owner, ..Self::new(&self.lock, now) };
        *self = Self { accepted_us, ended_us, ..tomb };
    }

    /// Until when it must stay known that it was stored: a copy of the call that stored it may come yet.
    pub(super) fn duplicate_window_end(&self) -> u64 {
        self.accepted_us / 1000 + ceil_millis(DUPLICATE_CALL_WINDOW)
    }

    /// What a call tells of its end.
    pub(super) fn end_event(&self) -> String {
        let Self { state, attempts, ended_us, response_status: status, reason, .. } = self;
        format!("{} {attempts} {ended_us} {status} {reason}", state.as_str())
    }

    /// What the end of a call comes to: another end may have come that it has to tell of.
    pub(super) fn resolve_settlement(&self, verdict: Settlement) -> Settlement {
        let last = self.webhook_event.as_ref().and_then(|end| end.split(' ').nth(2)?.parse().ok());
        match verdict {
            Settlement::WebhookSettled { ended_us, .. }
                if last.is_some_and(|last: u64| last != ended_us) =>
            {
                Settlement::Postpone { delay: Duration::from_millis(1), reason: "ended again" }
            }
            Settlement::WebhookSettled {
                response: Some((response, status)), retention, ..
            } => Settlement::Done { response, status, retention },
            other => other,
        }
    }

    /// It will run again; what is not charged was no attempt.
    pub(super) fn return_to_queue(&mut self, reason: &'static str, charged: bool) {
        (self.state, self.reason) = (JobState::Queued, reason);
        self.attempts = self.attempts.saturating_sub(u32::from(!charged));
    }
}
