//! Checks of `fsck_jobs.lua` on the data of this process. They find bugs of the operations.
//!
//! A submodule of `store::memory`, because it reads private data of the embedded store.

use std::collections::HashMap;

use super::{
    job_record::JobRecord,
    lock_holders_and_queue::LockHoldersAndQueue,
    memory_shard::{MemoryShard, ServerTime},
    shard_state::JobTotals,
};
use crate::{
    key::Key,
    store::{
        backend::{JobId, JobState, LockMode},
        fsck::{CheckFinding, FindingKind},
    },
};

/// Maximum delay of a poll of a free lock, in ms.
const MAX_DUE_DELAY_MS: u64 = 10_000;

/// Check of one shard.
struct MemoryShardFsck<'a> {
    shard: &'a MemoryShard,
    shard_number: u16,
    now: ServerTime,
    examined: u64,
    findings: Vec<CheckFinding>,
}

impl MemoryShard {
    /// Returns the number of examined values, and the findings.
    pub(super) fn check_consistency(
        &self,
        number: u16,
        now: ServerTime,
    ) -> (u64, Vec<CheckFinding>) {
        let mut fsck = MemoryShardFsck {
            shard: self,
            shard_number: number,
            now,
            examined: 0,
            findings: Vec::new(),
        };
        self.jobs.iter_live(now.ms).for_each(|(id, job)| fsck.check_job(id, job));
        self.locks.iter_live(now.ms).for_each(|(key, lock)| fsck.check_lock(key, lock));
        fsck.check_indexes();
        fsck.check_totals();
        (fsck.examined, fsck.findings)
    }
}

