//! Local queue of one lock and mode: waiters, handover tokens and the last queue snapshot.

use std::{collections::VecDeque, sync::Arc};

use smallvec::SmallVec;
use tokio::{sync::Notify, time::Instant};

use super::{
    announced_joins::AnnouncedJoins,
    handover_prefetcher::HandoverPrefetcher,
    queue_snapshot::{FenceRange, QueueSnapshot},
    queued_waiter::{QueuedWaiter, RemovedWaitersToNotify},
};
use crate::{
    lock::lock_outcome::LockBusy,
    store::{Contenders, LockLease, LockMode, LockToken},
};

/// Local queue of one lock and mode. It exists exactly while a guard, an acquirer or a waiter does.
#[derive(Default)]
pub(super) struct LocalQueue {
    pub(super) waiters: VecDeque<QueuedWaiter>,
    /// Tokens of this process's leases that may be handed over.
    pub(super) handover_tokens: SmallVec<[LockToken; 1]>,
    /// Set while a leader or a queue task asks the store for this process; notified when a waiter
    /// leaves.
    pub(super) acquirer: Option<Arc<Notify>>,
    /// True if the acquirer is a leader, which asks in its own future instead of a task.
    pub(super) has_leader: bool,
    pub(super) snapshot: Option<QueueSnapshot>,
    /// Joins that the next snapshot may lack.
    pub(super) announced_joins: Option<AnnouncedJoins>,
    /// Last busy answer of the store.
    pub(super) last_busy: Option<LockBusy>,
    pub(super) prefetcher: HandoverPrefetcher,
}

impl LocalQueue {
    pub(super) fn is_empty(&self) -> bool {
        self.waiters.is_empty() && self.handover_tokens.is_empty() && self.acquirer.is_none()
    }

    /// Returns true if a newcomer must queue behind others of this process, which are or will be
    /// served.
    pub(super) fn is_occupied(&self, mode: LockMode) -> bool {
        let is_held_for_handover = mode == LockMode::Exclusive && !self.handover_tokens.is_empty();
        is_held_for_handover || self.acquirer.is_some() || !self.waiters.is_empty()
    }

    pub(super) fn remove_departed(&mut self, departed: &mut RemovedWaitersToNotify) {
        let (now, length) = (Instant::now(), self.waiters.len());
        // Usually all of them still wait.
        if self.waiters.iter().all(|waiter| waiter.is_waiting(now)) {
            return;
        }
        for waiter in std::mem::take(&mut self.waiters) {
            if waiter.is_waiting(now) {
                self.waiters.push_back(waiter);
            } else {
                departed.add(waiter, self.last_busy.as_ref(), length);
            }
        }
    }

    /// Records a process or job that joined the store's queue.
    pub(super) fn record_join(&mut self, joined: Contenders) {
        if let Some(snapshot) = &mut self.snapshot {
            snapshot.add(joined);
        }
        self.announced_joins = Some(AnnouncedJoins::add(self.announced_joins, joined));
    }

    /// Removes departed waiters from the front, up to the first that still waits.
    pub(super) fn remove_departed_at_front(&mut self, departed: &mut RemovedWaitersToNotify) {
        if self.waiters.is_empty() {
            return;
        }
        let (now, length) = (Instant::now(), self.waiters.len());
        while self.waiters.front().is_some_and(|first_waiter| !first_waiter.is_waiting(now))
            && let Some(waiter) = self.waiters.pop_front()
        {
            departed.add(waiter, self.last_busy.as_ref(), length);
        }
    }

    /// Returns the next waiter and its fence if the lock may be handed over to it.
    pub(super) fn next_handover(
        &mut self,
        lease: &LockLease,
        fences: &mut FenceRange,
    ) -> Option<(QueuedWaiter, u64)> {
        self.prefetcher.apply_prefetched_fences(&lease.token, fences);
        let first_waiter = self.waiters.front()?;
        let snapshot = self.snapshot.as_ref()?;
        let is_allowed = self.handover_tokens.contains(&lease.token)
            && first_waiter.options.terms == lease.terms
            && first_waiter.options.handover_limits == fences.limits()
            && snapshot.allows_handover_to(first_waiter.arrived_at, fences)
            && lease.allows_handover();
        let fence = if is_allowed { fences.take()? } else { return None };
        self.prefetcher.on_handover(fences);
        Some((self.waiters.pop_front()?, fence))
    }

    /// Ends the handovers of a lease. Returns the notify of a new queue task if one must be
    /// started, because waiters are left and no acquirer is registered.
    pub(super) fn end_handovers(&mut self, token: &LockToken) -> Option<Arc<Notify>> {
        self.handover_tokens.retain(|handover_token| handover_token != token);
        self.prefetcher.end_hold();
        if self.waiters.is_empty() || self.acquirer.is_some() {
            return None;
        }
        Some(self.register_queue_task())
    }

    /// Registers a queue task that is about to start, and returns its notify.
    pub(super) fn register_queue_task(&mut self) -> Arc<Notify> {
        let acquirer_notify = Arc::new(Notify::new());
        (self.acquirer, self.has_leader) = (Some(Arc::clone(&acquirer_notify)), false);
        acquirer_notify
    }

    /// Makes the leader the acquirer of the current waiters. Returns false if another acquirer is
    /// registered, or if a handover will serve them.
    pub(super) fn promote_leader(&mut self, acquirer_notify: &Arc<Notify>, mode: LockMode) -> bool {
        let is_served_by_handover = mode == LockMode::Exclusive && !self.handover_tokens.is_empty();
        let has_no_acquirer = self.acquirer.is_none() && !is_served_by_handover;
        if !has_no_acquirer && !self.has_acquirer(acquirer_notify) {
            return false;
        }
        (self.acquirer, self.has_leader) = (Some(Arc::clone(acquirer_notify)), false);
        true
    }

    pub(super) fn has_acquirer(&self, acquirer_notify: &Arc<Notify>) -> bool {
        self.acquirer.as_ref().is_some_and(|registered| Arc::ptr_eq(registered, acquirer_notify))
    }
}
