//! `GrantAttempt`: a call that may take a lock, with its undo.

use std::time::Duration;

use tokio::time::Instant;

use super::{
    Store,
    backend::{AcquireCommand, JobId, LockMode, LockToken},
    lease_agent::{UndoAction, UndoRequest},
    lock_lease::{LeaseTerms, LockLease, validity_time},
    owned_hold::OwnedHold,
};
use crate::{
    error::{Error, ErrorKind},
    key::Key,
};

/// Longest time for which a call without a reply counts as merely in flight. Beyond it the
/// connection may have been given up, and the undo, sent over another one, may arrive first.
pub(super) const HEALTHY_LATENCY: Duration = Duration::from_millis(50);

/// Calls of a token that got no reply, or of which another copy was sent. They may reach the server
/// after the undo: a closed connection still delivers, and a late call takes a free lock for a
/// whole lease.
#[derive(Debug, Clone, Copy)]
pub(super) struct LateCalls {
    pub(super) count: u32,
    /// End of the watch for the last of them: one lease after its reply was recorded as lost,
    /// because it may have run at that moment.
    pub(super) watch_until: Instant,
    /// Lock mode that the calls request.
    pub(super) mode: LockMode,
}

/// Maximum number of copies that an undo allows for. After an outage each one costs a call in the
/// background.
const MAX_COPIES: u64 = 4;

/// Returns how many copies of a call may be in flight: one for each connection reset since it was
/// sent, at most `MAX_COPIES`.
pub(super) fn possible_copies(resets_when_sent: u64, resets_now: u64) -> u32 {
    u32::try_from(resets_now.saturating_sub(resets_when_sent).min(MAX_COPIES)).unwrap_or(0)
}

/// Acquire or claim under one token. If it is dropped while the store may hold something for the
/// token, the lease agent undoes it.
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
    /// [`Backend::connection_resets`](super::backend::Backend::connection_resets) when the last
    /// call was sent.
    resets_when_sent: u64,
    /// [`Backend::server_generation`](super::backend::Backend::server_generation) when the last
    /// call was sent.
    server_generation: u64,
    /// The store holds something for the token, or may do so soon.
    may_have_grant: bool,
    /// The last call is over. Its copies that may still arrive are in `late_calls`.
    is_answered: bool,
    /// The undo may travel on another connection than the call in flight.
    undo_may_overtake: bool,
    /// The store has answered that the token holds nothing.
    is_refused: bool,
    /// Usually `None`.
    late_calls: Option<Box<LateCalls>>,
}

impl GrantAttempt {
    /// Creates an acquire, not sent yet.
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

    /// Creates an attempt under the token of this lease, which is held already.
    pub(super) fn for_lease(store: &Store, lease: &LockLease, mode: LockMode) -> Self {
        let mut attempt = Self::new(store, &lease.key, mode);
        attempt.token = lease.token.clone();
        attempt.late_calls = lease.late_calls.clone();
        attempt
    }

    /// Creates the claim of a job. Its undo returns the job to the queue without charging an
    /// attempt, since it was not started.
    pub(crate) fn for_claim(store: &Store, key: &Key, job: &JobId) -> Self {
        let mut attempt = Self::new(store, key, LockMode::Exclusive);
        attempt.undo = UndoAction::Unclaim(Some(job.clone()));
        attempt
    }

    /// Creates the claim that is sent with a settlement. Its job is not known in advance.
    pub(crate) fn for_next_claim(store: &Store, key: &Key) -> Self {
        let mut attempt = Self::new(store, key, LockMode::Exclusive);
        attempt.undo = UndoAction::Unclaim(None);
        attempt
    }

    /// Returns a command that takes the lock if it is free, and creates no queue entry.
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

    /// Sends a call under this token for this lease. It may be the first call or a later one.
    ///
    /// The validity time counts from before `call` runs, because the embedded store executes the
    /// operation there. `call` runs before the future is returned, so that the future does not have
    /// to store it.
    pub(crate) fn send<T, C: Future<Output = Result<T, Error>>>(
        &mut self,
        lease: Duration,
        call: impl FnOnce() -> C,
    ) -> impl Future<Output = Result<T, Error>> {
        let could_have_grant = self.record_sent(lease);
        let call = call();
        async move {
            let reply = call.await;
            self.record_reply(could_have_grant, &reply);
            reply
        }
    }

    /// Sends one call for all these attempts, none of which has sent one before. The call covers
    /// several shards, so the undo of one attempt may travel on another connection and overtake it.
    pub(crate) async fn send_all<T, C: Future<Output = Result<T, Error>>>(
        attempts: &mut [Self],
        lease: Duration,
        call: impl FnOnce() -> C,
    ) -> Result<T, Error> {
        for attempt in &mut *attempts {
            attempt.record_sent(lease);
            attempt.undo_may_overtake = true;
        }
        let reply = call().await;
        for attempt in attempts {
            attempt.undo_may_overtake = false;
            attempt.record_reply(false, &reply);
        }
        reply
    }

