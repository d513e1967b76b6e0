//! Checks of `fsck_jobs.lua` on the data of this process. They find bugs of the operations.
//!
//! A submodule of `store::memory`, because it reads private data of the embedded store.

use super::{
    job_record::JobRecord,
    lock_state::LockState,
    memory_shard::{MemoryShard, ServerTime},
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
        let mut look = MemoryShardFsck {
            shard: self,
            shard_number: number,
            now,
            examined: 0,
            findings: Vec::new(),
        };
        self.jobs.iter_live(now.ms).for_each(|(id, job)| look.check_job(id, job));
        self.locks.iter_live(now.ms).for_each(|(key, line)| look.check_lock(key, line));
        look.check_indexes();
        look.check_totals();
        (look.examined, look.findings)
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
        let (facts, name) = (&self.shard.state, id.as_str());
        let ends = self.shard.jobs.expiry_of(id).is_some();
        let line = self.shard.locks.get(&job.lock, self.now.ms);
        let stands = line.is_some_and(|line| line.jobs.contains(&(job.seq, id.clone())));
        let late = facts.delayed_jobs.get(id).is_some();
        let indexed = facts.deadline_index.get(id).is_some();
        if !job.state.is_pending() || job.is_direct {
            if stands || late {
                self.report(FindingKind::EndedJobInIndex, name);
            }
            if !ends {
                self.report(FindingKind::MissingExpiry, name);
            }
            return;
        }
        match (stands, late) {
            (false, false) => self.report(FindingKind::JobNotQueued, name),
            (true, true) => self.report(FindingKind::JobIndexedTwice, name),
            _ => {}
        }
        if ends {
            self.report(FindingKind::UnexpectedExpiry, name);
        }
        if job.deadline_ms.is_some_and(|exp| exp > self.now.ms) && !indexed {
            self.report(FindingKind::DeadlineNotIndexed, name);
        }
    }

    fn check_lock(&mut self, key: &Key, line: &LockState) {
        self.examined += 1;
        let (name, now) = (key.as_str(), self.now.ms);
        let due = self.shard.state.due_index.get(key);
        let Some((_, first)) = line.jobs.first() else {
            if due.is_some() {
                self.report(FindingKind::ScheduledLockWithoutJobs, name);
            }
            return;
        };
        let held = line.holders.iter().map(|(_, end)| *end).max().filter(|end| *end > now);
        let back = line.backoffs.end_of(first);
        match due {
            None => self.report(FindingKind::LockNotScheduled, name),
            Some(due) if held.is_none() && due > back.unwrap_or(0).max(now) + MAX_DUE_DELAY_MS => {
                self.report(FindingKind::LockScheduledTooLate, name);
            }
            Some(_) => {}
        }
        let mut bytes = 0;
        for (seq, id) in &line.jobs {
            match self.shard.jobs.get(id, now) {
                Some(job) if job.lock != *key || job.seq != *seq => {
                    self.report(FindingKind::InvalidValue, id.as_str());
                }
                Some(job) => bytes += job.bytes,
                None => self.report(FindingKind::IndexEntryWithoutJob, id.as_str()),
            }
        }
        if bytes != line.job_bytes {
            self.report_with_detail(
                FindingKind::WrongCount,
                name,
                format!("{} for {bytes}", line.job_bytes),
            );
        }
        let exclusive = LockMode::Exclusive.wire_letter();
        let mut live = line.holders.iter().filter(|(_, end)| *end > now);
        if live.clone().count() > 1 && live.any(|(member, _)| member.mode_letter() == exclusive) {
            self.report_with_detail(
                FindingKind::InvalidValue,
                name,
                "two holders that exclude each other".to_owned(),
            );
        }
    }

    fn check_indexes(&mut self) {
        let facts = &self.shard.state;
        let now = self.now;
        let job = |id: &JobId| self.shard.jobs.get(id, now.ms);
        let waits = |id: &JobId| job(id).is_some_and(|job| job.state.is_pending());
        let mut lost = Vec::new();
        let pending =
            facts.delayed_jobs.iter().chain(facts.deadline_index.iter()).map(|(_, id)| id);
        lost.extend(pending.filter(|id| !waits(id)).cloned());
        for (index, state) in
            [(&facts.done_jobs, JobState::Done), (&facts.dead_jobs, JobState::Dead)]
        {
            // As in the script: a job that ends at this moment may expire before its entry.
            let kept = index.iter_from(now.us + 1_000_000, now.us).map(|(_, id)| id);
            let is_right = |job: &JobRecord| job.state == state && !job.is_tombstone;
            lost.extend(kept.filter(|id| !job(id).is_some_and(is_right)).cloned());
        }
        lost.iter().for_each(|id| self.report(FindingKind::IndexEntryWithoutJob, id.as_str()));
        let idle = |key: &&Key| self.shard.locks.get(key, now.ms).is_none_or(|l| l.jobs.is_empty());
        let idle: Vec<_> =
            facts.due_index.iter().map(|(_, key)| key).filter(idle).cloned().collect();
        idle.iter()
            .for_each(|key| self.report(FindingKind::ScheduledLockWithoutJobs, key.as_str()));
    }

    fn check_totals(&mut self) {
        let facts = &self.shard.state;
        let waits = |job: &&JobRecord| job.state.is_pending() && !job.is_direct;
        let pending = || self.shard.jobs.iter_live(self.now.ms).map(|(_, job)| job).filter(waits);
        let there = (pending().count() as u64, pending().map(|job| job.bytes).sum::<u64>());
        if there != (facts.job_count, facts.job_bytes) {
            let detail = format!("{:?} for {there:?}", (facts.job_count, facts.job_bytes));
            self.report_with_detail(FindingKind::WrongCount, "f", detail);
        }
        if !facts.done_jobs.is_consistent() || !facts.dead_jobs.is_consistent() {
            self.report(FindingKind::WrongCount, "donebytes");
        }
        let mut lates = std::collections::HashMap::<Key, (u64, u64)>::new();
        for (_, id) in self.shard.state.delayed_jobs.iter() {
            if let Some(job) = self.shard.jobs.get(id, self.now.ms) {
                let (jobs, bytes) = lates.entry(job.lock.clone()).or_default();
                (*jobs, *bytes) = (*jobs + 1, *bytes + job.bytes);
            }
        }
        if lates != self.shard.state.delayed_totals {
            self.report(FindingKind::WrongCount, "lates");
        }
    }
}
