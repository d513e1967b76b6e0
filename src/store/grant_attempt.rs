//! A call that may take something, and the undo of it.

use std::time::Duration;

use tokio::time::Instant;

use super::{
    Store,
    backend::{AcquireCommand, JobId, LockMode, LockToken},
    lease_agent::{UndoAction, UndoRequest},
    lock_hold::LockHold,
    lock_lease::{LeaseTerms, LockLease, validity_time},
};
use crate::{
    error::{Error, ErrorKind},
    key::Key,
};

/// Longest time that a call without an answer is taken to be merely under way. Beyond it the connection may
/// have been given up, and the undo, on another one, may come first.
pub(super) const HEALTHY_LATENCY: Duration = Duration::from_millis(50);

/// Calls of a nonce whose answers were lost, or of which another copy was sent: they may arrive behind the undo of all that
/// is known of it. A closed connection still delivers, and what arrives takes a free lock for a whole lease.
#[derive(Debug, Clone, Copy)]
pub(super) struct LateCalls {
    pub(super) count: u32,
    /// As long as the last of them is waited for: what it takes would be the dead nonce's for a lease.
    pub(super) watch_until: Instant,
    /// In which they ask.
    pub(super) mode: LockMode,
}

/// Copies that are looked for, at most: after an outage each costs a call in the background.
const MAX_COPIES: u64 = 4;

/// How many copies of a call may be on their way: one for each way that was left.
pub(super) fn possible_copies(before: u64, now: u64) -> u32 {
    u32::try_from(now.saturating_sub(before).min(MAX_COPIES)).unwrap_or(0)
}

/// An acquisition or a claim under one nonce. If it is dropped while something of that nonce may be in
/// the store, the agent gives it back.
#[derive(Debug)]
pub(crate) struct GrantAttempt {
    store: Store,
    pub(crate) key: Key,
    pub(crate) token: LockToken,
    mode: LockMode,
    /// `None` until the first call.
    sent_at: Option<Instant>,
    lease: Duration,
    undo: UndoAction,
    /// How often ways to the store had been left when the last call was sent.
    resets_when_sent: u64,
    /// Which server it was sent to.
    server_generation: u64,
    /// Something of the nonce may be in the store, or is about to be.
    may_have_grant: bool,
    /// The last call is over: what may come of it yet is among the strays.
    is_answered: bool,
    /// Its undo may go another way than the call that is under way.
    undo_may_overtake: bool,
    /// The store has said that there is nothing.
    is_refused: bool,
    /// Mostly none.
    late_calls: Option<Box<LateCalls>>,
}

impl GrantAttempt {
    /// An acquisition, not sent yet.
    pub(crate) fn new(store: &Store, key: &Key, mode: LockMode) -> Self {
        Self {
            store: store.clone(),
            key: key.clone(),
            token: LockToken::new(store.node()),
            mode,
            sent_at: None,
            lease: Duration::ZERO,
            undo: UndoAction::Release,
            resets_when_sent: 0,
            server_generation: 0,
            may_have_grant: false,
            is_answered: true,
            undo_may_overtake: false,
            is_refused: false,
            late_calls: None,
        }
    }

    /// A call of a token that holds this lease.
    pub(super) fn for_lease(store: &Store, lease: &LockLease, mode: LockMode) -> Self {
        let mut attempt = Self::new(store, &lease.key, mode);
        attempt.token = lease.token.clone();
        attempt.late_calls = lease.late_calls.clone();
        attempt
    }

    /// The claim of a job. Its undo puts the job back in line, uncharged: it has not been started.
    pub(crate) fn for_claim(store: &Store, key: &Key, job: &JobId) -> Self {
        let mut attempt = Self::new(store, key, LockMode::Exclusive);
        attempt.undo = UndoAction::Unclaim(Some(job.clone()));
        attempt
    }

    /// The claim that goes along with a settlement: which job it will be about is not known.
    pub(crate) fn for_next_claim(store: &Store, key: &Key) -> Self {
        let mut attempt = Self::new(store, key, LockMode::Exclusive);
        attempt.undo = UndoAction::Unclaim(None);
        attempt
    }

    /// A call that takes the lock if it is free, and no place in its line.
    pub(crate) fn try_acquire_command(&self, lease: Duration) -> AcquireCommand {
        AcquireCommand {
            key: self.key.clone(),
            token: self.token.clone(),
            mode: self.mode,
            lease,
            max_wait: None,
            resume_seq: 0,
            record_name: None,
        }
    }

    /// Sends a call of this nonce for this lease, the first or another one. Validity counts from before it is made: in
    /// memory the making of a call is its run. It is made here, and so the future has no room for what makes it.
    pub(crate) fn send<T, C: Future<Output = Result<T, Error>>>(
        &mut self,
        lease: Duration,
        call: impl FnOnce() -> C,
    ) -> impl Future<Output = Result<T, Error>> {
        let before = self.record_sent(lease);
        let call = call();
        async move {
            let answer = call.await;
            self.record_reply(before, &answer);
            answer
        }
    }