    /// Records that a call is sent. From here on the future may be dropped with the call in flight.
    /// Returns true if the store may have held something for the token before.
    fn record_sent(&mut self, lease: Duration) -> bool {
        (self.sent_at, self.lease) = (Some(Instant::now()), lease);
        self.resets_when_sent = self.store.backend().connection_resets();
        self.server_generation = self.store.backend().server_generation();
        self.is_answered = false;
        std::mem::replace(&mut self.may_have_grant, true)
    }

    fn record_reply<T>(&mut self, could_have_grant: bool, reply: &Result<T, Error>) {
        self.is_answered = true;
        let new_late_calls = match reply.as_ref().map_err(Error::kind) {
            // If a connection was given up meanwhile, this may be the reply to a second copy.
            Ok(_) => self.possible_copies(),
            Err(ErrorKind::Unavailable | ErrorKind::Config | ErrorKind::CostAboveQuota) => 0,
            Err(ErrorKind::Timeout | ErrorKind::Protocol) => 1 + self.possible_copies(),
        };
        if reply.is_err() {
            self.may_have_grant = could_have_grant;
        }
        if new_late_calls > 0 {
            // The call may have run at this moment.
            let (watch_until, mode) = (Instant::now() + self.lease, self.mode);
            let late_calls = self
                .late_calls
                .get_or_insert_with(|| Box::new(LateCalls { count: 0, watch_until, mode }));
            late_calls.count += new_late_calls;
            late_calls.watch_until = watch_until;
        }
    }

    /// Returns how many connections were given up since the last call was sent, each of which may
    /// still deliver a copy of it.
    fn possible_copies(&self) -> u32 {
        possible_copies(self.resets_when_sent, self.store.backend().connection_resets())
    }

    /// Returns the time at which the last call was sent, or shortly before.
    pub(crate) fn sent_at(&self) -> Instant {
        self.sent_at.unwrap_or_else(Instant::now)
    }

    /// Returns the end of the validity time of a grant by the last call.
    pub(crate) fn valid_until(&self) -> Instant {
        self.sent_at() + validity_time(self.lease)
    }

    /// Records the store's answer that the token holds nothing. Late calls are still undone.
    pub(crate) fn mark_refused(mut self) {
        (self.may_have_grant, self.is_refused) = (false, true);
    }

    /// Accepts a grant of the requested lease and returns its hold. `terms` may be those of another
    /// waiter with a shorter lease, which then bounds the validity.
    ///
    /// # Errors
    ///
    /// `Timeout` if the reply came after the validity time: another holder may have the lock by
    /// then. The drop of this attempt undoes the grant, unless another call under this token
    /// succeeds first.
    pub(crate) fn accept_grant(
        &mut self,
        fence: u64,
        terms: LeaseTerms,
    ) -> Result<OwnedHold, Error> {
        let mut valid_until = self.valid_until();
        if self.lease > terms.lease {
            valid_until = valid_until.min(Instant::now() + validity_time(terms.lease));
        }
        self.accept_grant_until(fence, terms, valid_until)
    }

    /// Like `accept_grant`, with an explicit end of validity.
    pub(super) fn accept_grant_until(
        &mut self,
        fence: u64,
        terms: LeaseTerms,
        valid_until: Instant,
    ) -> Result<OwnedHold, Error> {
        let now = Instant::now();
        if valid_until <= now {
            return Err(Error::new(ErrorKind::Timeout, "grant"));
        }
        self.may_have_grant = false;
        let late_calls = self.late_calls.take();
        let lease = LockLease::new(
            &self.key,
            &self.token,
            valid_until,
            terms,
            self.server_generation,
            late_calls,
        );
        Ok(OwnedHold::new(&self.store, lease, fence))
    }
}

impl Drop for GrantAttempt {
    fn drop(&mut self) {
        // Usually there is nothing to undo, and reading the clock is saved.
        if !self.may_have_grant && self.late_calls.is_none() {
            return;
        }
        let now = Instant::now();
        let late_calls = self
            .late_calls
            .as_ref()
            .filter(|late_calls| self.may_have_grant || late_calls.watch_until > now);
        if !self.may_have_grant && late_calls.is_none() {
            return;
        }
        // An answered call has its copies counted in `late_calls`.
        let copies = if self.is_answered { 0 } else { self.possible_copies() };
        let late_count = late_calls.map_or(0, |late_calls| late_calls.count) + copies;
        let grant_expires_at = if self.may_have_grant { now + self.lease } else { now };
        self.store.agent().schedule_undo(UndoRequest {
            key: self.key.clone(),
            token: self.token.clone(),
            // Late calls request the mode from before a downgrade, and a release in that mode finds
            // both modes.
            mode: late_calls.map_or(self.mode, |late_calls| late_calls.mode),
            action: self.undo.clone(),
            expires_at: late_calls
                .map_or(grant_expires_at, |calls| calls.watch_until.max(grant_expires_at)),
            possible_grants: late_count + u32::from(self.may_have_grant),
            may_arrive_late: late_count > 0
                || self.undo_may_overtake
                || (!self.is_answered && self.sent_at().elapsed() > HEALTHY_LATENCY),
            resets_when_sent: (!self.is_answered).then_some(self.resets_when_sent),
            blocks_shutdown: !self.is_refused,
            reply_to: None,
        });
    }
}
