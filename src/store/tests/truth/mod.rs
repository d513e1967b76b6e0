//! What the replies mean: a plain model of locks and jobs, which knows nothing of lines and offers.
//!
//! It is told every reply. What follows from the earlier ones it foretells exactly; who of several
//! waiters comes next it can't know, so there it only says who may not.

mod jobs;

use std::{collections::HashMap, sync::Arc, time::Duration};

use self::jobs::Accepted;
use crate::{
    clock::millis,
    store::backend::{ACCEPT_WINDOW, Acquire, Acquired, GaveBack, JobId, SPARE_FENCES, Token},
};

/// How long an offer may outlive what it was made for.
const OFFER: u64 = 300;

/// One lock. Keys with a TTL last for their last millisecond too.
#[derive(Default)]
pub(super) struct Truth {
    pub(super) now: u64,
    /// Of the shard: whether a worker watches it, until when one does or did, and the highest fence.
    pub(super) watched: bool,
    pub(super) watched_until: u64,
    pub(super) fence: u64,
    /// Who was told that the lock is his, and until when.
    holder: Option<(Token, u64)>,
    /// Who may stand in line or be offered the lock, and until when.
    waiting: HashMap<Token, u64>,
    /// Until when the first job is in backoff.
    back: Option<u64>,
    /// In the order of acceptance.
    pub(super) jobs: Vec<Accepted>,
    records: HashMap<Arc<str>, (JobId, String, u64)>,
}

impl Truth {
    fn after(&self, time: Duration) -> u64 {
        self.now + millis(time)
    }

    fn left(&self, until: u64) -> Duration {
        Duration::from_millis(until - self.now)
    }

    fn live(&self) -> Option<&(Token, u64)> {
        self.holder.as_ref().filter(|(_, until)| *until > self.now)
    }

    pub(super) fn is_held_by(&self, me: &Token) -> bool {
        self.live().is_some_and(|(holder, _)| holder == me)
    }

    /// Whether it stands in line, as far as it knows.
    pub(super) fn waits(&self, me: &Token) -> bool {
        self.waiting.get(me).is_some_and(|until| *until > self.now)
    }

    fn granted(&mut self, me: &Token, lease: Duration, fence: u64) {
        let holder = self.live();
        assert!(holder.is_none_or(|(holder, _)| holder == me), "two holders");
        assert!(fence > self.fence, "fence {fence} after {}", self.fence);
        self.fence = fence + SPARE_FENCES;
        self.holder = Some((me.clone(), self.after(lease)));
        self.waiting.remove(me);
    }

    /// Somebody else may have been offered the lock, or stand before this one.
    fn others_wait(&self, me: &Token) -> bool {
        let mut others = self.waiting.iter().filter(|(other, _)| *other != me);
        others.any(|(_, until)| until + OFFER > self.now)
    }

    fn jobs_may_be_served(&self) -> bool {
        let in_backoff = self.back.is_some_and(|back| back > self.now);
        let watched = self.watched_until + OFFER >= self.now;
        watched && !in_backoff && self.pending().next().is_some()
    }

    pub(super) fn acquired(&mut self, call: &Acquire, reply: &Acquired) {
        let mine = self.is_held_by(&call.me);
        let record = call.record.as_ref().and_then(|name| self.records.get(name));
        let known = record.is_some_and(|(_, _, end)| *end >= self.now) && !mine;
        assert_eq!(known, *reply == Acquired::Known);
        let jobs = self.pending().count() as u64;
        match *reply {
            Acquired::Held { fence, line, .. } => {
                assert!(line >= jobs);
                self.granted(&call.me, call.lease, fence);
            }
            Acquired::Busy { left, line, seq, .. } => {
                assert!(!mine, "it has the lock");
                match self.live() {
                    Some((_, until)) => assert_eq!(left, self.left(*until)),
                    None => {
                        assert!(left <= ACCEPT_WINDOW, "{left:?} for an offer");
                        let others = self.others_wait(&call.me) || self.jobs_may_be_served();
                        assert!(others, "it is free, and nobody else wants it");
                    }
                }
                assert_eq!(call.wait.is_some(), seq > 0);
                assert!(line >= jobs);
                if let Some(wait) = call.wait {
                    self.waiting.insert(call.me.clone(), self.after(wait));
                }
            }
            Acquired::Known => {}
        }
    }

    pub(super) fn released(&mut self, me: &Token, reply: GaveBack) {
        let lapsed = self.holder.as_ref().is_some_and(|(holder, _)| holder == me);
        match reply {
            GaveBack::Released => assert!(self.is_held_by(me), "not its lock"),
            GaveBack::Lost => assert!(lapsed && !self.is_held_by(me)),
            // An offer that has lapsed is told as left for as long as nobody else has looked.
            GaveBack::Left => assert!(self.waiting.contains_key(me)),
            GaveBack::Nothing => assert!(!self.is_held_by(me), "its lock was taken"),
            GaveBack::NothingOnRetry => panic!("nothing was sent twice"),
        }
        if lapsed {
            self.holder = None;
        }
        self.waiting.remove(me);
    }

    pub(super) fn renewed(&mut self, me: &Token, lease: Duration, reply: bool) {
        assert_eq!(reply, self.is_held_by(me));
        if reply {
            self.holder = Some((me.clone(), self.after(lease)));
        }
    }
}
