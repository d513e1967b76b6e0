//! Commands of one lock: `acquire.lua`, `new_fence_and_queue_snapshot.lua`, `release.lua` and
//! `downgrade.lua`.

use std::{sync::Arc, time::Duration};

use super::{
    lock_holders_and_queue::{BargingWindow, HolderEntry, MemoryQueueEntry},
    lock_transaction::LockTransaction,
};
use crate::store::backend::{
    AcquireCommand, AcquireReply, Contenders, GrantRefresh, LockMode, LockToken, ReleaseOutcome,
};

impl LockTransaction<'_> {
    pub(super) fn acquire(&mut self, command: &AcquireCommand) -> AcquireReply {
        let AcquireCommand { token, mode, .. } = command;
        self.expire_holders();
        let is_holder = self.lock.deadline_of(&HolderEntry::holder(*mode, token)).is_some();
        if !is_holder && self.has_live_record(command) {
            return AcquireReply::AlreadyAccepted;
        }
        if is_holder || self.lock.remove_holder(&HolderEntry::offer(*mode, token)) {
            return self.grant_and_reply(command);
        }
        // A token has at most one queue entry, even if this call is repeated.
        let has_entry = self.lock.waiter_of(token).is_some();
        let mut resume_seq = if has_entry { 0 } else { command.resume_seq };
        let exclusive = LockMode::Exclusive.wire_letter();
        let may_share = mode.wire_letter() != exclusive && self.held_mode() != Some(exclusive);
        if may_share && self.is_barging_expired(resume_seq) {
            resume_seq = 0;
        }
        if self.allows_mode(*mode) && self.is_first_in_queue(token, resume_seq) {
            if let Some(waiter) = self.lock.waiter_of(token) {
                self.lock.remove_waiter(&waiter);
            }
            // Jobs that are overtaken keep their position: the due time of their lock is now the
            // end of this lease. (An entry that is due already stays due: the worker's poll ends
            // the skipping.)
            let due = self.shard.due_index.get(self.key);
            if !self.lock.jobs.is_empty() && due.is_none_or(|due| due > self.now.ms) {
                self.schedule(self.now.deadline_after(command.lease));
            }
            return self.grant_and_reply(command);
        }
        let has_joined = command.max_wait.is_some() && self.lock.waiter_of(token).is_none();
        let seq = command.max_wait.map_or(0, |wait| self.join_queue(command, resume_seq, wait));
        // Every operation on a lock that admits more holders advances its queue. The entries before
        // the caller may have its mode: then the caller is granted with them.
        self.offer_next();
        if *mode != LockMode::Exclusive
            && self.lock.remove_holder(&HolderEntry::offer(*mode, token))
        {
            return self.grant_and_reply(command);
        }
        let (lease_remaining, queue_length) = self.estimate_wait(*mode);
        AcquireReply::Busy { lease_remaining, queue_length, seq, has_joined }
    }

    /// Returns true if the request was accepted before. Checked before a free lock is granted: a
    /// retry after a lost 202 must find its job instead of running again.
    fn has_live_record(&mut self, command: &AcquireCommand) -> bool {
        let Some(record_name) = &command.record_name else { return false };
        let name = (self.key.clone(), Arc::clone(record_name));
        let record = self.idempotency_records.get(&name, self.now.ms);
        let job_id = record.map(|record| record.job_id.clone());
        job_id.is_some_and(|id| !self.reclaim_crashed_record(record_name, &id))
    }

    fn grant_and_reply(&mut self, command: &AcquireCommand) -> AcquireReply {
        let fence = self.grant(&command.token, command.mode, command.lease);
        // Waiters of the same mode may be next, and no other operation would offer the lock to
        // them.
        if command.mode != LockMode::Exclusive {
            self.offer_next();
        }
        let queue_length = self.lock.queue_len();
        AcquireReply::Granted {
            fence,
            queue_length,
            contenders: self.contenders(),
            server_us: self.now.us,
        }
    }

    /// Returns the next fence and the contenders; `None` if the lock is not held any more.
    pub(super) fn refresh_grant(&mut self, token: &LockToken) -> Option<GrantRefresh> {
        let deadline = self.lock.deadline_of(&HolderEntry::holder(LockMode::Exclusive, token));
        deadline.filter(|deadline| *deadline > self.now.ms)?;
        let fence = self.next_fence();
        Some(GrantRefresh { fence, contenders: self.contenders(), server_us: self.now.us })
    }

    fn contenders(&mut self) -> Contenders {
        let first_waiter = self
            .first_live_waiter()
            .map_or(Contenders::NONE, |waiter| Contenders::from_waiter(waiter.seq));
        first_waiter.merge(
            self.first_available_job()
                .map_or(Contenders::NONE, |(seq, _)| Contenders::from_job(seq)),
        )
    }

    /// Returns true if no entry precedes the caller.
    fn is_first_in_queue(&mut self, token: &LockToken, resume_seq: u64) -> bool {
        match self.queue_head() {
            None => true,
            Some((seq, waiter)) => {
                waiter.is_some_and(|waiter| waiter.token == *token)
                    || (resume_seq > 0 && resume_seq < seq)
            }
        }
    }

    /// Returns true if an entry that resumes at this sequence would overtake the queue head, and
    /// other entries have done so for one offer timeout already: see `acquire.lua`.
    fn is_barging_expired(&mut self, resume_seq: u64) -> bool {
        // The search for the head removes expired entries, so it is skipped without need, as in the
        // script.
        let head = if resume_seq > 0 { self.queue_head() } else { None };
        let Some((head_seq, _)) = head.filter(|(head_seq, _)| resume_seq < *head_seq) else {
            return false;
        };
        match self.lock.barging_window {
            Some(window) if window.head_seq >= head_seq => window.ends_ms <= self.now.ms,
            _ => {
                let ends_ms = self.offer_deadline();
                self.lock.barging_window = Some(BargingWindow { head_seq, ends_ms });
                false
            }
        }
    }

    /// Joins the queue, or extends the entry that is there. Returns its sequence.
    fn join_queue(&mut self, command: &AcquireCommand, resume_seq: u64, wait: Duration) -> u64 {
        let AcquireCommand { token, mode, .. } = command;
        let seq = match self.lock.waiter_of(token) {
            Some(waiter) => {
                self.lock.remove_waiter(&waiter);
                waiter.seq
            }
            None => {
                let mut seq = self.next_seq();
                if resume_seq > 0 {
                    seq = seq.min(resume_seq);
                }
                self.announce_join(Contenders::from_waiter(seq));
                seq
            }
        };
        let deadline = self.now.deadline_after(wait);
        self.lock.insert_waiter(MemoryQueueEntry {
            seq,
            deadline,
            token: token.clone(),
            mode: *mode,
        });
        seq
    }

    pub(super) fn next_seq(&mut self) -> u64 {
        // A time, for the same reason as a fence: see `wait_queue.lua`.
        self.shard.last_seq = (self.shard.last_seq + 1).max(self.now.us);
        self.shard.last_seq
    }

    pub(super) fn release(&mut self, token: &LockToken, mode: LockMode) -> ReleaseOutcome {
        self.release_before_acquire(token, mode, 0)
    }

    /// Releases the lock in front of an acquire in the same call. `arrived_us` is the server time
    /// at which that caller arrived, or 0 if unknown. An exclusive lock is left to this caller if
    /// no contender arrived before it.
    pub(super) fn release_before_acquire(
        &mut self,
        token: &LockToken,
        mode: LockMode,
        arrived_us: u64,
    ) -> ReleaseOutcome {
        let requested_mode = mode;
        let (mut mode, mut holder) = (mode, HolderEntry::holder(mode, token));
        let shared = HolderEntry::holder(LockMode::Shared, token);
        let is_unheld = self.lock.deadline_of(&holder).is_none();
        if is_unheld && mode == LockMode::Exclusive && self.lock.deadline_of(&shared).is_some() {
            // The lock was downgraded, and the reply was lost.
            (mode, holder) = (LockMode::Shared, shared);
        }
        let deadline = self.lock.deadline_of(&holder);
        let waiter = self.lock.waiter_of(token);
        if let Some(waiter) = &waiter {
            self.lock.remove_waiter(waiter);
        }
        // Offers of both modes: a downgraded holder may have acquired again before the downgrade.
        let had_offer = self.lock.remove_holder(&HolderEntry::offer(mode, token))
            | self.lock.remove_holder(&HolderEntry::offer(requested_mode, token));
        let was_holder = self.lock.remove_holder(&holder) | had_offer;
        if !was_holder && waiter.is_none() {
            return ReleaseOutcome::NotFound;
        }
        let is_in_time = deadline.is_some_and(|deadline| deadline > self.now.ms);
        let goes_to_caller = is_in_time
            && requested_mode == LockMode::Exclusive
            && self.precedes_all_contenders(arrived_us);
        if !goes_to_caller {
            self.offer_next();
        }
        match deadline {
            None => ReleaseOutcome::Withdrawn,
            Some(deadline) if deadline > self.now.ms => ReleaseOutcome::Released,
            Some(_) => ReleaseOutcome::AlreadyExpired,
        }
    }

    /// Returns true if there are contenders, and all of them arrived later than `arrived_us`; 0
    /// means an unknown time. False while sequences are ahead of the clock: see `release.lua`.
    fn precedes_all_contenders(&mut self, arrived_us: u64) -> bool {
        let is_comparable = arrived_us > 0 && self.shard.last_seq <= self.now.us;
        is_comparable && self.queue_head().is_some_and(|(head_seq, _)| arrived_us < head_seq)
    }

    /// Returns false if the lock was not held any more.
    pub(super) fn downgrade(&mut self, token: &LockToken, lease: Duration) -> bool {
        let now = self.now.ms;
        let (shared, exclusive) = (
            HolderEntry::holder(LockMode::Shared, token),
            HolderEntry::holder(LockMode::Exclusive, token),
        );
        if let Some(deadline) = self.lock.deadline_of(&shared) {
            return deadline > now;
        }
        if self.lock.deadline_of(&exclusive).is_none_or(|deadline| deadline <= now) {
            return false;
        }
        self.lock.remove_holder(&exclusive);
        self.lock.insert_holder(shared, self.now.deadline_after(lease));
        self.offer_next();
        true
    }
}
