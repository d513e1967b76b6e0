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
    clock::millis,
    store::backend::{
        ACCEPT_WINDOW, Acquire, Acquired, GaveBack, JobId, Mode, SPARE_FENCES, Still, Token,
    },
};

/// How long an offer may outlive what it was made for.
const OFFER: u64 = 300;

struct Holder {
    me: Token,
    mode: Mode,
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
    waiting: HashMap<Token, Waits>,
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
        self.now + millis(time)
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

    pub(super) fn is_held_by(&self, me: &Token) -> bool {
        self.live().any(|holder| holder.me == *me)
    }

    fn is_held_as(&self, me: &Token, mode: Mode) -> bool {
        self.live().any(|holder| holder.me == *me && holder.mode == mode)
    }

    fn take(&mut self, me: &Token) {
        self.holders.retain(|holder| holder.me != *me);
    }

    /// Whether it stands in line, as far as it knows.
    pub(super) fn waits(&self, me: &Token) -> bool {
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
    fn keeps_out(&self, mode: Mode) -> bool {
        let same = self.live().all(|holder| holder.mode.letter() == mode.letter());
        match mode {
            Mode::Exclusive => self.live().next().is_some(),
            Mode::Shared => !same,
            Mode::Permits(most) => !same || self.live().count() >= most as usize,
        }
    }

    fn granted(&mut self, me: &Token, mode: Mode, lease: Duration, fence: u64) {
        let now = self.now;
        let own = |holder: &Holder| holder.me == *me && holder.mode == mode;
        // What is held already is never shortened.
        let had = self.live().filter(|holder| own(holder)).map(|holder| holder.until).max();
        let until = self.after(lease).max(had.unwrap_or(0));
        self.holders.retain(|holder| holder.until > now && !own(holder));
        // Where numbers differ, one may have come in by its greater number while this one was offered it.
        let most =
            self.live().map(|holder| holder.mode).chain([mode]).max_by_key(|mode| mode.limit());
        let most = if let Mode::Permits(_) = mode { most.unwrap_or(mode) } else { mode };
        assert!(!self.keeps_out(most), "it is held by others");
        assert!(fence > self.fence, "fence {fence} after {}", self.fence);
        self.fence = fence + SPARE_FENCES;
        self.holders.push(Holder { me: me.clone(), mode, until });
        self.waiting.remove(me);
    }

    /// Nobody comes in before one who stands in line, unless he has been there before it.
    fn admitted(&self, call: &Acquire) {
        let mine = self.waiting.get(&call.me);
        let old = Some(call.old_seq).filter(|seq| *seq > 0);
        let seq = mine.map(|waits| waits.seq).or(old).unwrap_or(u64::MAX);
        for (other, waits) in self.waiting.iter().filter(|(other, _)| **other != call.me) {
            let Some(since) = waits.since.filter(|_| waits.until > self.now) else {
                continue;
            };
            // It may have been offered it before that one came back to an old place.
            let offered = mine.is_some_and(|mine| mine.told < since);
            assert!(offered || seq < waits.seq, "{other:?}, {}, is passed by {seq}", waits.seq);
        }
    }

    /// Somebody else may have been offered the lock, or stand before this one.
    fn others_wait(&self, me: &Token) -> bool {
        let mut others = self.waiting.iter().filter(|(other, _)| *other != me);
        others.any(|(_, waits)| waits.until + OFFER > self.now)
    }

    fn jobs_may_be_served(&self) -> bool {
        let watched = self.watched_until + OFFER >= self.now;
        let first = self.line().next();
        watched && first.is_some_and(|job| self.in_backoff(&job.id).is_none())
    }

    pub(super) fn acquired(&mut self, call: &Acquire, reply: &Acquired) {
        self.look();
        self.asked += 1;
        let mine = self.is_held_as(&call.me, call.mode);
        let known = call.record.as_ref().is_some_and(|name| self.record(name).is_some()) && !mine;
        assert_eq!(known, *reply == Acquired::Known);
        let jobs = self.line().count() as u64;
        match *reply {
            Acquired::Held { fence, line, .. } => {
                assert!(line >= jobs);
                if !mine {
                    self.admitted(call);
                }
                self.granted(&call.me, call.mode, call.lease, fence);
            }
            Acquired::Busy { left, line, seq, .. } => {
                assert!(!mine, "it has the lock");
                assert!(line >= jobs);
                self.refused(call, left);
                assert_eq!(call.wait.is_some(), seq > 0);
                if let Some(wait) = call.wait {
                    let until = self.after(wait);
                    let told = self.asked;
                    // Whose place has lapsed stood nowhere meanwhile: who came after it may have been offered.
                    let stands = |waits: &&Waits| waits.seq == seq && waits.until > self.now;
                    let known = self.waiting.get(&call.me).filter(stands);
                    let since = known.and_then(|waits| waits.since).or_else(|| {
                        let out = |holder: &Holder| !goes_beside(call.mode, holder.mode);
                        self.live().any(out).then_some(told)
                    });
                    self.waiting.insert(call.me.clone(), Waits { seq, until, told, since });
                }
            }
            Acquired::Known => {}
        }
    }

    /// There is no room, or others are before it. Offers end before everything else that ends: what it
    /// waits for is known, save where some permits may have been offered.
    fn refused(&self, call: &Acquire, left: Duration) {
        if !self.keeps_out(call.mode) {
            let others = self.others_wait(&call.me) || self.jobs_may_be_served();
            assert!(others, "there is room, and nobody else wants it");
        }
        let mut ends = Vec::from_iter(self.live().map(|holder| holder.until));
        ends.sort_unstable();
        let Some(last) = ends.last().map(|last| self.left(*last)) else {
            assert!(left <= ACCEPT_WINDOW, "{left:?} for an offer");
            return;
        };
        let permits = self.live().all(|holder| goes_beside(call.mode, holder.mode));
        match call.mode {
            Mode::Permits(most) if permits => match ends.len().checked_sub(most as usize) {
                Some(over) => assert_eq!(left, self.left(ends[over])),
                None => assert!(left <= ACCEPT_WINDOW || left == last, "{left:?}"),
            },
            _ => assert_eq!(left, last),
        }
    }

    pub(super) fn released(&mut self, me: &Token, mode: Mode, reply: GaveBack) {
        // Of an exclusive hold a downgrade may have made a shared one.
        let mine = |holder: &&Holder| {
            let shared = mode == Mode::Exclusive && holder.mode == Mode::Shared;
            holder.me == *me && (holder.mode == mode || shared)
        };
        let had = self.holders.iter().find(mine).map(|holder| holder.until > self.now);
        match reply {
            GaveBack::Released => assert_eq!(had, Some(true), "not its lock"),
            GaveBack::Lost => assert_eq!(had, Some(false)),
            // An offer that has lapsed is told as left for as long as nobody else has looked.
            GaveBack::Left => assert!(self.waiting.contains_key(me)),
            GaveBack::Nothing => assert_ne!(had, Some(true), "its lock was taken"),
            GaveBack::NothingOnRetry => panic!("nothing was sent twice"),
        }
        if had.is_some() {
            self.take(me);
        }
        self.waiting.remove(me);
        self.look();
    }

    pub(super) fn renewed(&mut self, me: &Token, mode: Mode, lease: Duration, reply: bool) {
        assert_eq!(reply, self.is_held_as(me, mode));
        if reply {
            let until = self.after(lease);
            let mine = self.holders.iter_mut().filter(|holder| holder.me == *me);
            mine.for_each(|holder| holder.until = holder.until.max(until));
        }
    }

    /// Nothing else changes by it.
    pub(super) fn told_again(&mut self, me: &Token, reply: Option<Still>) {
        assert_eq!(reply.is_some(), self.is_held_as(me, Mode::Exclusive));
        if let Some(Still { fence, .. }) = reply {
            assert!(fence > self.fence, "fence {fence} after {}", self.fence);
            self.fence = fence + SPARE_FENCES;
        }
    }

    pub(super) fn downgraded(&mut self, me: &Token, lease: Duration, reply: bool) {
        let exclusive = self.is_held_as(me, Mode::Exclusive);
        assert_eq!(reply, exclusive || self.is_held_as(me, Mode::Shared));
        if exclusive {
            let until = self.after(lease);
            self.take(me);
            self.holders.push(Holder { me: me.clone(), mode: Mode::Shared, until });
            // Those who read are let in.
            self.doubt();
        }
    }
}

/// Whether one of this mode may be in beside one of the other, for as many as there are.
fn goes_beside(mode: Mode, other: Mode) -> bool {
    mode != Mode::Exclusive && mode.letter() == other.letter()
}
