//! A call that may take something, and the undo of it.

use std::time::Duration;

use tokio::time::Instant;

use super::{
    Store,
    agent::{GiveBack, Undo},
    backend::{Acquire, JobId, Mode, Token},
    hold::Hold,
    lease::{Lease, Terms, sure},
};
use crate::{
    error::{Error, ErrorKind},
    key::Key,
};

/// Longest time that a call without an answer is taken to be merely under way. Beyond it the connection may
/// have been given up, and the undo, on another one, may come first.
pub(super) const HEALTHY: Duration = Duration::from_millis(50);

/// Calls of a nonce whose answers were lost, or of which another copy was sent: they may arrive behind the undo of all that
/// is known of it. A closed connection still delivers, and what arrives takes a free lock for a whole lease.
#[derive(Debug, Clone, Copy)]
pub(super) struct Strays {
    pub(super) number: u32,
    /// As long as the last of them is waited for: what it takes would be the dead nonce's for a lease.
    pub(super) until: Instant,
    /// In which they ask.
    pub(super) mode: Mode,
}

/// Copies that are looked for, at most: after an outage each costs a call in the background.
const MOST_COPIES: u64 = 4;

/// How many copies of a call may be on their way: one for each way that was left.
pub(super) fn copies_since(before: u64, now: u64) -> u32 {
    u32::try_from(now.saturating_sub(before).min(MOST_COPIES)).unwrap_or(0)
}

/// An acquisition or a claim under one nonce. If it is dropped while something of that nonce may be in
/// the store, the agent gives it back.
#[derive(Debug)]
pub(crate) struct Attempt {
    store: Store,
    pub(crate) key: Key,
    pub(crate) me: Token,
    mode: Mode,
    /// `None` until the first call.
    sent: Option<Instant>,
    lease: Duration,
    undo: Undo,
    /// How often ways to the store had been left when the last call was sent.
    silences: u64,
    /// Which server it was sent to.
    servers: u64,
    /// Something of the nonce may be in the store, or is about to be.
    dirty: bool,
    /// The last call is over: what may come of it yet is among the strays.
    heard: bool,
    /// Its undo may go another way than the call that is under way.
    apart: bool,
    /// The store has said that there is nothing.
    refused: bool,
    /// Mostly none.
    strays: Option<Box<Strays>>,
}

impl Attempt {
    /// An acquisition, not sent yet.
    pub(crate) fn new(store: &Store, key: &Key, mode: Mode) -> Self {
        Self {
            store: store.clone(),
            key: key.clone(),
            me: Token::new(store.node()),
            mode,
            sent: None,
            lease: Duration::ZERO,
            undo: Undo::Release,
            silences: 0,
            servers: 0,
            dirty: false,
            heard: true,
            apart: false,
            refused: false,
            strays: None,
        }
    }

    /// A call of a token that holds this lease.
    pub(super) fn of(store: &Store, lease: &Lease, mode: Mode) -> Self {
        let mut attempt = Self::new(store, &lease.key, mode);
        attempt.me = lease.me.clone();
        attempt.strays = lease.strays.clone();
        attempt
    }

    /// The claim of a job. Its undo puts the job back in line, uncharged: it has not been started.
    pub(crate) fn claim(store: &Store, key: &Key, job: &JobId) -> Self {
        let mut attempt = Self::new(store, key, Mode::Exclusive);
        attempt.undo = Undo::Unclaim(Some(job.clone()));
        attempt
    }

    /// The claim that goes along with a settlement: which job it will be about is not known.
    pub(crate) fn claim_next(store: &Store, key: &Key) -> Self {
        let mut attempt = Self::new(store, key, Mode::Exclusive);
        attempt.undo = Undo::Unclaim(None);
        attempt
    }

    /// A call that takes the lock if it is free, and no place in its line.
    pub(crate) fn acquisition(&self, lease: Duration) -> Acquire {
        Acquire {
            key: self.key.clone(),
            me: self.me.clone(),
            mode: self.mode,
            lease,
            wait: None,
            old_seq: 0,
            record: None,
        }
    }

    /// Sends a call of this nonce for this lease, the first or another one. Validity counts from before it is made: in
    /// memory the making of a call is its run. It is made here, and so the future has no room for what makes it.
    pub(crate) fn send<T, C: Future<Output = Result<T, Error>>>(
        &mut self,
        lease: Duration,
        call: impl FnOnce() -> C,
    ) -> impl Future<Output = Result<T, Error>> {
        let before = self.begin(lease);
        let call = call();
        async move {
            let answer = call.await;
            self.heard(before, &answer);
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
            attempt.begin(lease);
            attempt.apart = true;
        }
        let answer = call().await;
        for attempt in attempts {
            attempt.apart = false;
            attempt.heard(false, &answer);
        }
        answer
    }

