//! One shard: everything that one step may touch, behind one mutex.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;

use super::{
    ends::{Expiring, Index},
    line::Line,
    post::Mail,
    rate::{Kept, Name},
    visit::{RecordName, Visit},
};
use crate::{
    key::Key,
    store::backend::{Due, JobId, JobState, JobView, Past, Renewal, Token},
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
    lines: Expiring<Key, Line>,
    jobs: Expiring<JobId, Job>,
    /// Idempotency records: the job, and the fingerprint of the request that made it.
    records: Expiring<RecordName, (JobId, String)>,
    pub(super) counters: Expiring<Name, Kept>,
    facts: Facts,
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
}

impl Facts {
    pub(super) fn watcher(&self, now: Now) -> Option<&Arc<str>> {
        let live = self.watch.as_ref().filter(|(_, end)| now.ms <= *end);
        live.map(|(node, _)| node)
    }
}

/// The keys j, b and r of a job in one: they get their TTL together.
pub(super) struct Job {
    pub(super) lock: Key,
    pub(super) seq: u64,
    pub(super) state: JobState,
    /// The run token; it stays when the run has ended, so that settling twice is the same as once.
    pub(super) run: Option<Token>,
    pub(super) attempts: u32,
    pub(super) max_attempts: u32,
    pub(super) again: bool,
    pub(super) reason: &'static str,
    pub(super) owner: String,
    pub(super) accepted_us: u64,
    pub(super) bytes: u64,
    pub(super) envelope: Bytes,
    pub(super) response: Option<Bytes>,
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
        self.sweep(now);
        answer
    }

    fn sweep(&mut self, now: Now) {
        self.lines.sweep(now.ms, SWEEP);
        self.jobs.sweep(now.ms, SWEEP);
        self.records.sweep(now.ms, SWEEP);
    }

    /// `renew.lua`, one item.
    pub(super) fn renew(&mut self, item: &Renewal, now: Now) -> bool {
        let until = now.after(item.lease);
        let Some(line) = self.lines.get_mut(&item.key, now.ms) else {
            return false;
        };
        line.expire(now);
        if !line.extend(&item.me, item.mode, now, until) {
            return false;
        }
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

    /// `due.lua`, one shard.
    pub(super) fn due(&mut self, most: usize, now: Now) -> Due {
        self.sweep(now);
        let due = self.facts.due.iter().take_while(|(at, _)| *at <= now.ms);
        let mut names: Vec<_> = due.take(most + 1).map(|(_, name)| (name.clone(), None)).collect();
        if names.len() > most {
            names.truncate(most);
            return Due { names, next: Some(Duration::ZERO) };
        }
        let mut later = self.facts.due.iter().skip_while(|(at, _)| *at <= now.ms);
        let next = later.next().map(|(at, _)| Duration::from_millis(at - now.ms));
        Due { names, next }
    }

    /// Whether this node watches the shard.
    pub(super) fn is_watched_by(&self, node: &str, now: Now) -> bool {
        self.facts.watcher(now).is_some_and(|watcher| **watcher == *node)
    }

    /// `watch.lua`, first pass: keeps the watch of this node, or gives it up. True if kept.
    pub(super) fn keep_watch(&mut self, node: &str, keep: bool, until: u64, now: Now) -> bool {
        if self.facts.watcher(now).is_none_or(|watcher| **watcher != *node) {
            return false;
        }
        self.facts.watch = keep.then(|| (node.into(), until));
        keep
    }

    /// `watch.lua`, second pass: takes a watch that nobody has. True if taken.
    pub(super) fn take_watch(&mut self, node: &str, until: u64, now: Now) -> bool {
        let free = self.facts.watcher(now).is_none();
        if free {
            self.facts.watch = Some((node.into(), until));
        }
        free
    }

    pub(super) fn job(&self, id: &JobId, now: Now) -> Option<JobView> {
        let job = self.jobs.get(id, now.ms)?;
        let line = self.lines.get(&job.lock, now.ms);
        Some(JobView {
            state: job.state,
            attempts: job.attempts,
            position: line.and_then(|line| line.position(job.seq, id)),
            reason: Some(job.reason.to_owned()).filter(|r| !r.is_empty()),
            owner: job.owner.clone(),
            watched: self.facts.watcher(now).is_some(),
            response: job.response.clone(),
            past: Past::default(),
        })
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
        let due = self.facts.due.iter().count();
        self.lines.len() + self.jobs.len() + self.records.len() + self.counters.len() + due
    }

    #[cfg(test)]
    pub(super) fn lasting(&self) -> usize {
        let due = self.facts.due.iter().count();
        let endless = [self.lines.endless(), self.jobs.endless()];
        endless.iter().sum::<usize>() + self.records.endless() + self.counters.endless() + due
    }

    #[cfg(test)]
    pub(super) fn counted(&self, key: &Key) -> [u64; 3] {
        let line = self.lines.get(key, 0).map_or(0, |line| line.bytes);
        [self.facts.jobs, self.facts.bytes, line]
    }
}
