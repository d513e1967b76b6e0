//! What is due in a shard, and who watches it.

use std::time::Duration;

use super::{
    ends::Index,
    facts::Facts,
    post::Mail,
    shard::{Now, Shard},
    visit::SCAN,
};
use crate::{
    key::Key,
    store::backend::{DueLocks, JobId},
};

/// After how many ms the line of a callback comes again.
const CALLS: u64 = 1_000;

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

impl Shard {
    /// `due.lua`, one shard. What is left to be done is for the next call.
    pub(super) fn due(&mut self, left: &mut Left, now: Now, post: &mut Vec<Mail>) -> DueLocks {
        if left.names == 0 {
            // Its turn is the next time.
            return DueLocks { locks: Vec::new(), next_due_in: Some(Duration::ZERO) };
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
            next = Some(0);
        }
        left.names -= names.len();
        for name in names.iter().filter(|name| name.is_of_callback()) {
            self.facts.due.set(name, now.ms + CALLS);
            next = next.min(Some(now.ms + CALLS)).or(Some(now.ms + CALLS));
        }
        let with_head = |name: Key| {
            let head = self.head(&name, now);
            (name, head)
        };
        DueLocks {
            locks: names.into_iter().map(with_head).collect(),
            next_due_in: next
                .map(|at| Duration::from_micros(at.saturating_mul(1_000).saturating_sub(now.us))),
        }
    }

    /// Whether anything is due, or will be.
    pub(super) fn has_work(&self) -> bool {
        let Facts { due, late, exp, .. } = &self.facts;
        due.iter().next().is_some() || late.iter().chain(exp.iter()).next().is_some()
    }
}
