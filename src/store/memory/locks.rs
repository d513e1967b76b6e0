//! `acquire.lua`, `still.lua`, `release.lua` and `downgrade.lua`.

use std::{sync::Arc, time::Duration};

use super::{
    line::{Member, Place},
    visit::Visit,
};
use crate::store::backend::{AcquireCommand, AcquireReply, ReleaseOutcome, LockMode, Contenders, GrantRefresh, LockToken};

impl Visit<'_> {
    pub(super) fn acquire(&mut self, call: &AcquireCommand) -> AcquireReply {
        let AcquireCommand { token: me, mode, .. } = call;
        self.held_until();
        let mine = self.line.deadline(&Member::holds(*mode, me)).is_some();
        if !mine && self.is_known(call) {
            return AcquireReply::AlreadyAccepted;
        }
        if mine || self.line.take(&Member::offered(*mode, me)) {
            return self.granted(call);
        }
        // Who has a place has no other: also where this call comes a second time.
        let has_place = self.line.place_of(me).is_some();
        let mut old_seq = if has_place { 0 } else { call.resume_seq };
        let exclusive = LockMode::Exclusive.wire_letter();
        let room = mode.wire_letter() != exclusive && self.held() != Some(exclusive);
        if room && self.passes_too_late(old_seq) {
            old_seq = 0;
        }
        if self.fits(*mode) && self.may_take(me, old_seq) {
            if let Some(place) = self.line.place_of(me) {
                self.line.drop_place(&place);
            }
            // Jobs that are passed over keep their turn: their lock has an end to wait for again.
            // (One that is due already stays so: a worker's look ends the passing over.)
            let due = self.facts.due.get(self.key);
            if !self.line.jobs.is_empty() && due.is_none_or(|due| due > self.now.ms) {
                self.arm(self.now.after(call.lease));
            }
            return self.granted(call);
        }
        let joined = call.max_wait.is_some() && self.line.place_of(me).is_none();
        let seq = call.max_wait.map_or(0, |wait| self.join(call, old_seq, wait));
        // Every visit to a lock with room moves its line on. Those before the caller may have been of its
        // mode: then it is among those who come in.
        self.move_on();
        if *mode != LockMode::Exclusive && self.line.take(&Member::offered(*mode, me)) {
            return self.granted(call);
        }
        let (left, line) = self.busy_for(*mode);
        AcquireReply::Busy { lease_remaining: left, queue_length: line, seq, has_joined: joined }
    }

    /// Before a free lock is taken: a retry after a lost 202 must find its job, not run again.
    fn is_known(&mut self, call: &AcquireCommand) -> bool {
        let Some(record) = &call.record_name else { return false };
        let name = (self.key.clone(), Arc::clone(record));
        let known = self.records.get(&name, self.now.ms).map(|(id, _)| id.clone());
        known.is_some_and(|id| !self.frees_record(record, &id))
    }

    fn granted(&mut self, call: &AcquireCommand) -> AcquireReply {
        let fence = self.grant(&call.token, call.mode, call.lease);
        // Others of its mode may stand next, and nobody else will tell them.
        if call.mode != LockMode::Exclusive {
            self.move_on();
        }
        let line = self.line.len();
        AcquireReply::Granted { fence, queue_length: line, contenders: self.others(), server_us: self.now.us }
    }

    /// `None` if it was not held any more.
    pub(super) fn still(&mut self, me: &LockToken) -> Option<GrantRefresh> {
        let held = self.line.deadline(&Member::holds(LockMode::Exclusive, me));
        held.filter(|deadline| *deadline > self.now.ms)?;
        let fence = self.next_fence();
        Some(GrantRefresh { fence, contenders: self.others(), server_us: self.now.us })
    }

    fn others(&mut self) -> Contenders {
        let place = self.live_head().map_or(Contenders::NONE, |place| Contenders::from_waiter(place.seq));
        place.merge(self.jobs_head().map_or(Contenders::NONE, |(seq, _)| Contenders::from_job(seq)))
    }

    /// Whether nobody stands before the caller.
    fn may_take(&mut self, me: &LockToken, old_seq: u64) -> bool {
        match self.head() {
            None => true,
            Some((seq, place)) => {
                place.is_some_and(|place| place.me == *me) || (old_seq > 0 && old_seq < seq)
            }
        }
    }

    /// Whether somebody of this old sequence would pass the first in line, and those before him have done
    /// so for one accept window already: see `acquire.lua`.
    fn passes_too_late(&mut self, old_seq: u64) -> bool {
        // Looking for the head drops dead places: the script does not look without need, either.
        let first = if old_seq > 0 { self.head() } else { None };
        let Some((first, _)) = first.filter(|(first, _)| old_seq < *first) else {
            return false;
        };
        match self.line.past {
            Some((whom, until)) if whom >= first => until <= self.now.ms,
            _ => {
                self.line.past = Some((first, self.accept_until()));
                false
            }
        }
    }

    /// Takes a place in the line, or keeps the one it has for longer; returns its sequence.
    fn join(&mut self, call: &AcquireCommand, old_seq: u64, wait: Duration) -> u64 {
        let AcquireCommand { token: me, mode, .. } = call;
        let seq = match self.line.place_of(me) {
            Some(place) => {
                self.line.drop_place(&place);
                place.seq
            }
            None => {
                let mut seq = self.next_seq();
                if old_seq > 0 {
                    seq = seq.min(old_seq);
                }
                self.tell_holders(Contenders::from_waiter(seq));
                seq
            }
        };
        let deadline = self.now.after(wait);
        self.line.add_place(Place { seq, deadline, me: me.clone(), mode: *mode });
        seq
    }

    pub(super) fn next_seq(&mut self) -> u64 {
        // A time, for the same reason as a fence is: see `line.lua`.
        self.facts.seq = (self.facts.seq + 1).max(self.now.us);
        self.facts.seq
    }

    pub(super) fn release(&mut self, me: &LockToken, mode: LockMode) -> ReleaseOutcome {
        self.release_before(me, mode, 0)
    }

    /// In front of an acquisition in the same call, of one who came at this time of the store, if it is known: a lock that
    /// was had alone is left to it if nobody in line came before.
    pub(super) fn release_before(&mut self, me: &LockToken, mode: LockMode, came: u64) -> ReleaseOutcome {
        let asked = Member::offered(mode, me);
        let asked_for = mode;
        let (mut mode, mut holds) = (mode, Member::holds(mode, me));
        let shared = Member::holds(LockMode::Shared, me);
        let none = self.line.deadline(&holds).is_none();
        if none && mode == LockMode::Exclusive && self.line.deadline(&shared).is_some() {
            // What a downgrade has made of it, whose answer was lost.
            (mode, holds) = (LockMode::Shared, shared);
        }
        let held = self.line.deadline(&holds);
        let place = self.line.place_of(me);
        if let Some(place) = &place {
            self.line.drop_place(place);
        }
        // Of both modes: who was downgraded may have asked again before that was over.
        let offered = self.line.take(&Member::offered(mode, me)) | self.line.take(&asked);
        let taken = self.line.take(&holds) | offered;
        if !taken && place.is_none() {
            return ReleaseOutcome::NotFound;
        }
        let in_time = held.is_some_and(|deadline| deadline > self.now.ms);
        if !(in_time && asked_for == LockMode::Exclusive && self.is_before_all(came)) {
            self.move_on();
        }
        match held {
            None => ReleaseOutcome::Withdrawn,
            Some(deadline) if deadline > self.now.ms => ReleaseOutcome::Released,
            Some(_) => ReleaseOutcome::AlreadyExpired,
        }
    }

    /// Whether somebody can be served, and all of them came later; 0: at no time that is known. Not while sequences are
    /// ahead of the clock: see `release.lua`.
    fn is_before_all(&mut self, came: u64) -> bool {
        let told_by_the_clock = came > 0 && self.facts.seq <= self.now.us;
        told_by_the_clock && self.head().is_some_and(|(first, _)| came < first)
    }

    /// False if it was not held any more.
    pub(super) fn downgrade(&mut self, me: &LockToken, lease: Duration) -> bool {
        let now = self.now.ms;
        let (shared, held) = (Member::holds(LockMode::Shared, me), Member::holds(LockMode::Exclusive, me));
        if let Some(deadline) = self.line.deadline(&shared) {
            return deadline > now;
        }
        if self.line.deadline(&held).is_none_or(|deadline| deadline <= now) {
            return false;
        }
        self.line.take(&held);
        self.line.put(shared, self.now.after(lease));
        self.move_on();
        true
    }
}
