//! A call that may take something, and the undo of it.

use std::time::Duration;

use tokio::time::Instant;

use super::{
    Store,
    agent::{GiveBack, Undo},
    backend::{Acquire, JobId, Mode, Token},
    hold::Hold,
    lease::{Terms, sure},
};
use crate::{
    error::{Error, ErrorKind},
    key::Key,
};

/// Longest time that a call without an answer is taken to be merely under way. Beyond it the connection may
/// have been given up, and the undo, on another one, may come first.
const HEALTHY: Duration = Duration::from_millis(50);

/// An acquisition or a claim under one nonce. If it is dropped while something of that nonce may be in
/// the store, the agent gives it back.
#[derive(Debug)]
pub(crate) struct Attempt {
    store: Store,
    pub(crate) key: Key,
    pub(crate) me: Token,
    mode: Mode,
    sent: Instant,
    lease: Duration,
    undo: Undo,
    /// How often ways to the store had been left when the last call was sent.
    silences: u64,
    /// Something of the nonce may be in the store.
    dirty: bool,
    /// It may get there yet: the call's answer was lost.
    doubtful: bool,
}

impl Attempt {
    /// An acquisition, not sent yet.
    pub(crate) fn new(store: &Store, key: &Key, mode: Mode) -> Self {
        Self {
            store: store.clone(),
            key: key.clone(),
            me: Token::new(store.node()),
            mode,
            sent: Instant::now(),
            lease: Duration::ZERO,
            undo: Undo::Release,
            silences: 0,
            dirty: false,
            doubtful: false,
        }
    }

    /// A call of a token that has something in the store already.
    pub(crate) fn of(store: &Store, key: &Key, me: &Token, mode: Mode) -> Self {
        let mut attempt = Self::new(store, key, mode);
        attempt.me = me.clone();
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

    /// Sends a call of this nonce for this lease, the first or another one. Validity counts from now.
    pub(crate) async fn send<T>(
        &mut self,
        lease: Duration,
        call: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        let before = self.begin(lease);
        let answer = call.await;
        self.heard(before, &answer);
        answer
    }

    /// Sends one call of all these nonces, for which nothing was sent before. It is about several shards, and so an
    /// undo may go another way than it does, and overtake it.
    pub(crate) async fn send_all<T>(
        attempts: &mut [Self],
        lease: Duration,
        call: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        for attempt in &mut *attempts {
            attempt.begin(lease);
            attempt.doubtful = true;
        }
        let answer = call.await;
        for attempt in attempts {
            attempt.doubtful = false;
            attempt.heard(false, &answer);
        }
        answer
    }

    /// From here on the future may be dropped with the call under way. Returns whether something of the nonce
    /// may have been in the store before.
    fn begin(&mut self, lease: Duration) -> bool {
        (self.sent, self.lease) = (Instant::now(), lease);
        self.silences = self.store.backend().silences();
        std::mem::replace(&mut self.dirty, true)
    }

    fn heard<T>(&mut self, before: bool, answer: &Result<T, Error>) {
        if let Err(error) = answer {
            match error.kind() {
                ErrorKind::Unavailable | ErrorKind::Config | ErrorKind::CostAboveQuota => {
                    self.dirty = before;
                }
                ErrorKind::Timeout | ErrorKind::Protocol => self.doubtful = true,
            }
        }
    }

    /// When the last call was sent, or a little before.
    pub(crate) fn sent(&self) -> Instant {
        self.sent
    }

    /// Until when a grant by the last call would be sure.
    pub(crate) fn sure_until(&self) -> Instant {
        self.sent + sure(self.lease)
    }

    /// The store said that this nonce has nothing there.
    pub(crate) fn refused(mut self) {
        self.dirty = false;
    }

    /// The store granted it, for the lease that was asked for.
    pub(crate) fn granted(mut self, fence: u64, terms: Terms) -> Hold {
        self.dirty = false;
        Hold::new(&self.store, &self.key, &self.me, fence, self.sure_until(), terms)
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        if self.dirty {
            self.store.agent().give_back(GiveBack {
                key: self.key.clone(),
                me: self.me.clone(),
                mode: self.mode,
                undo: self.undo.clone(),
                until: Instant::now() + self.lease,
                doubtful: self.doubtful || self.sent.elapsed() > HEALTHY,
                silences: Some(self.silences),
                tell: None,
            });
        }
    }
}
