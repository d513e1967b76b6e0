//! What is kept of one lock: the keys h, l, q and g.

use std::collections::{BTreeSet, HashMap};

use super::backoffs::Backoffs;
use super::shard::Now;
use crate::store::backend::{JobId, LockMode, LockToken};

/// Who stands in h: holders, and those who have been offered the lock; with the letter of their mode.
#[derive(Clone, PartialEq, Eq)]
pub(super) enum Member {
    Holds(&'static str, LockToken),
    Offered(&'static str, LockToken),
    Job(JobId),
}

impl Member {
    pub(super) fn holds(mode: LockMode, me: &LockToken) -> Self {
        Self::Holds(mode.wire_letter(), me.clone())
    }

    pub(super) fn offered(mode: LockMode, me: &LockToken) -> Self {
        Self::Offered(mode.wire_letter(), me.clone())
    }

    pub(super) fn letter(&self) -> &'static str {
        match self {
            Self::Holds(letter, _) | Self::Offered(letter, _) => letter,
            Self::Job(_) => LockMode::Exclusive.wire_letter(),
        }
    }
}

/// A place in q, in its order.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    pub(super) seq: u64,
    pub(super) deadline: u64,
    pub(super) me: LockToken,
    pub(super) mode: LockMode,
}

/// The keys h, l, q and g of one lock.
#[derive(Default)]
pub(super) struct Line {
    /// h: mostly one member, so a list is enough. All are of one mode.
    pub(super) holders: Vec<(Member, u64)>,
    /// When h ends: with its latest member ever, until it was empty.
    holders_end: u64,
    pub(super) places: BTreeSet<Place>,
    places_end: u64,
    /// The fields '@<place>' of l.
    own: HashMap<LockToken, Place>,
    pub(super) jobs: BTreeSet<(u64, JobId)>,
    /// From when on the jobs are passed over, because the offer to them has lapsed.
    pub(super) park: Option<u64>,
    pub(super) back: Backoffs,
    /// Whom old sequences have passed, and until when they may.
    pub(super) past: Option<(u64, u64)>,
    pub(super) bytes: u64,
}

impl Line {
    /// Drops what a key's TTL would have taken away by now.
    pub(super) fn expire(&mut self, now: Now) {
        if now.ms > self.holders_end {
            self.holders.clear();
        }
        if now.ms > self.places_end {
            self.places.clear();
            self.own.clear();
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.holders.is_empty() && self.places.is_empty() && self.jobs.is_empty()
    }

    /// When nothing of it is left; `None` while jobs wait, which have no end.
    pub(super) fn end(&self) -> Option<u64> {
        let mut end = 0;
        if !self.holders.is_empty() {
            end = self.holders_end;
        }
        if !self.places.is_empty() {
            end = end.max(self.places_end);
        }
        self.jobs.is_empty().then_some(end)
    }

    pub(super) fn len(&self) -> u64 {
        (self.places.len() + self.jobs.len()) as u64
    }

    pub(super) fn first_job(&self) -> Option<&(u64, JobId)> {
        self.jobs.first()
    }

    /// From 1.
    pub(super) fn position(&self, seq: u64, id: &JobId) -> Option<u64> {
        let at = (seq, id.clone());
        let before = || self.jobs.range(..&at).count() as u64;
        self.jobs.contains(&at).then(|| before() + 1)
    }

    pub(super) fn deadline(&self, member: &Member) -> Option<u64> {
        let found = self.holders.iter().find(|(m, _)| m == member);
        found.map(|(_, deadline)| *deadline)
    }

    /// Takes a member out of h; true if it was there.
    pub(super) fn take(&mut self, member: &Member) -> bool {
        let before = self.holders.len();
        self.holders.retain(|(m, _)| m != member);
        self.holders.len() < before
    }

    pub(super) fn put(&mut self, member: Member, deadline: u64) {
        if self.holders.is_empty() {
            self.holders_end = 0;
        }
        match self.holders.iter_mut().find(|(m, _)| *m == member) {
            Some((_, old)) => *old = deadline,
            None => self.holders.push((member, deadline)),
        }
        // Who is in mode x is alone, and the key ends with him.
        let alone = matches!(&self.holders[..], [(Member::Holds("x", _), _)]);
        self.holders_end = if alone { deadline } else { self.holders_end.max(deadline) };
    }

    /// Moves the deadline of a live holder, and never back: what it is then. `None` if it is none.
    pub(super) fn extend(&mut self, me: &LockToken, mode: LockMode, now: Now, until: u64) -> Option<u64> {
        let member = Member::holds(mode, me);
        let end = self.deadline(&member).filter(|end| *end > now.ms)?.max(until);
        self.put(member, end);
        Some(end)
    }

    /// This nonce's place, if it has one.
    pub(super) fn place_of(&self, me: &LockToken) -> Option<Place> {
        self.own.get(me).cloned()
    }

    pub(super) fn add_place(&mut self, place: Place) {
        if self.places.is_empty() {
            self.places_end = 0;
        }
        self.places_end = self.places_end.max(place.deadline);
        self.own.insert(place.me.clone(), place.clone());
        self.places.insert(place);
    }

    pub(super) fn drop_place(&mut self, place: &Place) {
        self.places.remove(place);
        self.own.remove(&place.me);
    }
}
