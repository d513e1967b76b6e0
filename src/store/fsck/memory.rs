//! `fsck.lua`: the same looks, on structures of this process. They find what a step has done wrong.
//!
//! A module of `memory`, whose structures it reads.

use super::{
    job::Job,
    line::Line,
    shard::{Now, Shard},
};
use crate::{
    key::Key,
    store::{
        backend::{JobId, JobState, LockMode},
        fsck::{Finding, FindingKind},
    },
};

/// How late a look at a free lock may be, ms.
const SLACK: u64 = 10_000;

struct Look<'a> {
    shard: &'a Shard,
    number: u16,
    now: Now,
    looked: u64,
    found: Vec<Finding>,
}

impl Shard {
    /// How much was looked at, and what is wrong.
    pub(super) fn fsck(&self, number: u16, now: Now) -> (u64, Vec<Finding>) {
        let mut look = Look { shard: self, number, now, looked: 0, found: Vec::new() };
        self.jobs.iter(now.ms).for_each(|(id, job)| look.at_job(id, job));
        self.lines.iter(now.ms).for_each(|(key, line)| look.at_line(key, line));
        look.at_indexes();
        look.at_sums();
        (look.looked, look.found)
    }
}

impl Look<'_> {
    fn find(&mut self, kind: FindingKind, name: &str, detail: String) {
        let shard = Some(self.number);
        self.found.push(Finding { kind, shard, name: name.to_owned(), detail, mended: false });
    }

    fn wrong(&mut self, kind: FindingKind, name: &str) {
        self.find(kind, name, String::new());
    }

    fn at_job(&mut self, id: &JobId, job: &Job) {
        self.looked += 1;
        let (facts, name) = (&self.shard.facts, id.as_str());
        let ends = self.shard.jobs.end_of(id).is_some();
        let line = self.shard.lines.get(&job.lock, self.now.ms);
        let stands = line.is_some_and(|line| line.jobs.contains(&(job.seq, id.clone())));
        let late = facts.late.get(id).is_some();
        let indexed = facts.exp.get(id).is_some();
        if !job.state.is_pending() || job.direct {
            if stands || late {
                self.wrong(FindingKind::EndedJobInIndex, name);
            }
            if !ends {
                self.wrong(FindingKind::NoEnd, name);
            }
            return;
        }
        match (stands, late) {
            (false, false) => self.wrong(FindingKind::JobWithoutPlace, name),
            (true, true) => self.wrong(FindingKind::JobInTwoPlaces, name),
            _ => {}
        }
        if ends {
            self.wrong(FindingKind::HasEnd, name);
        }
        if job.exp.is_some_and(|exp| exp > self.now.ms) && !indexed {
            self.wrong(FindingKind::DeadlineNotIndexed, name);
        }
    }

    fn at_line(&mut self, key: &Key, line: &Line) {
        self.looked += 1;
        let (name, now) = (key.as_str(), self.now.ms);
        let due = self.shard.facts.due.get(key);
        let Some((_, first)) = line.jobs.first() else {
            if due.is_some() {
                self.wrong(FindingKind::DueWithoutJobs, name);
            }
            return;
        };
        let held = line.holders.iter().map(|(_, end)| *end).max().filter(|end| *end > now);
        let back = line.back.of(first);
        match due {
            None => self.wrong(FindingKind::LineNotDue, name),
            Some(due) if held.is_none() && due > back.unwrap_or(0).max(now) + SLACK => {
                self.wrong(FindingKind::LineDueTooLate, name);
            }
            Some(_) => {}
        }
        let mut bytes = 0;
        for (seq, id) in &line.jobs {
            match self.shard.jobs.get(id, now) {
                Some(job) if job.lock != *key || job.seq != *seq => {
                    self.wrong(FindingKind::Odd, id.as_str());
                }
                Some(job) => bytes += job.bytes,
                None => self.wrong(FindingKind::PlaceWithoutJob, id.as_str()),
            }
        }
        if bytes != line.bytes {
            self.find(FindingKind::WrongTally, name, format!("{} for {bytes}", line.bytes));
        }
        let exclusive = LockMode::Exclusive.wire_letter();
        let mut live = line.holders.iter().filter(|(_, end)| *end > now);
        if live.clone().count() > 1 && live.any(|(member, _)| member.letter() == exclusive) {
            self.find(FindingKind::Odd, name, "two who exclude each other".to_owned());
        }
    }

    fn at_indexes(&mut self) {
        let facts = &self.shard.facts;
        let now = self.now;
        let job = |id: &JobId| self.shard.jobs.get(id, now.ms);
        let waits = |id: &JobId| job(id).is_some_and(|job| job.state.is_pending());
        let mut lost = Vec::new();
        let pending = facts.late.iter().chain(facts.exp.iter()).map(|(_, id)| id);
        lost.extend(pending.filter(|id| !waits(id)).cloned());
        for (index, state) in [(&facts.done, JobState::Done), (&facts.dead, JobState::Dead)] {
            // As in the script: what ends in this moment may have gone before its entry.
            let kept = index.from(now.us + 1_000_000, now.us).map(|(_, id)| id);
            let is_right = |job: &Job| job.state == state && !job.gone;
            lost.extend(kept.filter(|id| !job(id).is_some_and(is_right)).cloned());
        }
        lost.iter().for_each(|id| self.wrong(FindingKind::PlaceWithoutJob, id.as_str()));
        let idle = |key: &&Key| self.shard.lines.get(key, now.ms).is_none_or(|l| l.jobs.is_empty());
        let idle: Vec<_> = facts.due.iter().map(|(_, key)| key).filter(idle).cloned().collect();
        idle.iter().for_each(|key| self.wrong(FindingKind::DueWithoutJobs, key.as_str()));
    }

    fn at_sums(&mut self) {
        let facts = &self.shard.facts;
        let waits = |job: &&Job| job.state.is_pending() && !job.direct;
        let pending = || self.shard.jobs.iter(self.now.ms).map(|(_, job)| job).filter(waits);
        let there = (pending().count() as u64, pending().map(|job| job.bytes).sum::<u64>());
        if there != (facts.jobs, facts.bytes) {
            let detail = format!("{:?} for {there:?}", (facts.jobs, facts.bytes));
            self.find(FindingKind::WrongTally, "f", detail);
        }
        if !facts.done.is_sound() || !facts.dead.is_sound() {
            self.wrong(FindingKind::WrongTally, "donebytes");
        }
        let mut lates = std::collections::HashMap::<Key, (u64, u64)>::new();
        for (_, id) in self.shard.facts.late.iter() {
            if let Some(job) = self.shard.jobs.get(id, self.now.ms) {
                let (jobs, bytes) = lates.entry(job.lock.clone()).or_default();
                (*jobs, *bytes) = (*jobs + 1, *bytes + job.bytes);
            }
        }
        if lates != self.shard.facts.lates {
            self.wrong(FindingKind::WrongTally, "lates");
        }
    }
}
