//! Operation on one lock: `wait_queue.lua` of the embedded store. The order of its parts is the
//! same there.

use std::{collections::HashSet, sync::Arc, time::Duration};

use super::{
    expiring_map::ExpiringMap,
    idempotency_record_expiry_and_limit::IdempotencyRecord,
    job_record::JobRecord,
    local_pubsub::OutgoingWakeup,
    lock_holders_and_queue::{HolderEntry, LockHoldersAndQueue, MemoryQueueEntry},
    memory_shard::ServerTime,
    shard_state::ShardState,
};
use crate::{
    key::Key,
    store::{
        backend::{Contenders, JobId, LockMode, LockToken, OFFER_TIMEOUT, SPARE_FENCES},
        wakeup_message::WakeupMessage,
    },
};

/// Maximum number of entries that one operation examines. It bounds the running time of the
/// operation, not the length of the queue.
pub(super) const SCAN_LIMIT: usize = 100;

/// Name of an idempotency record or of a merge group, with its lock: the same name under another
/// lock is another record or group.
pub(super) type LockScopedName = (Key, Arc<str>);

/// Operation on one lock.
pub(super) struct LockTransaction<'a> {
    pub(super) key: &'a Key,
    pub(super) lock: &'a mut LockHoldersAndQueue,
    pub(super) shard: &'a mut ShardState,
    pub(super) jobs: &'a mut ExpiringMap<JobId, JobRecord>,
    pub(super) idempotency_records: &'a mut ExpiringMap<LockScopedName, IdempotencyRecord>,
    pub(super) outbox: &'a mut Vec<OutgoingWakeup>,
    pub(super) now: ServerTime,
}

