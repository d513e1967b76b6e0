//! What is kept of one lock: the keys h, l, q and g.

use std::collections::{BTreeSet, HashMap};

use super::job_backoffs::JobBackoffs;
use super::memory_shard::ServerTime;
use crate::store::backend::{JobId, LockMode, LockToken};

/// Who stands in h: holders, and those who have been offered the lock; with the letter of their mode.
#[derive(Clone, PartialEq, Eq)]
pub(super) enum HolderEntry {
    Holder(&'static str, LockToken),
    Offer(&'static str, LockToken),
    JobOffer(JobId),
}

impl HolderEntry {
    pub(super) fn holder(mode: LockMode, me: &LockToken) -> Self {
        Self::Holder(mode.wire_letter(), me.clone())
    }

    pub(super) fn offer(mode: LockMode, me: &LockToken) -> Self {
        Self::Offer(mode.wire_letter(), me.clone())
    }

    pub(super) fn mode_letter(&self) -> &'static str {
        match self {
            Self::Holder(letter, _) | Self::Offer(letter, _) => letter,
            Self::JobOffer(_) => LockMode::Exclusive.wire_letter(),
        }
    }
}

/// A place in q, in its order.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct MemoryQueueEntry {
    pub(super) seq: u64,
    pub(super) deadline: u64,
    pub(super) token: LockToken,
    pub(super) mode: LockMode,
}

/// The keys h, l, q and g of one lock.
#[derive(Default)]
pub(super) struct LockState {
    /// h: mostly one member, so a list is enough. All are of one mode.
    pub(super) holders: Vec<(HolderEntry, u64)>,
    /// When h ends: with its latest member ever, until it was empty.
    holders_expiry: u64,
    pub(super) waiters: BTreeSet<MemoryQueueEntry>,
    waiters_expiry: u64,
    /// The fields '@<place>' of l.
    waiters_by_token: HashMap<LockToken, MemoryQueueEntry>,
    pub(super) jobs: BTreeSet<(u64, JobId)>,
    /// From when on the jobs are passed over, because the offer to them has lapsed.
    pub(super) job_offer_deadline: Option<u64>,
    pub(super) backoffs: JobBackoffs,
    /// Whom old sequences have passed, and until when they may.
    pub(super) barging_window: Option<(u64, u64)>,
    pub(super) job_bytes: u64,
}

impl LockState {
    /// Drops what a key's TTL would have taken away by now.
    pub(super) fn drop_expired(&mut self, now: ServerTime) {
        if now.ms > self.holders_expiry {
            self.holders.clear();
        }
        if now.ms > self.waiters_expiry {
            self.waiters.clear();
            self.waiters_by_token.clear();
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.holders.is_empty() && self.waiters.is_empty() && self.jobs.is_empty()
    }

    /// When nothing of it is left; `None` while jobs wait, which have no end.
    pub(super) fn expiry(&self) -> Option<u64> {
        let mut end = 0;
        if !self.holders.is_empty() {
            end = self.holders_expiry;
        }
        if !self.waiters.is_empty() {
            end = end.max(self.waiters_expiry);
        }
        self.jobs.is_empty().then_some(end)
    }

    pub(super) fn queue_len(&self) -> u64 {
        (self.waiters.len() + self.jobs.len()) as u64
    }

    pub(super) fn first_job(&self) -> Option<&(u64, JobId)> {
        self.jobs.first()
    }

    /// From 1.
    pub(super) fn job_position(&self, seq: u64, id: &JobId) -> Option<u64> {
        let at = (seq, id.clone());
        let before = || self.jobs.range(..&at).count() as u64;
        self.jobs.contains(&at).then(|| before() + 1)
    }

    pub(super) fn deadline_of(&self, member: &HolderEntry) -> Option<u64> {
        let found = self.holders.iter().find(|(m, _)| m == member);
        found.map(|(_, deadline)| *deadline)
    }

    /// Takes a member out of h; true if it was there.
    pub(super) fn remove_holder(&mut self, member: &HolderEntry) -> bool {
        let before = self.holders.len();
        self.holders.retain(|(m, _)| m != member);
        self.holders.len() < before
    }

    pub(super) fn insert_holder(&mut self, member: HolderEntry, deadline: u64) {
        if self.holders.is_empty() {
            self.holders_expiry = 0;
        }
        match self.holders.iter_mut().find(|(m, _)| *m == member) {
            Some((_, old)) => *old = deadline,
            None => self.holders.push((member, deadline)),
        }
        // Who is in mode x is alone, and the key ends with him.
        let alone = matches!(&self.holders[..], [(HolderEntry::Holder("x", _), _)]);
        self.holders_expiry = if alone { deadline } else { self.holders_expiry.max(deadline) };
    }

    /// Moves the deadline of a live holder, and never back: what it is then. `None` if it is none.
    pub(super) fn extend_holder(
        &mut self,
        me: &LockToken,
        mode: LockMode,
        now: ServerTime,
        until: u64,
    ) -> Option<u64> {
        let member = HolderEntry::holder(mode, me);
        let end = self.deadline_of(&member).filter(|end| *end > now.ms)?.max(until);
        self.insert_holder(member, end);
        Some(end)
    }

    /// This nonce's place, if it has one.
    pub(super) fn waiter_of(&self, me: &LockToken) -> Option<MemoryQueueEntry> {
        self.waiters_by_token.get(me).cloned()
    }

    pub(super) fn insert_waiter(&mut self, place: MemoryQueueEntry) {
        if self.waiters.is_empty() {
            self.waiters_expiry = 0;
        }
        self.waiters_expiry = self.waiters_expiry.max(place.deadline);
        self.waiters_by_token.insert(place.token.clone(), place.clone());
        self.waiters.insert(place);
    }

    pub(super) fn remove_waiter(&mut self, place: &MemoryQueueEntry) {
        self.waiters.remove(place);
        self.waiters_by_token.remove(&place.token);
    }
}
