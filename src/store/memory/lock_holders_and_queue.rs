//! State of one lock: the key kinds h, l, q and g.

use std::collections::{BTreeSet, HashMap};

use super::lock_job_backoffs::LockJobBackoffs;
use super::memory_shard::ServerTime;
use crate::store::backend::{JobId, LockMode, LockToken};

/// Member of h: a holder, or an offer of the lock, with the wire letter of its mode.
#[derive(Clone, PartialEq, Eq)]
pub(super) enum HolderEntry {
    Holder(&'static str, LockToken),
    Offer(&'static str, LockToken),
    JobOffer(JobId),
}

impl HolderEntry {
    pub(super) fn holder(mode: LockMode, token: &LockToken) -> Self {
        Self::Holder(mode.wire_letter(), token.clone())
    }

    pub(super) fn offer(mode: LockMode, token: &LockToken) -> Self {
        Self::Offer(mode.wire_letter(), token.clone())
    }

    pub(super) fn mode_letter(&self) -> &'static str {
        match self {
            Self::Holder(letter, _) | Self::Offer(letter, _) => letter,
            Self::JobOffer(_) => LockMode::Exclusive.wire_letter(),
        }
    }
}

/// Entry of q; the order of the fields is the order of the queue.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct MemoryQueueEntry {
    pub(super) seq: u64,
    pub(super) deadline: u64,
    pub(super) token: LockToken,
    pub(super) mode: LockMode,
}

/// Time in which older sequences may overtake a queue head.
#[derive(Clone, Copy)]
pub(super) struct BargingWindow {
    pub(super) head_seq: u64,
    pub(super) ends_ms: u64,
}

/// State of one lock: the key kinds h, l, q and g.
#[derive(Default)]
pub(super) struct LockHoldersAndQueue {
    /// h: mostly one member, so a list is enough. All have the same mode.
    pub(super) holders: Vec<(HolderEntry, u64)>,
    /// Expiry of h: the latest deadline of all members since it was empty.
    holders_expiry: u64,
    pub(super) waiters: BTreeSet<MemoryQueueEntry>,
    waiters_expiry: u64,
    /// The hash fields `@<token>` of l.
    waiters_by_token: HashMap<LockToken, MemoryQueueEntry>,
    pub(super) jobs: BTreeSet<(u64, JobId)>,
    /// Time from which the jobs are skipped, because the offer to them was not taken.
    pub(super) job_offer_deadline: Option<u64>,
    pub(super) backoffs: LockJobBackoffs,
    pub(super) barging_window: Option<BargingWindow>,
    pub(super) job_bytes: u64,
}

impl LockHoldersAndQueue {
    /// Removes the state that a key's TTL would have removed by now.
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

    /// Returns the time at which no state is left; `None` while jobs wait, which do not expire.
    pub(super) fn expiry(&self) -> Option<u64> {
        let mut expires_ms = 0;
        if !self.holders.is_empty() {
            expires_ms = self.holders_expiry;
        }
        if !self.waiters.is_empty() {
            expires_ms = expires_ms.max(self.waiters_expiry);
        }
        self.jobs.is_empty().then_some(expires_ms)
    }

    pub(super) fn queue_len(&self) -> u64 {
        (self.waiters.len() + self.jobs.len()) as u64
    }

    pub(super) fn first_job(&self) -> Option<&(u64, JobId)> {
        self.jobs.first()
    }

    /// Returns the position of a job in the queue, from 1.
    pub(super) fn job_position(&self, seq: u64, id: &JobId) -> Option<u64> {
        let entry = (seq, id.clone());
        let jobs_before = || self.jobs.range(..&entry).count() as u64;
        self.jobs.contains(&entry).then(|| jobs_before() + 1)
    }

    pub(super) fn deadline_of(&self, member: &HolderEntry) -> Option<u64> {
        let entry = self.holders.iter().find(|(m, _)| m == member);
        entry.map(|(_, deadline)| *deadline)
    }

    /// Removes a member of h. Returns true if it was there.
    pub(super) fn remove_holder(&mut self, member: &HolderEntry) -> bool {
        let old_len = self.holders.len();
        self.holders.retain(|(m, _)| m != member);
        self.holders.len() < old_len
    }

    pub(super) fn insert_holder(&mut self, member: HolderEntry, deadline: u64) {
        if self.holders.is_empty() {
            self.holders_expiry = 0;
        }
        match self.holders.iter_mut().find(|(m, _)| *m == member) {
            Some((_, old_deadline)) => *old_deadline = deadline,
            None => self.holders.push((member, deadline)),
        }
        // An exclusive holder is alone, and the key expires with it.
        let is_alone = matches!(&self.holders[..], [(HolderEntry::Holder("x", _), _)]);
        self.holders_expiry = if is_alone { deadline } else { self.holders_expiry.max(deadline) };
    }

    /// Extends the deadline of a live holder, never backwards. Returns the resulting deadline, or
    /// `None` if the token holds nothing.
    pub(super) fn extend_holder(
        &mut self,
        token: &LockToken,
        mode: LockMode,
        now: ServerTime,
        deadline: u64,
    ) -> Option<u64> {
        let member = HolderEntry::holder(mode, token);
        let old_deadline = self.deadline_of(&member).filter(|deadline| *deadline > now.ms)?;
        let new_deadline = old_deadline.max(deadline);
        self.insert_holder(member, new_deadline);
        Some(new_deadline)
    }

    /// Returns the queue entry of this token, if any.
    pub(super) fn waiter_of(&self, token: &LockToken) -> Option<MemoryQueueEntry> {
        self.waiters_by_token.get(token).cloned()
    }

    pub(super) fn insert_waiter(&mut self, waiter: MemoryQueueEntry) {
        if self.waiters.is_empty() {
            self.waiters_expiry = 0;
        }
        self.waiters_expiry = self.waiters_expiry.max(waiter.deadline);
        self.waiters_by_token.insert(waiter.token.clone(), waiter.clone());
        self.waiters.insert(waiter);
    }

    pub(super) fn remove_waiter(&mut self, waiter: &MemoryQueueEntry) {
        self.waiters.remove(waiter);
        self.waiters_by_token.remove(&waiter.token);
    }
}