impl LockTransaction<'_> {
    pub(super) fn offer_deadline(&self) -> u64 {
        self.now.deadline_after(OFFER_TIMEOUT)
    }

    pub(super) fn send_wakeup(&mut self, node: &str, message: WakeupMessage) {
        let recipient = Some(node.into());
        self.outbox.push(OutgoingWakeup { recipient, message });
    }

    pub(super) fn publish_job_change(&mut self, id: &JobId) {
        let message = WakeupMessage::JobChanged(id.clone());
        self.outbox.push(OutgoingWakeup { recipient: None, message });
    }

    /// Removes expired holders and offers. Returns the latest remaining deadline, or `None` if the
    /// lock is free.
    pub(super) fn expire_holders(&mut self) -> Option<u64> {
        let now = self.now.ms;
        self.lock.holders.retain(|(_, deadline)| *deadline > now);
        self.lock.holders.iter().map(|(_, deadline)| *deadline).max()
    }

    /// Returns the mode of the current holders; `None` if the lock is free.
    pub(super) fn held_mode(&mut self) -> Option<&'static str> {
        self.expire_holders()?;
        self.lock.holders.first().map(|(member, _)| member.mode_letter())
    }

    /// Returns true if one more holder of this mode is admissible.
    pub(super) fn allows_mode(&mut self, mode: LockMode) -> bool {
        match self.held_mode() {
            None => true,
            Some(held_mode) if held_mode != mode.wire_letter() => false,
            Some(_) => match mode {
                LockMode::Exclusive => false,
                LockMode::Shared => true,
                LockMode::Permits(max_permits) => self.lock.holders.len() < max_permits as usize,
            },
        }
    }

    /// Returns the time until the deadline that a busy request waits for, and the length of the
    /// queue. If only permits are missing, that is the deadline after which fewer than the maximum
    /// are held.
    pub(super) fn estimate_wait(&mut self, mode: LockMode) -> (Duration, u64) {
        let mut deadline = self.expire_holders();
        if let LockMode::Permits(max_permits) = mode
            && self.held_mode() == Some(mode.wire_letter())
        {
            let mut deadlines =
                Vec::from_iter(self.lock.holders.iter().map(|(_, deadline)| *deadline));
            deadlines.sort_unstable();
            let excess = deadlines.len().checked_sub(max_permits as usize);
            deadline = excess.and_then(|excess| deadlines.get(excess).copied()).or(deadline);
        }
        let remaining_ms =
            deadline.unwrap_or_else(|| self.offer_deadline()).saturating_sub(self.now.ms);
        (Duration::from_millis(remaining_ms.max(1)), self.lock.queue_len())
    }

    /// Grants the lock with a fence above every fence ever given in this shard; the holder owns the
    /// spare fences too.
    pub(super) fn grant(&mut self, token: &LockToken, mode: LockMode, lease: Duration) -> u64 {
        let (fence, member) = (self.next_fence(), HolderEntry::holder(mode, token));
        // A delayed copy of a call must not shorten the lease.
        let deadline =
            self.lock.deadline_of(&member).unwrap_or(0).max(self.now.deadline_after(lease));
        self.lock.insert_holder(member, deadline);
        fence
    }

    pub(super) fn next_fence(&mut self) -> u64 {
        let fence = (self.shard.highest_fence + 1).max(self.now.us);
        self.shard.highest_fence = fence + SPARE_FENCES;
        fence
    }

    /// Sets the time at which a worker has to poll this lock, and wakes the watching node if that
    /// is earlier than its next poll. An overdue other lock does not suppress the wake-up: the
    /// worker has polled it already, and may not poll again because of it.
    pub(super) fn schedule(&mut self, due_ms: u64) {
        let first_due_ms = self.shard.due_index.iter().next().map(|(first_due_ms, _)| first_due_ms);
        self.shard.due_index.set(self.key, due_ms);
        let is_sooner = first_due_ms
            .is_none_or(|first_due_ms| first_due_ms <= self.now.ms || due_ms < first_due_ms);
        if let Some(node) = self.shard.watching_node(self.now).filter(|_| is_sooner).cloned() {
            self.send_wakeup(&node, WakeupMessage::ShardDue(self.key.shard()));
        }
    }

    /// Like `schedule`, but never moves a poll to a later time. The poll ends the skipping of jobs,
    /// and traffic must not postpone it.
    pub(super) fn schedule_no_later(&mut self, due_ms: u64) {
        if self.shard.due_index.get(self.key).is_none_or(|due| due > due_ms) {
            self.schedule(due_ms);
        }
    }

    /// Announces an arrival in the queue to the processes of all holders, once each.
    pub(super) fn announce_join(&mut self, arrival: Contenders) {
        let mut notified_nodes = HashSet::new();
        for (member, _) in self.lock.holders.iter().take(SCAN_LIMIT) {
            if let HolderEntry::Holder(_, token) = member
                && notified_nodes.insert(token.node())
            {
                let recipient = Some(token.node().into());
                let message = WakeupMessage::QueueJoin(self.key.clone(), arrival);
                self.outbox.push(OutgoingWakeup { recipient, message });
            }
        }
    }

    /// Returns the first entry that has not expired. (Removes all expired ones before it, which is
    /// cheap here. The script examines at most `SCAN_LIMIT`, and lets no entry overtake the rest.)
    pub(super) fn first_live_waiter(&mut self) -> Option<MemoryQueueEntry> {
        loop {
            let waiter = self.lock.waiters.first()?.clone();
            if waiter.deadline > self.now.ms {
                return Some(waiter);
            }
            self.lock.remove_waiter(&waiter);
        }
    }

    /// Returns the end of this job's backoff, if it lasts.
    pub(super) fn backoff_end(&self, job: &JobId) -> Option<u64> {
        self.lock.backoffs.end_of(job).filter(|end_ms| *end_ms > self.now.ms)
    }

    /// Returns the first job, unless the jobs are skipped: an offer to them was not taken, the
    /// first one is in backoff, or no worker watches the shard.
    pub(super) fn first_available_job(&self) -> Option<(u64, JobId)> {
        let is_offer_lapsed =
            self.lock.job_offer_deadline.is_some_and(|deadline| deadline <= self.now.ms);
        let is_watched = self.shard.watching_node(self.now).is_some();
        let is_servable = is_watched && !is_offer_lapsed;
        self.lock
            .first_job()
            .filter(|(_, id)| is_servable && self.backoff_end(id).is_none())
            .cloned()
    }

    /// Returns the sequence of the queue head, and its entry unless it is a job; `None` if no entry
    /// can be served.
    pub(super) fn queue_head(&mut self) -> Option<(u64, Option<MemoryQueueEntry>)> {
        let waiter = self.first_live_waiter();
        match (waiter, self.first_available_job()) {
            (waiter, Some((seq, _))) if waiter.as_ref().is_none_or(|waiter| seq < waiter.seq) => {
                Some((seq, None))
            }
            (waiter, _) => waiter.map(|waiter| (waiter.seq, Some(waiter))),
        }
    }

    /// Offers the lock, for one offer timeout, to the entries at the head of the queue that are
    /// admissible beside the holders: one exclusive waiter, all leading shared ones, or as many as
    /// there are permits. The entry of a waiter leaves the queue, since a dead one would block it.
    /// A job stays, and is skipped unless a worker claims it in time.
    pub(super) fn offer_next(&mut self) {
        for _ in 0..SCAN_LIMIT {
            let held_mode = self.held_mode();
            if held_mode == Some(LockMode::Exclusive.wire_letter()) {
                return;
            }
            match self.queue_head() {
                Some((_, Some(waiter))) => {
                    if !self.allows_mode(waiter.mode) {
                        return;
                    }
                    self.offer_to_waiter(&waiter);
                    if waiter.mode == LockMode::Exclusive {
                        return;
                    }
                }
                _ if held_mode.is_some() => return,
                Some((_, None)) => return self.offer_to_first_job(),
                None => {
                    // Skipped jobs on a free lock: a worker polls when it arrives, or when the
                    // backoff ends.
                    if let Some((_, first_job)) = self.lock.first_job() {
                        self.schedule(self.backoff_end(first_job).unwrap_or(self.now.ms));
                    }
                    return;
                }
            }
        }
    }

    fn offer_to_waiter(&mut self, waiter: &MemoryQueueEntry) {
        let deadline = self.offer_deadline();
        self.lock.remove_waiter(waiter);
        self.lock.insert_holder(HolderEntry::offer(waiter.mode, &waiter.token), deadline);
        self.send_wakeup(waiter.token.node(), WakeupMessage::Offer(waiter.token.clone()));
        if !self.lock.jobs.is_empty() {
            self.schedule_no_later(deadline);
        }
    }

    fn offer_to_first_job(&mut self) {
        let deadline = self.offer_deadline();
        let Some((_, id)) = self.lock.first_job().cloned() else {
            return;
        };
        self.lock.insert_holder(HolderEntry::JobOffer(id.clone()), deadline);
        self.lock.job_offer_deadline = Some(deadline);
        self.shard.due_index.set(self.key, self.now.ms);
        if let Some(node) = self.shard.watching_node(self.now).cloned() {
            self.send_wakeup(&node, WakeupMessage::JobOffer(self.key.clone(), id));
        }
    }
}