impl MemoryShardFsck<'_> {
    fn report_with_detail(&mut self, kind: FindingKind, name: &str, detail: String) {
        let shard = Some(self.shard_number);
        self.findings.push(CheckFinding {
            kind,
            shard,
            name: name.to_owned(),
            detail,
            repaired: false,
        });
    }

    fn report(&mut self, kind: FindingKind, name: &str) {
        self.report_with_detail(kind, name, String::new());
    }

    fn check_job(&mut self, id: &JobId, job: &JobRecord) {
        self.examined += 1;
        let (state, name) = (&self.shard.state, id.as_str());
        let has_expiry = self.shard.jobs.expiry_of(id).is_some();
        let lock = self.shard.locks.get(&job.lock, self.now.ms);
        let is_queued = lock.is_some_and(|lock| lock.jobs.contains(&(job.seq, id.clone())));
        let is_delayed = state.delayed_jobs.get(id).is_some();
        let has_deadline_entry = state.deadline_index.get(id).is_some();
        if !job.state.is_pending() || job.is_direct {
            if is_queued || is_delayed {
                self.report(FindingKind::EndedJobInIndex, name);
            }
            if !has_expiry {
                self.report(FindingKind::MissingExpiry, name);
            }
            return;
        }
        match (is_queued, is_delayed) {
            (false, false) => self.report(FindingKind::JobNotQueued, name),
            (true, true) => self.report(FindingKind::JobIndexedTwice, name),
            _ => {}
        }
        if has_expiry {
            self.report(FindingKind::UnexpectedExpiry, name);
        }
        if job.deadline_ms.is_some_and(|deadline_ms| deadline_ms > self.now.ms)
            && !has_deadline_entry
        {
            self.report(FindingKind::DeadlineNotIndexed, name);
        }
    }

    fn check_lock(&mut self, key: &Key, lock: &LockHoldersAndQueue) {
        self.examined += 1;
        let (name, now) = (key.as_str(), self.now.ms);
        let due = self.shard.state.due_index.get(key);
        let Some((_, first_id)) = lock.jobs.first() else {
            if due.is_some() {
                self.report(FindingKind::ScheduledLockWithoutJobs, name);
            }
            return;
        };
        let last_deadline = lock.holders.iter().map(|(_, deadline)| *deadline).max();
        let held_until_ms = last_deadline.filter(|deadline| *deadline > now);
        let backoff_end_ms = lock.backoffs.end_of(first_id);
        match due {
            None => self.report(FindingKind::LockNotScheduled, name),
            Some(due)
                if held_until_ms.is_none()
                    && due > backoff_end_ms.unwrap_or(0).max(now) + MAX_DUE_DELAY_MS =>
            {
                self.report(FindingKind::LockScheduledTooLate, name);
            }
            Some(_) => {}
        }
        self.check_queued_jobs(key, lock);
        self.check_holders(key, lock);
    }

    fn check_queued_jobs(&mut self, key: &Key, lock: &LockHoldersAndQueue) {
        let (name, now) = (key.as_str(), self.now.ms);
        let mut bytes = 0;
        for (seq, id) in &lock.jobs {
            match self.shard.jobs.get(id, now) {
                Some(job) if job.lock != *key || job.seq != *seq => {
                    self.report(FindingKind::InvalidValue, id.as_str());
                }
                Some(job) => bytes += job.bytes,
                None => self.report(FindingKind::IndexEntryWithoutJob, id.as_str()),
            }
        }
        if bytes != lock.job_bytes {
            self.report_with_detail(
                FindingKind::WrongCount,
                name,
                format!("{} for {bytes}", lock.job_bytes),
            );
        }
    }

    fn check_holders(&mut self, key: &Key, lock: &LockHoldersAndQueue) {
        let (name, now) = (key.as_str(), self.now.ms);
        let exclusive = LockMode::Exclusive.wire_letter();
        let mut live_holders = lock.holders.iter().filter(|(_, deadline)| *deadline > now);
        if live_holders.clone().count() > 1
            && live_holders.any(|(member, _)| member.mode_letter() == exclusive)
        {
            self.report_with_detail(
                FindingKind::InvalidValue,
                name,
                "two holders that exclude each other".to_owned(),
            );
        }
    }

    fn check_indexes(&mut self) {
        let state = &self.shard.state;
        let now = self.now;
        let job = |id: &JobId| self.shard.jobs.get(id, now.ms);
        let is_pending = |id: &JobId| job(id).is_some_and(|job| job.state.is_pending());
        let mut dangling_ids = Vec::new();
        let pending =
            state.delayed_jobs.iter().chain(state.deadline_index.iter()).map(|(_, id)| id);
        dangling_ids.extend(pending.filter(|id| !is_pending(id)).cloned());
        for (index, ended_state) in
            [(&state.done_jobs, JobState::Done), (&state.dead_jobs, JobState::Dead)]
        {
            // As in the script: a job that ends at this moment may expire before its entry.
            let entries = index.iter_from(now.us + 1_000_000, now.us).map(|(_, id)| id);
            let is_right = |job: &JobRecord| job.state == ended_state && !job.is_tombstone;
            dangling_ids.extend(entries.filter(|id| !job(id).is_some_and(is_right)).cloned());
        }
        dangling_ids
            .iter()
            .for_each(|id| self.report(FindingKind::IndexEntryWithoutJob, id.as_str()));
        let has_no_jobs =
            |key: &&Key| self.shard.locks.get(key, now.ms).is_none_or(|lock| lock.jobs.is_empty());
        let idle_locks: Vec<_> =
            state.due_index.iter().map(|(_, key)| key).filter(has_no_jobs).cloned().collect();
        idle_locks
            .iter()
            .for_each(|key| self.report(FindingKind::ScheduledLockWithoutJobs, key.as_str()));
    }

    fn check_totals(&mut self) {
        let state = &self.shard.state;
        let is_pending = |job: &&JobRecord| job.state.is_pending() && !job.is_direct;
        let pending =
            || self.shard.jobs.iter_live(self.now.ms).map(|(_, job)| job).filter(is_pending);
        let actual = (pending().count() as u64, pending().map(|job| job.bytes).sum::<u64>());
        if actual != (state.job_count, state.job_bytes) {
            let detail = format!("{:?} for {actual:?}", (state.job_count, state.job_bytes));
            self.report_with_detail(FindingKind::WrongCount, "f", detail);
        }
        if !state.done_jobs.is_consistent() || !state.dead_jobs.is_consistent() {
            self.report(FindingKind::WrongCount, "donebytes");
        }
        let mut delayed_totals = HashMap::<Key, JobTotals>::new();
        for (_, id) in self.shard.state.delayed_jobs.iter() {
            if let Some(job) = self.shard.jobs.get(id, self.now.ms) {
                delayed_totals.entry(job.lock.clone()).or_default().add_job(job.bytes);
            }
        }
        if delayed_totals != self.shard.state.delayed_totals {
            self.report(FindingKind::WrongCount, "lates");
        }
    }
}
