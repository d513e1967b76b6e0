//! What the replies mean: a plain model of locks and jobs, which knows nothing of lines and offers.
//!
//! It is told every reply. What follows from the earlier ones it foretells exactly; who of several
//! waiters comes next it can't know, so there it only says who may not.

mod accepted_job;
mod enqueued_jobs;
mod job_operations;
mod settlements;

use std::{collections::HashMap, sync::Arc, time::Duration};

use self::accepted_job::AcceptedJob;
use crate::{
    durations::ceil_millis,
    store::backend::{
        AcquireCommand, AcquireReply, GrantRefresh, JobId, LockMode, LockToken, OFFER_TIMEOUT,
        ReleaseOutcome, SPARE_FENCES,
    },
};

/// How long an offer may outlive what it was made for.
const OFFER_MS: u64 = 300;

struct ModelHolder {
    token: LockToken,
    mode: LockMode,
    expires_ms: u64,
}

struct ModelWaiter {
    seq: u64,
    deadline_ms: u64,
    /// When it was last told so, in acquisitions.
    refused_at_acquire: u64,
    /// Since when it stands in line for sure: it was told of its place while somebody held the lock beside
    /// whom it can't be in, and somebody has ever since, so it can't have been offered it.
    waiting_since: Option<u64>,
}

/// One lock. Keys with a TTL last for their last millisecond too.
#[derive(Default)]
pub(super) struct ReplyModel {
    pub(super) now_ms: u64,
    /// Of the shard: whether a worker watches it, until when one does or did, and the highest fence.
    pub(super) is_watched: bool,
    /// Left to workers that live, which have not come for it yet.
    pub(super) is_between_workers: bool,
    pub(super) watched_until: u64,
    pub(super) highest_fence: u64,
    /// Who were told that the lock is theirs, and until when.
    holders: Vec<ModelHolder>,
    /// Who may stand in line or be offered the lock.
    waiters: HashMap<LockToken, ModelWaiter>,
    /// Acquisitions so far.
    acquire_count: u64,
    /// Until when jobs are in backoff, and which.
    backoffs: HashMap<JobId, u64>,
    /// When a settlement may have ended jobs that must not run, and until when dead ones are kept then.
    uncertain_endings: Option<(u64, u64)>,
    /// In the order of acceptance.
    pub(super) jobs: Vec<AcceptedJob>,
    records: HashMap<Arc<str>, (JobId, String, u64)>,
    /// The latest job of each group, and what was merged; until when.
    groups: HashMap<Arc<str>, (JobId, u64)>,
    merged_jobs: HashMap<JobId, (JobId, u64)>,
}

impl ReplyModel {
    fn deadline_after(&self, time: Duration) -> u64 {
        self.now_ms + ceil_millis(time)
    }

    fn time_left(&self, until: u64) -> Duration {
        Duration::from_millis(until - self.now_ms)
    }

    fn live_holders(&self) -> impl Iterator<Item = &ModelHolder> {
        self.holders.iter().filter(|holder| holder.expires_ms > self.now_ms)
    }

    /// When the last one's hold ends.
    fn last_lease_end(&self) -> Option<u64> {
        self.live_holders().map(|holder| holder.expires_ms).max()
    }

    pub(super) fn is_held_by(&self, me: &LockToken) -> bool {
        self.live_holders().any(|holder| holder.token == *me)
    }

    fn is_held_as(&self, me: &LockToken, mode: LockMode) -> bool {
        self.live_holders().any(|holder| holder.token == *me && holder.mode == mode)
    }

    fn remove_holder(&mut self, me: &LockToken) {
        self.holders.retain(|holder| holder.token != *me);
    }

    /// Whether it stands in line, as far as it knows.
    pub(super) fn is_waiting(&self, me: &LockToken) -> bool {
        self.waiters.get(me).is_some_and(|waits| waits.deadline_ms > self.now_ms)
    }

    /// To be called whenever something may have changed: with nobody in, anybody may be offered it.
    pub(super) fn reset_order_if_free(&mut self) {
        if self.live_holders().next().is_none() {
            self.forget_waiting_order();
        }
    }

    fn forget_waiting_order(&mut self) {
        self.waiters.values_mut().for_each(|waits| waits.waiting_since = None);
    }

