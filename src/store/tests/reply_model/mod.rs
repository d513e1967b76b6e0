//! `ReplyModel`: a plain model of locks and jobs, without queues and offers.
//!
//! It observes every reply. It predicts exactly what follows from the earlier replies. Which of
//! several waiters is next it cannot know; there it only excludes some.

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

/// Longest time by which an offer may outlive its waiter.
const OFFER_MS: u64 = 300;

struct ModelHolder {
    token: LockToken,
    mode: LockMode,
    expires_ms: u64,
}

struct ModelWaiter {
    seq: u64,
    deadline_ms: u64,
    /// Number of acquires at the last busy reply.
    refused_at_acquire: u64,
    /// Number of acquires since when it is certainly queued: it got a queue entry while an
    /// incompatible holder had the lock, and there has been one ever since. So it cannot have an
    /// offer.
    waiting_since: Option<u64>,
}

/// Model of one lock. Keys with a TTL include their last millisecond.
#[derive(Default)]
pub(super) struct ReplyModel {
    pub(super) now_ms: u64,
    /// State of the shard: whether a worker watches it, the end of the last watch, and the highest
    /// fence.
    pub(super) is_watched: bool,
    /// True if the shard was left to live workers that have not taken it yet.
    pub(super) is_between_workers: bool,
    pub(super) watched_until: u64,
    pub(super) highest_fence: u64,
    /// Tokens with a grant, and the ends of their leases.
    holders: Vec<ModelHolder>,
    /// Tokens that may be in the queue or have an offer.
    waiters: HashMap<LockToken, ModelWaiter>,
    /// Number of acquires so far.
    acquire_count: u64,
    /// Jobs in backoff, and its end.
    backoffs: HashMap<JobId, u64>,
    /// Time at which a settlement may have ended unrunnable jobs, and the end of their retention.
    uncertain_endings: Option<(u64, u64)>,
    /// In the order of acceptance.
    pub(super) jobs: Vec<AcceptedJob>,
    records: HashMap<Arc<str>, (JobId, String, u64)>,
    /// Latest job of each group, and the merged requests, each with an expiry.
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

    /// Returns the end of the last lease.
    fn last_lease_end(&self) -> Option<u64> {
        self.live_holders().map(|holder| holder.expires_ms).max()
    }

    pub(super) fn is_held_by(&self, token: &LockToken) -> bool {
        self.live_holders().any(|holder| holder.token == *token)
    }

    fn is_held_as(&self, token: &LockToken, mode: LockMode) -> bool {
        self.live_holders().any(|holder| holder.token == *token && holder.mode == mode)
    }

    fn remove_holder(&mut self, token: &LockToken) {
        self.holders.retain(|holder| holder.token != *token);
    }

    /// Returns true if the waiter believes that it is queued.
    pub(super) fn is_waiting(&self, token: &LockToken) -> bool {
        self.waiters.get(token).is_some_and(|waiter| waiter.deadline_ms > self.now_ms)
    }

    /// Must be called after every change: without a holder, any waiter may get an offer.
    pub(super) fn reset_order_if_free(&mut self) {
        if self.live_holders().next().is_none() {
            self.forget_waiting_order();
        }
    }

    fn forget_waiting_order(&mut self) {
        self.waiters.values_mut().for_each(|waiter| waiter.waiting_since = None);
    }

    /// Returns true if the holders exclude one more holder of this mode and limit.
    fn has_no_room_for(&self, mode: LockMode) -> bool {
        let is_same_mode =
            self.live_holders().all(|holder| holder.mode.wire_letter() == mode.wire_letter());
        match mode {
            LockMode::Exclusive => self.live_holders().next().is_some(),
            LockMode::Shared => !is_same_mode,
            LockMode::Permits(max_permits) => {
                !is_same_mode || self.live_holders().count() >= max_permits as usize
            }
        }
    }

    fn record_grant(&mut self, token: &LockToken, mode: LockMode, lease: Duration, fence: u64) {
        let now = self.now_ms;
        let is_own = |holder: &ModelHolder| holder.token == *token && holder.mode == mode;
        // A repeated acquire never shortens a lease.
        let previous_end = self
            .live_holders()
            .filter(|holder| is_own(holder))
            .map(|holder| holder.expires_ms)
            .max();
        let expires_ms = self.deadline_after(lease).max(previous_end.unwrap_or(0));
        self.holders.retain(|holder| holder.expires_ms > now && !is_own(holder));
        // With different permit limits, a holder with a higher limit may have entered while this
        // token had an offer.
        let widest_mode = self
            .live_holders()
            .map(|holder| holder.mode)
            .chain([mode])
            .max_by_key(|mode| mode.max_permits());
        let widest_mode =
            if let LockMode::Permits(_) = mode { widest_mode.unwrap_or(mode) } else { mode };
        assert!(!self.has_no_room_for(widest_mode), "it is held by others");
        assert!(fence > self.highest_fence, "fence {fence} after {}", self.highest_fence);
        self.highest_fence = fence + SPARE_FENCES;
        self.holders.push(ModelHolder { token: token.clone(), mode, expires_ms });
        self.waiters.remove(token);
    }

