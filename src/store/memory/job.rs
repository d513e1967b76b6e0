//! A job, as a shard keeps it.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;

use super::shard::Now;
use crate::{
    clock::millis,
    key::Key,
    store::backend::{WebhookJobSpec, JobId, JobState, LockToken, Settlement},
};

/// How long it is known of a job at least that it was stored.
const COPIES: Duration = Duration::from_secs(60);

/// The keys j, b and r of a job in one: they get their TTL together.
pub(super) struct Job {
    pub(super) lock: Key,
    pub(super) seq: u64,
    pub(super) state: JobState,
    /// The run token; it stays when the run has ended, so that settling twice is the same as once.
    pub(super) run: Option<LockToken>,
    /// The first that its last run was given.
    pub(super) fence: u64,
    pub(super) attempts: u32,
    pub(super) max_attempts: u32,
    pub(super) again: bool,
    pub(super) reason: &'static str,
    pub(super) owner: String,
    /// Its idempotency record, and those of requests that were merged into it; until when each is there at least,
    /// whatever becomes of the job.
    pub(super) records: Vec<(Arc<str>, u64)>,
    /// Who is told of its end.
    pub(super) call: Option<WebhookJobSpec>,
    pub(super) accepted_us: u64,
    pub(super) bytes: u64,
    pub(super) envelope: Bytes,
    pub(super) response: Option<Bytes>,
    /// Of that response, or 0.
    pub(super) status: u16,
    /// Of a call: the end that it tells of.
    pub(super) tells: Option<String>,
    /// Its deadline.
    pub(super) exp: Option<u64>,
    /// Others may pass it while it waits for its retry.
    pub(super) skip: bool,
    /// The job that has superseded it.
    pub(super) by: Option<JobId>,
    /// It ran at once, and stands in no line.
    pub(super) direct: bool,
    /// Of such a run: by when its process renews it, in ms.
    pub(super) til: u64,
    /// It was evicted or purged: this is its tombstone.
    pub(super) gone: bool,
    /// When its last run began, and when it ended for good.
    pub(super) began_us: u64,
    pub(super) ended_us: u64,
    pub(super) crashes: u32,
    pub(super) busy: u32,
    /// Its history.
    pub(super) runs: Vec<String>,
}

impl Job {
    /// What is the same of all at first.
    pub(super) fn new(lock: &Key, now: Now) -> Self {
        Self {
            lock: lock.clone(),
            seq: 0,
            state: JobState::Queued,
            run: None,
            fence: 0,
            attempts: 0,
            max_attempts: 1,
            again: false,
            reason: "",
            owner: String::new(),
            records: Vec::new(),
            call: None,
            accepted_us: now.us,
            bytes: 0,
            envelope: Bytes::new(),
            response: None,
            status: 0,
            tells: None,
            exp: None,
            skip: false,
            by: None,
            direct: false,
            til: 0,
            gone: false,
            began_us: 0,
            ended_us: 0,
            crashes: 0,
            busy: 0,
            runs: Vec::new(),
        }
    }

    pub(super) fn ends(&mut self, state: JobState, reason: &'static str, now_us: u64) {
        (self.state, self.reason, self.ended_us) = (state, reason, now_us);
    }

    /// Drops all that a tombstone does not tell.
    pub(super) fn entomb(&mut self, now: Now) {
        let Self { state, reason, accepted_us, ended_us, .. } = *self;
        let owner = std::mem::take(&mut self.owner);
        let tomb = Self { gone: true, state, reason, owner, ..Self::new(&self.lock, now) };
        *self = Self { accepted_us, ended_us, ..tomb };
    }

    /// Until when it must stay known that it was stored: a copy of the call that stored it may come yet.
    pub(super) fn known_until(&self) -> u64 {
        self.accepted_us / 1000 + millis(COPIES)
    }

    /// What a call tells of its end.
    pub(super) fn end(&self) -> String {
        let Self { state, attempts, ended_us, status, reason, .. } = self;
        format!("{} {attempts} {ended_us} {status} {reason}", state.as_str())
    }

    /// What the end of a call comes to: another end may have come that it has to tell of.
    pub(super) fn told(&self, verdict: Settlement) -> Settlement {
        let last = self.tells.as_ref().and_then(|end| end.split(' ').nth(2)?.parse().ok());
        match verdict {
            Settlement::WebhookSettled { ended_us, .. } if last.is_some_and(|last: u64| last != ended_us) => {
                Settlement::Postpone { delay: Duration::from_millis(1), reason: "ended again" }
            }
            Settlement::WebhookSettled { response: Some((response, status)), retention, .. } => {
                Settlement::Done { response, status, retention }
            }
            other => other,
        }
    }

    /// It will run again; what is not charged was no attempt.
    pub(super) fn waits(&mut self, reason: &'static str, charged: bool) {
        (self.state, self.reason) = (JobState::Queued, reason);
        self.attempts = self.attempts.saturating_sub(u32::from(!charged));
    }
}