    /// Whether those who hold it keep out one more of this mode, and of this number.
    fn has_no_room_for(&self, mode: LockMode) -> bool {
        let same =
            self.live_holders().all(|holder| holder.mode.wire_letter() == mode.wire_letter());
        match mode {
            LockMode::Exclusive => self.live_holders().next().is_some(),
            LockMode::Shared => !same,
            LockMode::Permits(most) => !same || self.live_holders().count() >= most as usize,
        }
    }

    fn record_grant(&mut self, me: &LockToken, mode: LockMode, lease: Duration, fence: u64) {
        let now = self.now_ms;
        let own = |holder: &ModelHolder| holder.token == *me && holder.mode == mode;
        // What is held already is never shortened.
        let had =
            self.live_holders().filter(|holder| own(holder)).map(|holder| holder.expires_ms).max();
        let until = self.deadline_after(lease).max(had.unwrap_or(0));
        self.holders.retain(|holder| holder.expires_ms > now && !own(holder));
        // Where numbers differ, one may have come in by its greater number while this one was offered it.
        let most = self
            .live_holders()
            .map(|holder| holder.mode)
            .chain([mode])
            .max_by_key(|mode| mode.max_permits());
        let most = if let LockMode::Permits(_) = mode { most.unwrap_or(mode) } else { mode };
        assert!(!self.has_no_room_for(most), "it is held by others");
        assert!(fence > self.highest_fence, "fence {fence} after {}", self.highest_fence);
        self.highest_fence = fence + SPARE_FENCES;
        self.holders.push(ModelHolder { token: me.clone(), mode, expires_ms: until });
        self.waiters.remove(me);
    }

    /// Nobody comes in before one who stands in line, unless he has been there before it.
    fn check_queue_order(&self, call: &AcquireCommand) {
        let mine = self.waiters.get(&call.token);
        let old = Some(call.resume_seq).filter(|seq| *seq > 0);
        let seq = mine.map(|waits| waits.seq).or(old).unwrap_or(u64::MAX);
        for (other, waits) in self.waiters.iter().filter(|(other, _)| **other != call.token) {
            let Some(since) = waits.waiting_since.filter(|_| waits.deadline_ms > self.now_ms)
            else {
                continue;
            };
            // It may have been offered it before that one came back to an old place.
            let offered = mine.is_some_and(|mine| mine.refused_at_acquire < since);
            assert!(offered || seq < waits.seq, "{other:?}, {}, is passed by {seq}", waits.seq);
        }
    }

    /// Somebody else may have been offered the lock, or stand before this one.
    fn may_others_precede(&self, me: &LockToken) -> bool {
        let mut others = self.waiters.iter().filter(|(other, _)| *other != me);
        others.any(|(_, waits)| waits.deadline_ms + OFFER_MS > self.now_ms)
    }

    fn jobs_may_be_served(&self) -> bool {
        let watched = self.watched_until + OFFER_MS >= self.now_ms;
        let first = self.queued_jobs().next();
        watched && first.is_some_and(|job| self.backoff_end(&job.id).is_none())
    }

    pub(super) fn check_acquire(&mut self, call: &AcquireCommand, reply: &AcquireReply) {
        self.reset_order_if_free();
        self.acquire_count += 1;
        let mine = self.is_held_as(&call.token, call.mode);
        let known =
            call.record_name.as_ref().is_some_and(|name| self.find_record(name).is_some()) && !mine;
        assert_eq!(known, *reply == AcquireReply::AlreadyAccepted);
        let jobs = self.queued_jobs().count() as u64;
        match *reply {
            AcquireReply::Granted { fence, queue_length: line, .. } => {
                assert!(line >= jobs);
                if !mine {
                    self.check_queue_order(call);
                }
                self.record_grant(&call.token, call.mode, call.lease, fence);
            }
            AcquireReply::Busy { lease_remaining: left, queue_length: line, seq, .. } => {
                assert!(!mine, "it has the lock");
                assert!(line >= jobs);
                self.check_busy(call, left);
                assert_eq!(call.max_wait.is_some(), seq > 0);
                if let Some(wait) = call.max_wait {
                    let until = self.deadline_after(wait);
                    let told = self.acquire_count;
                    // Whose place has lapsed stood nowhere meanwhile: who came after it may have been offered.
                    let stands =
                        |waits: &&ModelWaiter| waits.seq == seq && waits.deadline_ms > self.now_ms;
                    let known = self.waiters.get(&call.token).filter(stands);
                    let since = known.and_then(|waits| waits.waiting_since).or_else(|| {
                        let out = |holder: &ModelHolder| !are_compatible(call.mode, holder.mode);
                        self.live_holders().any(out).then_some(told)
                    });
                    self.waiters.insert(
                        call.token.clone(),
                        ModelWaiter {
                            seq,
                            deadline_ms: until,
                            refused_at_acquire: told,
                            waiting_since: since,
                        },
                    );
                }
            }
            AcquireReply::AlreadyAccepted => {}
        }
    }

