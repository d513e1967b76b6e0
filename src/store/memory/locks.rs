//! `acquire.lua` and `release.lua`.

use std::{sync::Arc, time::Duration};

use super::line::{Member, Place, Visit};
use crate::store::backend::{Acquire, Acquired, GaveBack, Token};

impl Visit<'_> {
    pub(super) fn acquire(&mut self, call: &Acquire) -> Acquired {
        let me = &call.me;
        let last = self.held_until();
        let mine = self.line.deadline(&Member::Holds(me.clone())).is_some();
        if !mine && self.is_known(call) {
            return Acquired::Known;
        }
        if mine || self.line.take(&Member::Offered(me.clone())) {
            return self.held(call);
        }
        if last.is_none() && self.may_take(call) {
            if let Some(place) = self.line.place_of(me) {
                self.line.drop_place(&place);
            }
            // Jobs that are passed over keep their turn: their lock has an end to wait for again.
            // (One that is due already stays so: a worker's look ends the passing over.)
            let due = self.facts.due.get(self.key);
            if !self.line.jobs.is_empty() && due.is_none_or(|due| due > self.now.ms) {
                self.arm(self.now.after(call.lease));
            }
            return self.held(call);
        }
        let joined = call.wait.is_some() && self.line.place_of(me).is_none();
        let seq = call.wait.map_or(0, |wait| self.join(me, wait, call.old_seq));
        // Every visit to a free lock moves its line on.
        if last.is_none() {
            self.move_on();
        }
        let until = self.held_until().unwrap_or_else(|| self.accept_until());
        Acquired::Busy {
            left: Duration::from_millis((until - self.now.ms).max(1)),
            line: self.line.len(),
            seq,
            joined,
        }
    }

    /// Before a free lock is taken: a retry after a lost 202 must find its job, not run again.
    fn is_known(&self, call: &Acquire) -> bool {
        let record = call.record.as_ref();
        record.is_some_and(|record| {
            let name = (self.key.clone(), Arc::clone(record));
            self.records.get(&name, self.now.ms).is_some()
        })
    }

    fn held(&mut self, call: &Acquire) -> Acquired {
        let line = self.line.len();
        let fence = self.grant(&call.me, call.lease);
        Acquired::Held { fence, line }
    }

    /// Whether nobody stands before the caller.
    fn may_take(&mut self, call: &Acquire) -> bool {
        let place = self.live_head();
        let job = self.jobs_head().map(|(seq, _)| seq);
        let old = call.old_seq;
        match (place, job) {
            (None, None) => true,
            (Some(place), job) if job.is_none_or(|seq| place.seq <= seq) => {
                place.me == call.me || (old > 0 && old < place.seq)
            }
            (_, Some(seq)) => old > 0 && old < seq,
            // The arm above takes it, since there is no job.
            (Some(_), None) => false,
        }
    }

    /// Takes a place in the line, or keeps the one it has for longer; returns its sequence.
    fn join(&mut self, me: &Token, wait: Duration, old: u64) -> u64 {
        let seq = match self.line.place_of(me) {
            Some(place) => {
                self.line.drop_place(&place);
                place.seq
            }
            None => {
                let seq = if old > 0 { old } else { self.next_seq() };
                self.tell_holders();
                seq
            }
        };
        self.line.add_place(Place { seq, deadline: self.now.after(wait), me: me.clone() });
        seq
    }

    pub(super) fn next_seq(&mut self) -> u64 {
        // A time, for the same reason as a fence is: see `line.lua`.
        self.facts.seq = (self.facts.seq + 1).max(self.now.us);
        self.facts.seq
    }

    pub(super) fn release(&mut self, me: &Token) -> GaveBack {
        let (holds, offered) = (Member::Holds(me.clone()), Member::Offered(me.clone()));
        let held = self.line.deadline(&holds);
        let place = self.line.place_of(me);
        if let Some(place) = &place {
            self.line.drop_place(place);
        }
        let taken = self.line.take(&holds) | self.line.take(&offered);
        if !taken {
            return place.map_or(GaveBack::Nothing, |_| GaveBack::Left);
        }
        if self.held_until().is_none() {
            self.move_on();
        }
        match held {
            None => GaveBack::Left,
            Some(deadline) if deadline > self.now.ms => GaveBack::Released,
            Some(_) => GaveBack::Lost,
        }
    }
}