    /// From here on the future may be dropped with the call under way. Returns whether something of the nonce
    /// may have been in the store before.
    fn begin(&mut self, lease: Duration) -> bool {
        (self.sent, self.lease) = (Some(Instant::now()), lease);
        self.silences = self.store.backend().silences();
        self.servers = self.store.backend().servers();
        self.heard = false;
        std::mem::replace(&mut self.dirty, true)
    }

    fn heard<T>(&mut self, before: bool, answer: &Result<T, Error>) {
        self.heard = true;
        let strayed = match answer.as_ref().map_err(Error::kind) {
            // Where a way was left meanwhile, this may be the answer to a second copy.
            Ok(_) => self.copies(),
            Err(ErrorKind::Unavailable | ErrorKind::Config | ErrorKind::CostAboveQuota) => 0,
            Err(ErrorKind::Timeout | ErrorKind::Protocol) => 1 + self.copies(),
        };
        if answer.is_err() {
            self.dirty = before;
        }
        if strayed > 0 {
            // It may have run at this moment.
            let (until, mode) = (Instant::now() + self.lease, self.mode);
            let strays =
                self.strays.get_or_insert_with(|| Box::new(Strays { number: 0, until, mode }));
            (strays.number, strays.until) = (strays.number + strayed, until);
        }
    }

    /// How many ways to the store were left since the last call was sent: each may still deliver a copy of it.
    fn copies(&self) -> u32 {
        copies_since(self.silences, self.store.backend().silences())
    }

    /// When the last call was sent, or a little before.
    pub(crate) fn sent(&self) -> Instant {
        self.sent.unwrap_or_else(Instant::now)
    }

    /// Until when a grant by the last call would be sure.
    pub(crate) fn sure_until(&self) -> Instant {
        self.sent() + sure(self.lease)
    }

    /// The store said that this nonce has nothing there. What may come yet is undone all the same.
    pub(crate) fn refused(mut self) {
        (self.dirty, self.refused) = (false, true);
    }

    /// The store granted it, for the lease that was asked for: on these terms, which may be those of another one who has
    /// waited, and wants no longer one.
    ///
    /// Fails if the answer took so long that nothing is sure any more: somebody else may have it by now, and nobody is let
    /// in by a grant like that. It is given back as this is dropped; another call of this nonce may have it yet.
    pub(crate) fn granted(&mut self, fence: u64, terms: Terms) -> Result<Hold, Error> {
        let mut valid_until = self.sure_until();
        if self.lease > terms.lease {
            valid_until = valid_until.min(Instant::now() + sure(terms.lease));
        }
        self.held(fence, terms, valid_until)
    }

    /// As `granted`, until then.
    pub(super) fn held(
        &mut self,
        fence: u64,
        terms: Terms,
        valid_until: Instant,
    ) -> Result<Hold, Error> {
        let now = Instant::now();
        if valid_until <= now {
            return Err(Error::new(ErrorKind::Timeout, "grant"));
        }
        self.dirty = false;
        let strays = self.strays.take();
        let lease = Lease::new(&self.key, &self.me, valid_until, terms, self.servers, strays);
        Ok(Hold::new(&self.store, lease, fence))
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        // Mostly neither, and then the clock need not be read.
        if !self.dirty && self.strays.is_none() {
            return;
        }
        let now = Instant::now();
        let strays = self.strays.as_ref().filter(|strays| self.dirty || strays.until > now);
        if !self.dirty && strays.is_none() {
            return;
        }
        // Of a call that was not heard of, all copies are. One that was has left a place, or more, which only ends by itself.
        let copies = if self.heard { 0 } else { self.copies() };
        let number = strays.map_or(0, |strays| strays.number) + copies;
        let until = if self.dirty { now + self.lease } else { now };
        self.store.agent().give_back(GiveBack {
            key: self.key.clone(),
            me: self.me.clone(),
            // They ask in the mode that it had before it was downgraded, whose release finds either.
            mode: strays.map_or(self.mode, |strays| strays.mode),
            undo: self.undo.clone(),
            until: strays.map_or(until, |strays| strays.until.max(until)),
            finds: number + u32::from(self.dirty),
            doubtful: number > 0 || self.apart || (!self.heard && self.sent().elapsed() > HEALTHY),
            silences: (!self.heard).then_some(self.silences),
            is_known: !self.refused,
            tell: None,
        });
    }
}
