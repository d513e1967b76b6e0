//! What the replies mean: a plain model of locks and jobs, which knows nothing of lines and offers.
//!
//! It is told every reply. What follows from the earlier ones it foretells exactly; who of several
//! waiters comes next it can't know, so there it only says who may not.

mod jobs;
mod undone;
mod verdicts;
mod waits;

use std::{collections::HashMap, sync::Arc, time::Duration};

use self::jobs::Accepted;
use crate::{
    clock::ceil_millis,
    store::backend::{
        AcquireCommand, AcquireReply, GrantRefresh, JobId, LockMode, LockToken, OFFER_TIMEOUT,
        ReleaseOutcome, SPARE_FENCES,
    },
};

/// How long an offer may outlive what it was made for.
const OFFER: u64 = 300;

struct Holder {
    me: LockToken,
    mode: LockMode,
    until: u64,
}

struct Waits {
    seq: u64,
    until: u64,
    /// When it was last told so, in acquisitions.
    told: u64,
    /// Since when it stands in line for sure: it was told of its place while somebody held the lock beside
    /// whom it can't be in, and somebody has ever since, so it can't have been offered it.
    since: Option<u64>,
}

/// One lock. Keys with a TTL last for their last millisecond too.
#[derive(Default)]
pub(super) struct Truth {
    pub(super) now: u64,
    /// Of the shard: whether a worker watches it, until when one does or did, and the highest fence.
    pub(super) watched: bool,
    /// Left to workers that live, which have not come for it yet.
    pub(super) left: bool,
    pub(super) watched_until: u64,
    pub(super) fence: u64,
    /// Who were told that the lock is theirs, and until when.
    holders: Vec<Holder>,
    /// Who may stand in line or be offered the lock.
    waiting: HashMap<LockToken, Waits>,
    /// Acquisitions so far.
    asked: u64,
    /// Until when jobs are in backoff, and which.
    back: HashMap<JobId, u64>,
    /// When a settlement may have ended jobs that must not run, and until when dead ones are kept then.
    unsure: Option<(u64, u64)>,
    /// In the order of acceptance.
    pub(super) jobs: Vec<Accepted>,
    records: HashMap<Arc<str>, (JobId, String, u64)>,
    /// The latest job of each group, and what was merged; until when.
    groups: HashMap<Arc<str>, (JobId, u64)>,
    merged: HashMap<JobId, (JobId, u64)>,
}

impl Truth {
    fn after(&self, time: Duration) -> u64 {
        self.now + ceil_millis(time)
    }

    fn left(&self, until: u64) -> Duration {
        Duration::from_millis(until - self.now)
    }

    fn live(&self) -> impl Iterator<Item = &Holder> {
        self.holders.iter().filter(|holder| holder.until > self.now)
    }

    /// When the last one's hold ends.
    fn held_until(&self) -> Option<u64> {
        self.live().map(|holder| holder.until).max()
    }

    pub(super) fn is_held_by(&self, me: &LockToken) -> bool {
        self.live().any(|holder| holder.me == *me)
    }

    fn is_held_as(&self, me: &LockToken, mode: LockMode) -> bool {
        self.live().any(|holder| holder.me == *me && holder.mode == mode)
    }

    fn take(&mut self, me: &LockToken) {
        self.holders.retain(|holder| holder.me != *me);
    }

    /// Whether it stands in line, as far as it knows.
    pub(super) fn waits(&self, me: &LockToken) -> bool {
        self.waiting.get(me).is_some_and(|waits| waits.until > self.now)
    }

    /// To be called whenever something may have changed: with nobody in, anybody may be offered it.
    pub(super) fn look(&mut self) {
        if self.live().next().is_none() {
            self.doubt();
        }
    }

    fn doubt(&mut self) {
        self.waiting.values_mut().for_each(|waits| waits.since = None);
    }