    /// Checks that no later token overtakes a queued waiter.
    fn check_queue_order(&self, call: &AcquireCommand) {
        let own_entry = self.waiters.get(&call.token);
        let resume_seq = Some(call.resume_seq).filter(|seq| *seq > 0);
        let seq = own_entry.map(|waiter| waiter.seq).or(resume_seq).unwrap_or(u64::MAX);
        for (other, waiter) in self.waiters.iter().filter(|(other, _)| **other != call.token) {
            let Some(since) = waiter.waiting_since.filter(|_| waiter.deadline_ms > self.now_ms)
            else {
                continue;
            };
            // It may have had an offer before the other one resumed its old sequence.
            let offered = own_entry.is_some_and(|own_entry| own_entry.refused_at_acquire < since);
            assert!(offered || seq < waiter.seq, "{other:?}, {}, is passed by {seq}", waiter.seq);
        }
    }

    /// Returns true if another waiter may have an offer or precede this one.
    fn may_others_precede(&self, token: &LockToken) -> bool {
        let mut others = self.waiters.iter().filter(|(other, _)| *other != token);
        others.any(|(_, waiter)| waiter.deadline_ms + OFFER_MS > self.now_ms)
    }

    fn jobs_may_be_served(&self) -> bool {
        let is_watched = self.watched_until + OFFER_MS >= self.now_ms;
        let first = self.queued_jobs().next();
        is_watched && first.is_some_and(|job| self.backoff_end(&job.id).is_none())
    }

    pub(super) fn check_acquire(&mut self, call: &AcquireCommand, reply: &AcquireReply) {
        self.reset_order_if_free();
        self.acquire_count += 1;
        let is_holder = self.is_held_as(&call.token, call.mode);
        let has_record =
            call.record_name.as_ref().is_some_and(|name| self.find_record(name).is_some())
                && !is_holder;
        assert_eq!(has_record, *reply == AcquireReply::AlreadyAccepted);
        let jobs = self.queued_jobs().count() as u64;
        match *reply {
            AcquireReply::Granted { fence, queue_length, .. } => {
                assert!(queue_length >= jobs);
                if !is_holder {
                    self.check_queue_order(call);
                }
                self.record_grant(&call.token, call.mode, call.lease, fence);
            }
            AcquireReply::Busy { lease_remaining, queue_length, seq, .. } => {
                assert!(!is_holder, "it has the lock");
                assert!(queue_length >= jobs);
                self.check_busy(call, lease_remaining);
                assert_eq!(call.max_wait.is_some(), seq > 0);
                if let Some(wait) = call.max_wait {
                    let deadline_ms = self.deadline_after(wait);
                    let acquire_count = self.acquire_count;
                    // A waiter whose entry has lapsed was not queued meanwhile, so later ones may
                    // have had an offer.
                    let is_same_entry = |waiter: &&ModelWaiter| {
                        waiter.seq == seq && waiter.deadline_ms > self.now_ms
                    };
                    let entry = self.waiters.get(&call.token).filter(is_same_entry);
                    let waiting_since =
                        entry.and_then(|waiter| waiter.waiting_since).or_else(|| {
                            let is_incompatible =
                                |holder: &ModelHolder| !are_compatible(call.mode, holder.mode);
                            self.live_holders().any(is_incompatible).then_some(acquire_count)
                        });
                    self.waiters.insert(
                        call.token.clone(),
                        ModelWaiter {
                            seq,
                            deadline_ms,
                            refused_at_acquire: acquire_count,
                            waiting_since,
                        },
                    );
                }
            }
            AcquireReply::AlreadyAccepted => {}
        }
    }

