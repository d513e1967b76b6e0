//! One shard: everything that one step may touch, behind one mutex.

use std::{collections::HashMap, sync::Arc, time::Duration};

use bytes::Bytes;

use super::{
    ended::{DEAD, Ended, KEEP},
    ends::{Expiring, Index},
    line::{Line, Member},
    post::Mail,
    rate::{Kept, Name},
    visit::{RecordName, SCAN, Visit},
};
use crate::{
    key::Key,
    store::backend::{Call, Due, JobId, JobState, Mode, Renewal, Token},
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
    pub(super) facts: Facts,
}

/// What the lines of a shard share.
#[derive(Default)]
pub(super) struct Facts {
    /// When a worker should look at a lock that has jobs.
    pub(super) due: Index<Key>,
    /// The highest fence given, with the spare ones.
    pub(super) fence: u64,
    pub(super) seq: u64,
    pub(super) jobs: u64,
    pub(super) bytes: u64,
    /// The node whose worker watches this shard, and until when.
    watch: Option<(Arc<str>, u64)>,
    /// Left to the other workers, one of which will have taken it by then.
    left: u64,
    /// Jobs that wait outside of any line, and when they come back.
    pub(super) late: Index<JobId>,
    /// Number and bytes of those, of each lock that has any.
    pub(super) lates: HashMap<Key, (u64, u64)>,
    /// Jobs that have a deadline.
    pub(super) exp: Index<JobId>,
    /// Number and bytes of the jobs of each owner that wait or run.
    pub(super) owned: HashMap<String, (u64, u64)>,
    /// The latest job of each group of a lock.
    pub(super) groups: Expiring<RecordName, JobId>,
    /// What requests were merged into.
    pub(super) merged: Expiring<JobId, JobId>,
    /// Calls about jobs that this step has ended; each becomes a job when the step has left its line.
    pub(super) calls: Vec<Call>,
    /// Ended jobs that are kept.
    pub(super) done: Ended,
    pub(super) dead: Ended,
    /// Most bytes of each, if a layer has said it.
    pub(super) keep: Option<u64>,
    pub(super) expired: u64,
    pub(super) cancelled: u64,
}

impl Facts {
    pub(super) fn watcher(&self, now: Now) -> Option<&Arc<str>> {
        let live = self.watch.as_ref().filter(|(_, end)| now.ms < *end);
        live.map(|(node, _)| node)
    }

    /// Whether a worker watches the shard, or is about to.
    pub(super) fn is_manned(&self, now: Now) -> bool {
        self.watcher(now).is_some() || now.ms < self.left
    }

    /// One job more of the shard, and of its owner if it has one.
    pub(super) fn count(&mut self, owner: &str, bytes: u64) {
        self.jobs += 1;
        self.bytes += bytes;
        if !owner.is_empty() {
            let (jobs, used) = self.owned.entry(owner.to_owned()).or_default();
            (*jobs, *used) = (*jobs + 1, *used + bytes);
        }
    }

    /// One job less.
    pub(super) fn uncount(&mut self, owner: &str, bytes: u64) {
        self.jobs = self.jobs.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(bytes);
        if let Some((jobs, used)) = self.owned.get_mut(owner) {
            (*jobs, *used) = (jobs.saturating_sub(1), used.saturating_sub(bytes));
            if *jobs == 0 {
                self.owned.remove(owner);
            }
        }
    }

    /// Counts a job that has ended, and puts it into its index, with the bytes that are kept of it. Returns those
    /// that are kept no longer for it.
    pub(super) fn ended(
        &mut self,
        state: JobState,
        id: &JobId,
        (until_us, bytes): (u64, u64),
        now: Now,
    ) -> Vec<JobId> {
        let (index, most) = match state {
            JobState::Done => (&mut self.done, usize::MAX),
            JobState::Dead => (&mut self.dead, DEAD),
            JobState::Expired => {
                self.expired += 1;
                return Vec::new();
            }
            _ => {
                self.cancelled += 1;
                return Vec::new();
            }
        };
        index.file(id, until_us, bytes);
        index.trim(now.us);
        index.shed(id, most, self.keep.unwrap_or(KEEP))
    }