    /// Whether those who hold it keep out one more of this mode, and of this number.
    fn keeps_out(&self, mode: LockMode) -> bool {
        let same = self.live().all(|holder| holder.mode.wire_letter() == mode.wire_letter());
        match mode {
            LockMode::Exclusive => self.live().next().is_some(),
            LockMode::Shared => !same,
            LockMode::Permits(most) => !same || self.live().count() >= most as usize,
        }
    }

    fn granted(&mut self, me: &LockToken, mode: LockMode, lease: Duration, fence: u64) {
        let now = self.now;
        let own = |holder: &Holder| holder.me == *me && holder.mode == mode;
        // What is held already is never shortened.
        let had = self.live().filter(|holder| own(holder)).map(|holder| holder.until).max();
        let until = self.after(lease).max(had.unwrap_or(0));
        self.holders.retain(|holder| holder.until > now && !own(holder));
        // Where numbers differ, one may have come in by its greater number while this one was offered it.
        let most = self
            .live()
            .map(|holder| holder.mode)
            .chain([mode])
            .max_by_key(|mode| mode.max_permits());
        let most = if let LockMode::Permits(_) = mode { most.unwrap_or(mode) } else { mode };
        assert!(!self.keeps_out(most), "it is held by others");
        assert!(fence > self.fence, "fence {fence} after {}", self.fence);
        self.fence = fence + SPARE_FENCES;
        self.holders.push(Holder { me: me.clone(), mode, until });
        self.waiting.remove(me);
    }

    /// Nobody comes in before one who stands in line, unless he has been there before it.
    fn admitted(&self, call: &AcquireCommand) {
        let mine = self.waiting.get(&call.token);
        let old = Some(call.resume_seq).filter(|seq| *seq > 0);
        let seq = mine.map(|waits| waits.seq).or(old).unwrap_or(u64::MAX);
        for (other, waits) in self.waiting.iter().filter(|(other, _)| **other != call.token) {
            let Some(since) = waits.since.filter(|_| waits.until > self.now) else {
                continue;
            };
            // It may have been offered it before that one came back to an old place.
            let offered = mine.is_some_and(|mine| mine.told < since);
            assert!(offered || seq < waits.seq, "{other:?}, {}, is passed by {seq}", waits.seq);
        }
    }

    /// Somebody else may have been offered the lock, or stand before this one.
    fn others_wait(&self, me: &LockToken) -> bool {
        let mut others = self.waiting.iter().filter(|(other, _)| *other != me);
        others.any(|(_, waits)| waits.until + OFFER > self.now)
    }

    fn jobs_may_be_served(&self) -> bool {
        let watched = self.watched_until + OFFER >= self.now;
        let first = self.line().next();
        watched && first.is_some_and(|job| self.in_backoff(&job.id).is_none())
    }

    pub(super) fn acquired(&mut self, call: &AcquireCommand, reply: &AcquireReply) {
        self.look();
        self.asked += 1;
        let mine = self.is_held_as(&call.token, call.mode);
        let known =
            call.record_name.as_ref().is_some_and(|name| self.record(name).is_some()) && !mine;
        assert_eq!(known, *reply == AcquireReply::AlreadyAccepted);
        let jobs = self.line().count() as u64;
        match *reply {
            AcquireReply::Granted { fence, queue_length: line, .. } => {
                assert!(line >= jobs);
                if !mine {
                    self.admitted(call);
                }
                self.granted(&call.token, call.mode, call.lease, fence);
            }
            AcquireReply::Busy { lease_remaining: left, queue_length: line, seq, .. } => {
                assert!(!mine, "it has the lock");
                assert!(line >= jobs);
                self.refused(call, left);
                assert_eq!(call.max_wait.is_some(), seq > 0);
                if let Some(wait) = call.max_wait {
                    let until = self.after(wait);
                    let told = self.asked;
                    // Whose place has lapsed stood nowhere meanwhile: who came after it may have been offered.
                    let stands = |waits: &&Waits| waits.seq == seq && waits.until > self.now;
                    let known = self.waiting.get(&call.token).filter(stands);
                    let since = known.and_then(|waits| waits.since).or_else(|| {
                        let out = |holder: &Holder| !goes_beside(call.mode, holder.mode);
                        self.live().any(out).then_some(told)
                    });
                    self.waiting.insert(call.token.clone(), Waits { seq, until, told, since });
                }
            }
            AcquireReply::AlreadyAccepted => {}
        }
    }

