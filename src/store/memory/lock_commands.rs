//! `acquire.lua`, `still.lua`, `release.lua` and `downgrade.lua`.

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
        // Who has a place has no other: also where this call comes a second time.
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
            // Jobs that are passed over keep their turn: their lock has an end to wait for again.
            // (One that is due already stays so: a worker's look ends the passing over.)
            let due = self.shard.due_index.get(self.key);
            if !self.lock.jobs.is_empty() && due.is_none_or(|due| due > self.now.ms) {
                self.schedule(self.now.deadline_after(call.lease));
            }
            return self.grant_and_reply(call);
        }
        let joined = call.max_wait.is_some() && self.lock.waiter_of(me).is_none();
        let seq = call.max_wait.map_or(0, |wait| self.join_queue(call, old_seq, wait));
        // Every visit to a lock with room moves its line on. Those before the caller may have been of its
        // mode: then it is among those who come in.
        self.offer_next();
        if *mode != LockMode::Exclusive && self.lock.remove_holder(&HolderEntry::offer(*mode, me)) {
            return self.grant_and_reply(call);
        }
        let (left, line) = self.estimate_wait(*mode);
        AcquireReply::Busy { lease_remaining: left, queue_length: line, seq, has_joined: joined }
    }

    /// Before a free lock is taken: a retry after a lost 202 must find its job, not run again.
    fn has_live_record(&mut self, call: &AcquireCommand) -> bool {
        let Some(record) = &call.record_name else { return false };
        let name = (self.key.clone(), Arc::clone(record));
        let known = self.idempotency_records.get(&name, self.now.ms).map(|(id, _)| id.clone());
        known.is_some_and(|id| !self.reclaim_crashed_record(record, &id))
    }

    fn grant_and_reply(&mut self, call: &AcquireCommand) -> AcquireReply {
        let fence = self.grant(&call.token, call.mode, call.lease);
        // Others of its mode may stand next, and nobody else will tell them.
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

    /// `None` if it was not held any more.
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

    /// Whether nobody stands before the caller.
    fn is_first_in_queue(&mut self, me: &LockToken, old_seq: u64) -> bool {
        match self.queue_head() {
            None => true,
            Some((seq, place)) => {
                place.is_some_and(|place| place.token == *me) || (old_seq > 0 && old_seq < seq)
            }
        }
    }

    /// Whether somebody of this old sequence would pass the first in line, and those before him have done
    /// so for one accept window already: see `acquire.lua`.
    fn is_barging_expired(&mut self, old_seq: u64) -> bool {
        // Looking for the head drops dead places: the script does not look without need, either.
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

    /// Takes a place in the line, or keeps the one it has for longer; returns its sequence.
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
        // A time, for the same reason as a fence is: see `line.lua`.
        self.shard.last_seq = (self.shard.last_seq + 1).max(self.now.us);
        self.shard.last_seq
    }

    pub(super) fn release(&mut self, me: &LockToken, mode: LockMode) -> ReleaseOutcome {
        self.release_before_acquire(me, mode, 0)
    }

    /// In front of an acquisition in the same call, of one who came at this time of the store, if it is known: a lock that
    /// was had alone is left to it if nobody in line came before.
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
            // What a downgrade has made of it, whose answer was lost.
            (mode, holds) = (LockMode::Shared, shared);
        }
        let held = self.lock.deadline_of(&holds);
        let place = self.lock.waiter_of(me);
        if let Some(place) = &place {
            self.lock.remove_waiter(place);
        }
        // Of both modes: who was downgraded may have asked again before that was over.
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

    /// Whether somebody can be served, and all of them came later; 0: at no time that is known. Not while sequences are
    /// ahead of the clock: see `release.lua`.
    fn precedes_all_contenders(&mut self, came: u64) -> bool {
        let told_by_the_clock = came > 0 && self.shard.last_seq <= self.now.us;
        told_by_the_clock && self.queue_head().is_some_and(|(first, _)| came < first)
    }

    /// False if it was not held any more.
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
