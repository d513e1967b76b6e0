//! One shard: everything that one step may touch, behind one mutex.

use std::time::Duration;

use bytes::Bytes;

use super::{
    ends::Expiring,
    facts::Facts,
    job::Job,
    line::{Line, Member},
    post::Mail,
    rate::{Kept, Name},
    visit::{RecordName, Visit},
};
use crate::{
    key::Key,
    store::backend::{JobId, LockMode, LeaseRenewal, LockToken},
};

/// Values of each kind that a step looks at for their end. It makes fewer, so what has ended goes
/// away faster than it comes.
pub(super) const SWEEP: usize = 4;

/// The time of a step: TIME is read once, at its beginning.
#[derive(Clone, Copy)]
pub(super) struct Now {
    pub(super) us: u64,
    pub(super) ms: u64,
}

impl Now {
    pub(super) fn of(us: u64) -> Self {
        Self { us, ms: us / 1000 }
    }

    /// When this time has passed: what is delayed must not come sooner.
    pub(super) fn not_before(self, delay: Duration) -> u64 {
        self.us.div_ceil(1000).saturating_add(crate::clock::millis(delay))
    }

    /// The deadline of what lasts this long from now.
    pub(super) fn after(self, time: Duration) -> u64 {
        self.ms.saturating_add(crate::clock::millis(time))
    }
}

#[derive(Default)]
pub(super) struct Shard {
    pub(super) lines: Expiring<Key, Line>,
    pub(super) jobs: Expiring<JobId, Job>,
    /// Idempotency records: the job, and the fingerprint of the request that made it.
    pub(super) records: Expiring<RecordName, (JobId, String)>,
    pub(super) counters: Expiring<Name, Kept>,
    /// How many debts have begun: their names.
    pub(super) debts: u64,
    pub(super) facts: Facts,
}

impl Shard {
    /// A step about one line: makes it if need be, and removes it if the step has left nothing.
    pub(super) fn visit<T>(
        &mut self,
        key: &Key,
        now: Now,
        post: &mut Vec<Mail>,
        step: impl FnOnce(&mut Visit<'_>) -> T,
    ) -> T {
        let line = self.lines.get_or_default(key);
        line.expire(now);
        let mut visit = Visit {
            key,
            line,
            facts: &mut self.facts,
            jobs: &mut self.jobs,
            records: &mut self.records,
            post,
            now,
        };
        let answer = step(&mut visit);
        if line.is_empty() {
            self.lines.remove(key);
        } else {
            let end = line.end();
            self.lines.end_at(key, end);
        }
        self.stand_calls(now, post);
        self.sweep(now);
        answer
    }

    /// What the step before has ended is told of: each call has a line of its own.
    fn stand_calls(&mut self, now: Now, post: &mut Vec<Mail>) {
        for (call, end, owner) in std::mem::take(&mut self.facts.calls) {
            self.visit(&call.key.clone(), now, post, |visit| visit.stand_call(call, end, owner));
        }
    }

    pub(super) fn sweep(&mut self, now: Now) {
        self.lines.sweep(now.ms, SWEEP);
        self.jobs.sweep(now.ms, SWEEP);
        self.records.sweep(now.ms, SWEEP);
        self.facts.groups.sweep(now.ms, SWEEP);
        self.facts.merged.sweep(now.ms, SWEEP);
        self.facts.tombs.sweep(now.ms, SWEEP);
        self.facts.records.sweep(now.ms, SWEEP);
        self.facts.done.trim(now.us);
        self.facts.dead.trim(now.us);
    }

    /// `renew.lua`, one item.
    pub(super) fn renew(&mut self, item: &LeaseRenewal, now: Now) -> bool {
        let until = now.after(item.lease);
        let Some(line) = self.lines.get_mut(&item.key, now.ms) else {
            return false;
        };
        line.expire(now);
        let Some(until) = line.extend(&item.token, item.mode, now, until) else {
            return false;
        };
        let end = line.end();
        self.lines.end_at(&item.key, end);
        if let Some(id) = &item.job {
            let runs = |job: &Job| job.run.as_ref() == Some(&item.token);
            if self.jobs.get(id, now.ms).is_some_and(runs) {
                self.facts.due.set(&item.key, until);
            }
        }
        true
    }

    /// `raise.lua`.
    pub(super) fn raise_fence(&mut self, key: &Key, me: &LockToken, fence: u64, now: Now) -> bool {
        let member = Member::holds(LockMode::Exclusive, me);
        let deadline = self.lines.get(key, now.ms).and_then(|line| line.deadline(&member));
        let held = deadline.is_some_and(|deadline| deadline > now.ms);
        if held {
            self.facts.fence = self.facts.fence.max(fence);
        }
        held
    }

    /// Nothing once the job has ended well, as where the request has a key of its own.
    pub(super) fn envelope(&self, id: &JobId, now: Now) -> Option<Bytes> {
        let envelope = &self.jobs.get(id, now.ms)?.envelope;
        Some(envelope.clone()).filter(|envelope| !envelope.is_empty())
    }

    pub(super) fn lock_of(&self, id: &JobId, now: Now) -> Option<Key> {
        self.jobs.get(id, now.ms).map(|job| job.lock.clone())
    }

    pub(super) fn head(&self, key: &Key, now: Now) -> Option<JobId> {
        let (_, id) = self.lines.get(key, now.ms)?.first_job()?;
        Some(id.clone())
    }

    /// Values in here, of all kinds.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        let (groups, merged) = (self.facts.groups.len(), self.facts.merged.len());
        let merges = groups + merged + self.facts.tombs.len() + self.facts.records.len();
        let kept = self.lines.len() + self.jobs.len() + self.records.len() + self.counters.len();
        kept + merges + self.facts.indexed() + self.facts.done.len() + self.facts.dead.len()
    }

    #[cfg(test)]
    pub(super) fn lasting(&self) -> usize {
        let endless = [self.lines.endless(), self.jobs.endless()];
        endless.iter().sum::<usize>()
            + self.records.endless()
            + self.counters.endless()
            + self.facts.indexed()
    }

    #[cfg(test)]
    pub(super) fn counted(&self, key: &Key) -> [u64; 3] {
        let line = self.lines.get(key, 0).map_or(0, |line| line.bytes);
        [self.facts.jobs, self.facts.bytes, line]
    }
}