    /// There is no room, or others are before it. Offers end before everything else that ends: what it
    /// waits for is known, save where some permits may have been offered.
    fn refused(&self, call: &AcquireCommand, left: Duration) {
        if !self.keeps_out(call.mode) {
            let others = self.others_wait(&call.token) || self.jobs_may_be_served();
            assert!(others, "there is room, and nobody else wants it");
        }
        let mut ends = Vec::from_iter(self.live().map(|holder| holder.until));
        ends.sort_unstable();
        let Some(last) = ends.last().map(|last| self.left(*last)) else {
            assert!(left <= OFFER_TIMEOUT, "{left:?} for an offer");
            return;
        };
        let permits = self.live().all(|holder| goes_beside(call.mode, holder.mode));
        match call.mode {
            LockMode::Permits(most) if permits => match ends.len().checked_sub(most as usize) {
                Some(over) => assert_eq!(left, self.left(ends[over])),
                None => assert!(left <= OFFER_TIMEOUT || left == last, "{left:?}"),
            },
            _ => assert_eq!(left, last),
        }
    }

    pub(super) fn released(&mut self, me: &LockToken, mode: LockMode, reply: ReleaseOutcome) {
        // Of an exclusive hold a downgrade may have made a shared one.
        let mine = |holder: &&Holder| {
            let shared = mode == LockMode::Exclusive && holder.mode == LockMode::Shared;
            holder.me == *me && (holder.mode == mode || shared)
        };
        let had = self.holders.iter().find(mine).map(|holder| holder.until > self.now);
        match reply {
            ReleaseOutcome::Released => assert_eq!(had, Some(true), "not its lock"),
            ReleaseOutcome::AlreadyExpired => assert_eq!(had, Some(false)),
            // An offer that has lapsed is told as left for as long as nobody else has looked.
            ReleaseOutcome::Withdrawn => assert!(self.waiting.contains_key(me)),
            ReleaseOutcome::NotFound => assert_ne!(had, Some(true), "its lock was taken"),
            ReleaseOutcome::NotFoundOnRetry => panic!("nothing was sent twice"),
        }
        if had.is_some() {
            self.take(me);
        }
        self.waiting.remove(me);
        self.look();
    }

    pub(super) fn renewed(&mut self, me: &LockToken, mode: LockMode, lease: Duration, reply: bool) {
        assert_eq!(reply, self.is_held_as(me, mode));
        if reply {
            let until = self.after(lease);
            let mine = self.holders.iter_mut().filter(|holder| holder.me == *me);
            mine.for_each(|holder| holder.until = holder.until.max(until));
        }
    }

    /// Nothing else changes by it.
    pub(super) fn told_again(&mut self, me: &LockToken, reply: Option<GrantRefresh>) {
        assert_eq!(reply.is_some(), self.is_held_as(me, LockMode::Exclusive));
        if let Some(GrantRefresh { fence, .. }) = reply {
            assert!(fence > self.fence, "fence {fence} after {}", self.fence);
            self.fence = fence + SPARE_FENCES;
        }
    }

    pub(super) fn downgraded(&mut self, me: &LockToken, lease: Duration, reply: bool) {
        let exclusive = self.is_held_as(me, LockMode::Exclusive);
        assert_eq!(reply, exclusive || self.is_held_as(me, LockMode::Shared));
        if exclusive {
            let until = self.after(lease);
            self.take(me);
            self.holders.push(Holder { me: me.clone(), mode: LockMode::Shared, until });
            // Those who read are let in.
            self.doubt();
        }
    }
}

/// Whether one of this mode may be in beside one of the other, for as many as there are.
fn goes_beside(mode: LockMode, other: LockMode) -> bool {
    mode != LockMode::Exclusive && mode.wire_letter() == other.wire_letter()
}