    /// There is no room, or others are before it. Offers end before everything else that ends: what it
    /// waits for is known, save where some permits may have been offered.
    fn check_busy(&self, call: &AcquireCommand, left: Duration) {
        if !self.has_no_room_for(call.mode) {
            let others = self.may_others_precede(&call.token) || self.jobs_may_be_served();
            assert!(others, "there is room, and nobody else wants it");
        }
        let mut ends = Vec::from_iter(self.live_holders().map(|holder| holder.expires_ms));
        ends.sort_unstable();
        let Some(last) = ends.last().map(|last| self.time_left(*last)) else {
            assert!(left <= OFFER_TIMEOUT, "{left:?} for an offer");
            return;
        };
        let permits = self.live_holders().all(|holder| are_compatible(call.mode, holder.mode));
        match call.mode {
            LockMode::Permits(most) if permits => match ends.len().checked_sub(most as usize) {
                Some(over) => assert_eq!(left, self.time_left(ends[over])),
                None => assert!(left <= OFFER_TIMEOUT || left == last, "{left:?}"),
            },
            _ => assert_eq!(left, last),
        }
    }

    pub(super) fn check_release(&mut self, me: &LockToken, mode: LockMode, reply: ReleaseOutcome) {
        // Of an exclusive hold a downgrade may have made a shared one.
        let mine = |holder: &&ModelHolder| {
            let shared = mode == LockMode::Exclusive && holder.mode == LockMode::Shared;
            holder.token == *me && (holder.mode == mode || shared)
        };
        let had = self.holders.iter().find(mine).map(|holder| holder.expires_ms > self.now_ms);
        match reply {
            ReleaseOutcome::Released => assert_eq!(had, Some(true), "not its lock"),
            ReleaseOutcome::AlreadyExpired => assert_eq!(had, Some(false)),
            // An offer that has lapsed is told as left for as long as nobody else has looked.
            ReleaseOutcome::Withdrawn => assert!(self.waiters.contains_key(me)),
            ReleaseOutcome::NotFound => assert_ne!(had, Some(true), "its lock was taken"),
            ReleaseOutcome::NotFoundOnRetry => panic!("nothing was sent twice"),
        }
        if had.is_some() {
            self.remove_holder(me);
        }
        self.waiters.remove(me);
        self.reset_order_if_free();
    }

    pub(super) fn check_renewal(
        &mut self,
        me: &LockToken,
        mode: LockMode,
        lease: Duration,
        reply: bool,
    ) {
        assert_eq!(reply, self.is_held_as(me, mode));
        if reply {
            let until = self.deadline_after(lease);
            let mine = self.holders.iter_mut().filter(|holder| holder.token == *me);
            mine.for_each(|holder| holder.expires_ms = holder.expires_ms.max(until));
        }
    }

    /// Nothing else changes by it.
    pub(super) fn check_refresh(&mut self, me: &LockToken, reply: Option<GrantRefresh>) {
        assert_eq!(reply.is_some(), self.is_held_as(me, LockMode::Exclusive));
        if let Some(GrantRefresh { fence, .. }) = reply {
            assert!(fence > self.highest_fence, "fence {fence} after {}", self.highest_fence);
            self.highest_fence = fence + SPARE_FENCES;
        }
    }

    pub(super) fn check_downgrade(&mut self, me: &LockToken, lease: Duration, reply: bool) {
        let exclusive = self.is_held_as(me, LockMode::Exclusive);
        assert_eq!(reply, exclusive || self.is_held_as(me, LockMode::Shared));
        if exclusive {
            let until = self.deadline_after(lease);
            self.remove_holder(me);
            self.holders.push(ModelHolder {
                token: me.clone(),
                mode: LockMode::Shared,
                expires_ms: until,
            });
            // Those who read are let in.
            self.forget_waiting_order();
        }
    }
}

/// Whether one of this mode may be in beside one of the other, for as many as there are.
fn are_compatible(mode: LockMode, other: LockMode) -> bool {
    mode != LockMode::Exclusive && mode.wire_letter() == other.wire_letter()
}