    /// Entries that somebody has to take out.
    #[cfg(test)]
    fn indexed(&self) -> usize {
        let jobs = self.late.iter().count() + self.lates.len() + self.exp.iter().count();
        self.due.iter().count() + jobs + self.owned.len()
    }
}

/// What one call of `due.lua` may still do.
pub(super) struct Left {
    pub(super) names: usize,
    comes: usize,
    ends: usize,
}

impl Left {
    pub(super) fn new(names: usize) -> Self {
        Self { names, comes: SCAN, ends: SCAN }
    }
}

/// Jobs of an index whose time has come.
fn ripe(index: &Index<JobId>, most: &mut usize, now: Now) -> Vec<JobId> {
    let ripe = index.iter().take_while(|(at, _)| *at <= now.ms).take(*most);
    let ripe = Vec::from_iter(ripe.map(|(_, id)| id.clone()));
    *most -= ripe.len();
    ripe
}

/// The keys j, b and r of a job in one: they get their TTL together.
pub(super) struct Job {
    pub(super) lock: Key,
    pub(super) seq: u64,
    pub(super) state: JobState,
    /// The run token; it stays when the run has ended, so that settling twice is the same as once.
    pub(super) run: Option<Token>,
    /// The first that its last run was given.
    pub(super) fence: u64,
    pub(super) attempts: u32,
    pub(super) max_attempts: u32,
    pub(super) again: bool,
    pub(super) reason: &'static str,
    pub(super) owner: String,
    /// Its idempotency record.
    pub(super) record: Option<Arc<str>>,
    /// Who is told of its end.
    pub(super) call: Option<Call>,
    pub(super) accepted_us: u64,
    pub(super) bytes: u64,
    pub(super) envelope: Bytes,
    pub(super) response: Option<Bytes>,
    /// Its deadline.
    pub(super) exp: Option<u64>,
    /// Others may pass it while it waits for its retry.
    pub(super) skip: bool,
    /// The job that has superseded it.
    pub(super) by: Option<JobId>,
    /// It ran at once, and stands in no line.
    pub(super) direct: bool,
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
            record: None,
            call: None,
            accepted_us: now.us,
            bytes: 0,
            envelope: Bytes::new(),
            response: None,
            exp: None,
            skip: false,
            by: None,
            direct: false,
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

