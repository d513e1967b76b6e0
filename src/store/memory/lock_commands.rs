//! `acquire.lua`, `refresh_grant.lua`, `release.lua` and `downgrade.lua`.

use std::{sync::Arc, time::Duration};

use super::{
    lock_state::{HolderEntry, MemoryQueueEntry},
    lock_transaction::LockTransaction,
};
use crate::store::backend::{
    AcquireCommand, AcquireReply, Contenders, GrantRefresh, LockMode, LockToken, ReleaseOutcome,
};

impl LockTransaction<'_> {
    pub(super) fn acquire(&mut self, call: &AcquireCommand) -> AcquireReply {
        let AcquireCommand { token: me, mode, .. } = call;
        self.expire_holders();
        let mine = self.lock.deadline_of(&HolderEntry::holder(*mode, me)).is_some();
        if !mine && self.has_live_record(call) {
            return AcquireReply::AlreadyAccepted;
        }
        if mine || self.lock.remove_holder(&HolderEntry::offer(*mode, me)) {
            return self.grant_and_reply(call);
        }
        // A token has at most one queue entry, even if this call is repeated.
        let has_place = self.lock.waiter_of(me).is_some();
        let mut old_seq = if has_place { 0 } else { call.resume_seq };
        let exclusive = LockMode::Exclusive.wire_letter();
        let room = mode.wire_letter() != exclusive && self.held_mode() != Some(exclusive);
        if room && self.is_barging_expired(old_seq) {
            old_seq = 0;
        }
        if self.allows_mode(*mode) && self.is_first_in_queue(me, old_seq) {
            if let Some(place) = self.lock.waiter_of(me) {
                self.lock.remove_waiter(&place);
            }
            // Jobs that are overtaken keep their place: the due time of their lock is now the end
            // of this lease. (An entry that is due already stays due: the worker's poll ends the
            // skipping.)
            let due = self.shard.due_index.get(self.key);
            if !self.lock.jobs.is_empty() && due.is_none_or(|due| due > self.now.ms) {
                self.schedule(self.now.deadline_after(call.lease));
            }
            return self.grant_and_reply(call);
        }
        let joined = call.max_wait.is_some() && self.lock.waiter_of(me).is_none();
        let seq = call.max_wait.map_or(0, |wait| self.join_queue(call, old_seq, wait));
        // Every operation on a lock with room advances its queue. The entries before the caller may
        // have its mode: then the caller is granted with them.
        self.offer_next();
        if *mode != LockMode::Exclusive && self.lock.remove_holder(&HolderEntry::offer(*mode, me)) {
            return self.grant_and_reply(call);
        }
        let (left, line) = self.estimate_wait(*mode);
        AcquireReply::Busy { lease_remaining: left, queue_length: line, seq, has_joined: joined }
    }

    /// Returns true if the request was accepted before. Checked before a free lock is granted: a
    /// retry after a lost 202 must find its job instead of running again.
    fn has_live_record(&mut self, call: &AcquireCommand) -> bool {
        let Some(record) = &call.record_name else { return false };
        let name = (self.key.clone(), Arc::clone(record));
        let known = self.idempotency_records.get(&name, self.now.ms).map(|(id, _)| id.clone());
        known.is_some_and(|id| !self.reclaim_crashed_record(record, &id))
    }

    fn grant_and_reply(&mut self, call: &AcquireCommand) -> AcquireReply {
        let fence = self.grant(&call.token, call.mode, call.lease);
        // Waiters of the same mode may be next, and no other operation would offer the lock to
        // them.
        if call.mode != LockMode::Exclusive {
            self.offer_next();
        }
        let line = self.lock.queue_len();
        AcquireReply::Granted {
            fence,
            queue_length: line,
            contenders: self.contenders(),
            server_us: self.now.us,
        }
    }

    /// Returns the next fence and the contenders; `None` if the lock is not held any more.
    pub(super) fn refresh_grant(&mut self, me: &LockToken) -> Option<GrantRefresh> {
        let held = self.lock.deadline_of(&HolderEntry::holder(LockMode::Exclusive, me));
        held.filter(|deadline| *deadline > self.now.ms)?;
        let fence = self.next_fence();
        Some(GrantRefresh { fence, contenders: self.contenders(), server_us: self.now.us })
    }

    fn contenders(&mut self) -> Contenders {
        let place = self
            .first_live_waiter()
            .map_or(Contenders::NONE, |place| Contenders::from_waiter(place.seq));
        place.merge(
            self.first_available_job()
                .map_or(Contenders::NONE, |(seq, _)| Contenders::from_job(seq)),
        )
    }

    /// Returns true if no entry precedes the caller.
    fn is_first_in_queue(&mut self, me: &LockToken, old_seq: u64) -> bool {
        match self.queue_head() {
            None => true,
            Some((seq, place)) => {
                place.is_some_and(|place| place.token == *me) || (old_seq > 0 && old_seq < seq)
            }
        }
    }

    /// Returns true if an entry of this old sequence would overtake the queue head, and others have
    /// done so for one offer timeout already: see `acquire.lua`.
    fn is_barging_expired(&mut self, old_seq: u64) -> bool {
        // The search for the head removes expired entries, so it is skipped without need, as in the
        // script.
        let first = if old_seq > 0 { self.queue_head() } else { None };
        let Some((first, _)) = first.filter(|(first, _)| old_seq < *first) else {
            return false;
        };
        match self.lock.barging_window {
            Some((whom, until)) if whom >= first => until <= self.now.ms,
            _ => {
                self.lock.barging_window = Some((first, self.offer_deadline()));
                false
            }
        }
    }

    /// Joins the queue, or extends the entry that is there. Returns its sequence.
    fn join_queue(&mut self, call: &AcquireCommand, old_seq: u64, wait: Duration) -> u64 {
        let AcquireCommand { token: me, mode, .. } = call;
        let seq = match self.lock.waiter_of(me) {
            Some(place) => {
                self.lock.remove_waiter(&place);
                place.seq
            }
            None => {
                let mut seq = self.next_seq();
                if old_seq > 0 {
                    seq = seq.min(old_seq);
                }
                self.announce_join(Contenders::from_waiter(seq));
                seq
            }
        };
        let deadline = self.now.deadline_after(wait);
        self.lock.insert_waiter(MemoryQueueEntry { seq, deadline, token: me.clone(), mode: *mode });
        seq
    }

    pub(super) fn next_seq(&mut self) -> u64 {
        // A time, for the same reason as a fence: see `wait_queue.lua`.
        self.shard.last_seq = (self.shard.last_seq + 1).max(self.now.us);
        self.shard.last_seq
    }

    pub(super) fn release(&mut self, me: &LockToken, mode: LockMode) -> ReleaseOutcome {
        self.release_before_acquire(me, mode, 0)
    }

    /// Releases the lock in front of an acquire in the same call. `came` is the server time at
    /// which that caller arrived, or 0 if unknown. An exclusive lock is left to this caller if no
    /// contender arrived before it.
    pub(super) fn release_before_acquire(
        &mut self,
        me: &LockToken,
        mode: LockMode,
        came: u64,
    ) -> ReleaseOutcome {
        let asked = HolderEntry::offer(mode, me);
        let asked_for = mode;
        let (mut mode, mut holds) = (mode, HolderEntry::holder(mode, me));
        let shared = HolderEntry::holder(LockMode::Shared, me);
        let none = self.lock.deadline_of(&holds).is_none();
        if none && mode == LockMode::Exclusive && self.lock.deadline_of(&shared).is_some() {
            // The lock was downgraded, and the reply was lost.
            (mode, holds) = (LockMode::Shared, shared);
        }
        let held = self.lock.deadline_of(&holds);
        let place = self.lock.waiter_of(me);
        if let Some(place) = &place {
            self.lock.remove_waiter(place);
        }
        // Offers of both modes: a downgraded holder may have asked again before the downgrade.
        let offered = self.lock.remove_holder(&HolderEntry::offer(mode, me))
            | self.lock.remove_holder(&asked);
        let taken = self.lock.remove_holder(&holds) | offered;
        if !taken && place.is_none() {
            return ReleaseOutcome::NotFound;
        }
        let in_time = held.is_some_and(|deadline| deadline > self.now.ms);
        if !(in_time && asked_for == LockMode::Exclusive && self.precedes_all_contenders(came)) {
            self.offer_next();
        }
        match held {
            None => ReleaseOutcome::Withdrawn,
            Some(deadline) if deadline > self.now.ms => ReleaseOutcome::Released,
            Some(_) => ReleaseOutcome::AlreadyExpired,
        }
    }

    /// Returns true if there are contenders, and all of them arrived later than `came`; 0 means an
    /// unknown time. False while sequences are ahead of the clock: see `release.lua`.
    fn precedes_all_contenders(&mut self, came: u64) -> bool {
        let told_by_the_clock = came > 0 && self.shard.last_seq <= self.now.us;
        told_by_the_clock && self.queue_head().is_some_and(|(first, _)| came < first)
    }

    /// Returns false if the lock was not held any more.
    pub(super) fn downgrade(&mut self, me: &LockToken, lease: Duration) -> bool {
        let now = self.now.ms;
        let (shared, held) = (
            HolderEntry::holder(LockMode::Shared, me),
            HolderEntry::holder(LockMode::Exclusive, me),
        );
        if let Some(deadline) = self.lock.deadline_of(&shared) {
            return deadline > now;
        }
        if self.lock.deadline_of(&held).is_none_or(|deadline| deadline <= now) {
            return false;
        }
        self.lock.remove_holder(&held);
        self.lock.insert_holder(shared, self.now.deadline_after(lease));
        self.offer_next();
        true
    }
}