    /// Checks a busy reply: the lock is full, or others precede. Offers end before leases, so the
    /// remaining time is certain unless permits may have been offered.
    fn check_busy(&self, call: &AcquireCommand, lease_remaining: Duration) {
        if !self.has_no_room_for(call.mode) {
            let may_be_preceded = self.may_others_precede(&call.token) || self.jobs_may_be_served();
            assert!(may_be_preceded, "the lock is free and no entry precedes this one");
        }
        let mut ends = Vec::from_iter(self.live_holders().map(|holder| holder.expires_ms));
        ends.sort_unstable();
        let Some(last_end) = ends.last().map(|last_end| self.time_left(*last_end)) else {
            assert!(lease_remaining <= OFFER_TIMEOUT, "{lease_remaining:?} for an offer");
            return;
        };
        let are_permits = self.live_holders().all(|holder| are_compatible(call.mode, holder.mode));
        match call.mode {
            LockMode::Permits(max_permits) if are_permits => {
                match ends.len().checked_sub(max_permits as usize) {
                    Some(excess) => assert_eq!(lease_remaining, self.time_left(ends[excess])),
                    None => assert!(
                        lease_remaining <= OFFER_TIMEOUT || lease_remaining == last_end,
                        "{lease_remaining:?}"
                    ),
                }
            }
            _ => assert_eq!(lease_remaining, last_end),
        }
    }

    pub(super) fn check_release(
        &mut self,
        token: &LockToken,
        mode: LockMode,
        reply: ReleaseOutcome,
    ) {
        // A downgrade may have turned an exclusive hold into a shared one.
        let is_own = |holder: &&ModelHolder| {
            let shared = mode == LockMode::Exclusive && holder.mode == LockMode::Shared;
            holder.token == *token && (holder.mode == mode || shared)
        };
        let was_held =
            self.holders.iter().find(is_own).map(|holder| holder.expires_ms > self.now_ms);
        match reply {
            ReleaseOutcome::Released => assert_eq!(was_held, Some(true), "not its lock"),
            ReleaseOutcome::AlreadyExpired => assert_eq!(was_held, Some(false)),
            // A lapsed offer counts as withdrawn until another operation removes it.
            ReleaseOutcome::Withdrawn => assert!(self.waiters.contains_key(token)),
            ReleaseOutcome::NotFound => {
                assert_ne!(was_held, Some(true), "the token still holds the lock");
            }
            ReleaseOutcome::NotFoundOnRetry => panic!("nothing was sent twice"),
        }
        if was_held.is_some() {
            self.remove_holder(token);
        }
        self.waiters.remove(token);
        self.reset_order_if_free();
    }

    pub(super) fn check_renewal(
        &mut self,
        token: &LockToken,
        mode: LockMode,
        lease: Duration,
        reply: bool,
    ) {
        assert_eq!(reply, self.is_held_as(token, mode));
        if reply {
            let expires_ms = self.deadline_after(lease);
            let own_holds = self.holders.iter_mut().filter(|holder| holder.token == *token);
            own_holds.for_each(|holder| holder.expires_ms = holder.expires_ms.max(expires_ms));
        }
    }

    /// A refresh changes only the fence.
    pub(super) fn check_refresh(&mut self, token: &LockToken, reply: Option<GrantRefresh>) {
        assert_eq!(reply.is_some(), self.is_held_as(token, LockMode::Exclusive));
        if let Some(GrantRefresh { fence, .. }) = reply {
            assert!(fence > self.highest_fence, "fence {fence} after {}", self.highest_fence);
            self.highest_fence = fence + SPARE_FENCES;
        }
    }

    /// An operator takes the lock from all its holders. Their fences stay the highest so far.
    pub(super) fn check_forced_release(&mut self, reply: usize) {
        assert_eq!(reply, self.live_holders().count());
        let now = self.now_ms;
        self.holders.retain(|holder| holder.expires_ms <= now);
    }

    pub(super) fn check_downgrade(&mut self, token: &LockToken, lease: Duration, reply: bool) {
        let is_exclusive = self.is_held_as(token, LockMode::Exclusive);
        assert_eq!(reply, is_exclusive || self.is_held_as(token, LockMode::Shared));
        if is_exclusive {
            let expires_ms = self.deadline_after(lease);
            self.remove_holder(token);
            self.holders.push(ModelHolder {
                token: token.clone(),
                mode: LockMode::Shared,
                expires_ms,
            });
            // Readers may be admitted.
            self.forget_waiting_order();
        }
    }
}

/// Returns true if holders of the two modes are compatible, within their limits.
fn are_compatible(mode: LockMode, other: LockMode) -> bool {
    mode != LockMode::Exclusive && mode.wire_letter() == other.wire_letter()
}