    /// It will run again; what is not charged was no attempt.
    pub(super) fn waits(&mut self, reason: &'static str, charged: bool) {
        (self.state, self.reason) = (JobState::Queued, reason);
        self.attempts = self.attempts.saturating_sub(u32::from(!charged));
    }
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
        for call in std::mem::take(&mut self.facts.calls) {
            self.visit(&call.key.clone(), now, post, |visit| visit.stand_call(call));
        }
    }

    fn sweep(&mut self, now: Now) {
        self.lines.sweep(now.ms, SWEEP);
        self.jobs.sweep(now.ms, SWEEP);
        self.records.sweep(now.ms, SWEEP);
        self.facts.groups.sweep(now.ms, SWEEP);
        self.facts.merged.sweep(now.ms, SWEEP);
        self.facts.done.trim(now.us);
        self.facts.dead.trim(now.us);
    }

    /// `renew.lua`, one item.
    pub(super) fn renew(&mut self, item: &Renewal, now: Now) -> bool {
        let until = now.after(item.lease);
        let Some(line) = self.lines.get_mut(&item.key, now.ms) else {
            return false;
        };
        line.expire(now);
        let Some(until) = line.extend(&item.me, item.mode, now, until) else {
            return false;
        };
        let end = line.end();
        self.lines.end_at(&item.key, end);
        if let Some(id) = &item.job {
            let runs = |job: &Job| job.run.as_ref() == Some(&item.me);
            if self.jobs.get(id, now.ms).is_some_and(runs) {
                self.facts.due.set(&item.key, until);
            }
        }
        true
    }

    /// `raise.lua`.
    pub(super) fn raise_fence(&mut self, key: &Key, me: &Token, fence: u64, now: Now) -> bool {
        let member = Member::holds(Mode::Exclusive, me);
        let deadline = self.lines.get(key, now.ms).and_then(|line| line.deadline(&member));
        let held = deadline.is_some_and(|deadline| deadline > now.ms);
        if held {
            self.facts.fence = self.facts.fence.max(fence);
        }
        held
    }

    /// `due.lua`, one shard. What is left to be done is for the next call.
    pub(super) fn due(&mut self, left: &mut Left, now: Now, post: &mut Vec<Mail>) -> Due {
        if left.names == 0 {
            // Its turn is the next time.
            return Due { names: Vec::new(), next: Some(Duration::ZERO) };
        }
        self.sweep(now);
        for id in ripe(&self.facts.late, &mut left.comes, now) {
            match self.lock_of(&id, now) {
                Some(key) => self.visit(&key, now, post, |visit| visit.come_back(&id)),
                None => self.facts.late.remove(&id),
            }
        }
        for id in ripe(&self.facts.exp, &mut left.ends, now) {
            match self.lock_of(&id, now) {
                Some(key) => self.visit(&key, now, post, |visit| visit.run_out(&id)),
                None => self.facts.exp.remove(&id),
            }
        }
        let due = self.facts.due.iter().take_while(|(at, _)| *at <= now.ms);
        let mut names: Vec<_> = due.take(left.names + 1).map(|(_, name)| name.clone()).collect();
        let later = self.facts.due.iter().skip_while(|(at, _)| *at <= now.ms).map(|(at, _)| at);
        let first = |index: &Index<JobId>| index.iter().next().map(|(at, _)| at);
        let mut next = later.chain(first(&self.facts.late)).chain(first(&self.facts.exp)).min();
        if names.len() > left.names {
            names.truncate(left.names);
            next = Some(now.ms);
        }
        left.names -= names.len();
        let with_head = |name: Key| {
            let head = self.head(&name, now);
            (name, head)
        };
        Due {
            names: names.into_iter().map(with_head).collect(),
            next: next.map(|at| Duration::from_millis(at.saturating_sub(now.ms))),
        }
    }

    /// `beat.lua`: keeps the watch of this node, or gives it up, to those who have until `left` to take it;
    /// `None` if it has none. True if kept.
    pub(super) fn keep_watch(
        &mut self,
        node: &str,
        keep: bool,
        (until, left): (u64, Option<u64>),
        now: Now,
    ) -> Option<bool> {
        if self.facts.watcher(now).is_none_or(|watcher| **watcher != *node) {
            return None;
        }
        self.facts.watch = keep.then(|| (node.into(), until));
        self.facts.left = left.filter(|_| !keep).unwrap_or_default();
        Some(keep)
    }

    /// Takes a watch that nobody has. True if taken.
    pub(super) fn take_watch(&mut self, node: &str, until: u64, now: Now) -> bool {
        let free = self.facts.watcher(now).is_none();
        if free {
            self.facts.watch = Some((node.into(), until));
            self.facts.left = 0;
        }
        free
    }

    pub(super) fn end_watch(&mut self) {
        self.facts.watch = None;
        self.facts.left = 0;
    }

    /// Whether anything is due, or will be.
    pub(super) fn has_work(&self) -> bool {
        let Facts { due, late, exp, .. } = &self.facts;
        due.iter().next().is_some() || late.iter().chain(exp.iter()).next().is_some()
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
        let merges = self.facts.groups.len() + self.facts.merged.len();
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