    /// Sends one call of all these nonces, for which nothing was sent before. It is about several shards, and so an
    /// undo may go another way than it does, and overtake it.
    pub(crate) async fn send_all<T, C: Future<Output = Result<T, Error>>>(
        attempts: &mut [Self],
        lease: Duration,
        call: impl FnOnce() -> C,
    ) -> Result<T, Error> {
        for attempt in &mut *attempts {
            attempt.record_sent(lease);
            attempt.undo_may_overtake = true;
        }
        let answer = call().await;
        for attempt in attempts {
            attempt.undo_may_overtake = false;
            attempt.record_reply(false, &answer);
        }
        answer
    }

    /// From here on the future may be dropped with the call under way. Returns whether something of the nonce
    /// may have been in the store before.
    fn record_sent(&mut self, lease: Duration) -> bool {
        (self.sent_at, self.lease) = (Some(Instant::now()), lease);
        self.resets_when_sent = self.store.backend().connection_resets();
        self.server_generation = self.store.backend().server_generation();
        self.is_answered = false;
        std::mem::replace(&mut self.may_have_grant, true)
    }

    fn record_reply<T>(&mut self, before: bool, answer: &Result<T, Error>) {
        self.is_answered = true;
        let strayed = match answer.as_ref().map_err(Error::kind) {
            // Where a way was left meanwhile, this may be the answer to a second copy.
            Ok(_) => self.possible_copies(),
            Err(ErrorKind::Unavailable | ErrorKind::Config | ErrorKind::CostAboveQuota) => 0,
            Err(ErrorKind::Timeout | ErrorKind::Protocol) => 1 + self.possible_copies(),
        };
        if answer.is_err() {
            self.may_have_grant = before;
        }
        if strayed > 0 {
            // It may have run at this moment.
            let (until, mode) = (Instant::now() + self.lease, self.mode);
            let strays = self
                .late_calls
                .get_or_insert_with(|| Box::new(LateCalls { count: 0, watch_until: until, mode }));
            (strays.count, strays.watch_until) = (strays.count + strayed, until);
        }
    }

    /// How many ways to the store were left since the last call was sent: each may still deliver a copy of it.
    fn possible_copies(&self) -> u32 {
        possible_copies(self.resets_when_sent, self.store.backend().connection_resets())
    }

    /// When the last call was sent, or a little before.
    pub(crate) fn sent_at(&self) -> Instant {
        self.sent_at.unwrap_or_else(Instant::now)
    }

    /// Until when a grant by the last call would be sure.
    pub(crate) fn valid_until(&self) -> Instant {
        self.sent_at() + validity_time(self.lease)
    }

    /// The store said that this nonce has nothing there. What may come yet is undone all the same.
    pub(crate) fn mark_refused(mut self) {
        (self.may_have_grant, self.is_refused) = (false, true);
    }

    /// The store granted it, for the lease that was asked for: on these terms, which may be those of another one who has
    /// waited, and wants no longer one.
    ///
    /// Fails if the answer took so long that nothing is sure any more: somebody else may have it by now, and nobody is let
    /// in by a grant like that. It is given back as this is dropped; another call of this nonce may have it yet.
    pub(crate) fn accept_grant(
        &mut self,
        fence: u64,
        terms: LeaseTerms,
    ) -> Result<LockHold, Error> {
        let mut valid_until = self.valid_until();
        if self.lease > terms.lease {
            valid_until = valid_until.min(Instant::now() + validity_time(terms.lease));
        }
        self.accept_grant_until(fence, terms, valid_until)
    }

    /// As `accept_grant`, until then.
    pub(super) fn accept_grant_until(
        &mut self,
        fence: u64,
        terms: LeaseTerms,
        valid_until: Instant,
    ) -> Result<LockHold, Error> {
        let now = Instant::now();
        if valid_until <= now {
            return Err(Error::new(ErrorKind::Timeout, "grant"));
        }
        self.may_have_grant = false;
        let strays = self.late_calls.take();
        let lease = LockLease::new(
            &self.key,
            &self.token,
            valid_until,
            terms,
            self.server_generation,
            strays,
        );
        Ok(LockHold::new(&self.store, lease, fence))
    }
}

impl Drop for GrantAttempt {
    fn drop(&mut self) {
        // Mostly neither, and then the clock need not be read.
        if !self.may_have_grant && self.late_calls.is_none() {
            return;
        }
        let now = Instant::now();
        let strays = self
            .late_calls
            .as_ref()
            .filter(|strays| self.may_have_grant || strays.watch_until > now);
        if !self.may_have_grant && strays.is_none() {
            return;
        }
        // Of a call that was not heard of, all copies are. One that was has left a place, or more, which only ends by itself.
        let copies = if self.is_answered { 0 } else { self.possible_copies() };
        let number = strays.map_or(0, |strays| strays.count) + copies;
        let until = if self.may_have_grant { now + self.lease } else { now };
        self.store.agent().schedule_undo(UndoRequest {
            key: self.key.clone(),
            token: self.token.clone(),
            // They ask in the mode that it had before it was downgraded, whose release finds either.
            mode: strays.map_or(self.mode, |strays| strays.mode),
            action: self.undo.clone(),
            expires_at: strays.map_or(until, |strays| strays.watch_until.max(until)),
            possible_grants: number + u32::from(self.may_have_grant),
            may_arrive_late: number > 0
                || self.undo_may_overtake
                || (!self.is_answered && self.sent_at().elapsed() > HEALTHY_LATENCY),
            resets_when_sent: (!self.is_answered).then_some(self.resets_when_sent),
            blocks_shutdown: !self.is_refused,
            reply_to: None,
        });
    }
}
