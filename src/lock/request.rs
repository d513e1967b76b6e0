//! Asking for a lock.

use std::{error::Error as StdError, fmt, sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{
    guard::LockGuard,
    held::HeldLocks,
    line::{Lines, Waited},
    retry::Retry,
};
use crate::{
    clock::LONGEST,
    error::Error,
    key::Key,
    store::{Acquire, Acquired, Attempt, Mode, SPARE_FENCES, Store, Terms},
};

/// Longest wait: places in the line are kept for no longer.
pub(super) const MAX_WAIT: Duration = Duration::from_secs(600);

/// Shortest lease: below this, a renewal at a third would be due before a slow round trip is over.
pub(super) const MIN_LEASE: Duration = Duration::from_millis(100);

/// How a lock is asked for. Made by [`Store::lock`].
#[derive(Debug, Clone)]
#[must_use = "nothing is locked until `acquire` is awaited"]
pub struct LockRequest {
    store: Store,
    key: Key,
    terms: Terms,
    wait: Option<Duration>,
    retry: Option<Retry>,
}

impl Store {
    /// A lock of this name. Text becomes [`Key::custom`]; [`Key::path_param`] is the key of a
    /// `LockLayer`, so that jobs and handlers can share its lock.
    pub fn lock(&self, key: impl Into<Key>) -> LockRequest {
        LockRequest::of(self, &key.into(), default_terms(), None)
    }
}

pub(super) fn default_terms() -> Terms {
    Terms {
        lease: Duration::from_secs(10),
        renew: true,
        max_hold: Duration::from_secs(60),
        job: None,
        mode: Mode::Exclusive,
    }
}

impl LockRequest {
    pub(super) fn of(store: &Store, key: &Key, terms: Terms, wait: Option<Duration>) -> Self {
        Self { store: store.clone(), key: key.clone(), terms, wait, retry: None }
    }

    /// How long the lock outlives its process; renewed at a third of it. Default 10 s: long enough to
    /// survive pauses and short outages, short enough to wait for. At least 100 ms.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.terms.lease = lease.clamp(MIN_LEASE, LONGEST);
        self.terms.renew = true;
        self
    }

    /// A lease that is never renewed: the lock ends after it, whatever its holder does.
    pub fn lease_fixed(mut self, lease: Duration) -> Self {
        self.terms.lease = lease.clamp(MIN_LEASE, LONGEST);
        self.terms.renew = false;
        self
    }

    /// How long a living holder may have it in all. Default 60 s: bounds a handler that never ends.
    pub fn max_hold(mut self, max_hold: Duration) -> Self {
        self.terms.max_hold = max_hold.min(LONGEST);
        self
    }

    /// Together with all others who ask like this, and with nobody who asks otherwise: for readers. In
    /// line, those who stand beside each other are let in together, and writers get their turn between.
    /// Default: alone.
    pub fn shared(mut self) -> Self {
        self.terms.mode = Mode::Shared;
        self
    }

    /// At most `most` at once, and nobody who asks otherwise. All who ask for it should say the same
    /// number: each is let in while fewer than its own number are in.
    ///
    /// # Panics
    ///
    /// If `most` is 0: nobody would ever be let in.
    pub fn permits(mut self, most: u32) -> Self {
        assert!(most > 0, "LockRequest::permits: with 0 permits nobody would ever be let in");
        self.terms.mode = Mode::Permits(most);
        self
    }

    /// Stand in line for at most this long. Default: don't. At most ten minutes.
    pub fn wait(mut self, wait: Duration) -> Self {
        (self.wait, self.retry) = (Some(wait.min(MAX_WAIT)), None);
        self
    }

    /// Ask again as this says, or, with `None`, as `wait` says.
    pub(super) fn again(mut self, retry: Option<Retry>) -> Self {
        (self.wait, self.retry) = (self.wait.filter(|_| retry.is_none()), retry);
        self
    }

    /// Acquires the lock.
    ///
    /// Within a request whose `LockLayer` has this lock, or within [`LockGuard::scope`], this is another
    /// guard on what is held, by memory alone; the lease and `max_hold` are those of the first. Anywhere
    /// else each call is an owner of its own, and two of one task exclude each other.
    ///
    /// Cancel safe: if the future is dropped, whatever the store has granted or will grant for it is
    /// given back, and its place in line is left.
    ///
    /// # Errors
    ///
    /// [`NotAcquired::Busy`] if somebody else has it, after the wait if there is one;
    /// [`NotAcquired::WouldDeadlock`] if this request itself keeps it from being granted;
    /// [`NotAcquired::Fault`] if the store is away.
    pub async fn acquire(self) -> Result<LockGuard, NotAcquired> {
        match self.find(&self.key, &HeldLocks::current())? {
            Some(guard) => Ok(guard),
            None => self.acquire_anew().await,
        }
    }

    /// As `acquire`, whatever this request has already.
    pub(super) async fn acquire_anew(self) -> Result<LockGuard, NotAcquired> {
        match self.ask(None).await? {
            Answer::Granted(guard) => Ok(guard),
            Answer::Busy(busy) => Err(NotAcquired::Busy(busy)),
            Answer::Known => unreachable!("no record was asked for"),
        }
    }

    /// A guard on what is held already.
    pub(super) fn find(
        &self,
        key: &Key,
        held: &HeldLocks,
    ) -> Result<Option<LockGuard>, NotAcquired> {
        held.find(&self.store, key, self.terms.mode)
    }

    /// The same for another lock, with what is left of the wait that began then.
    pub(super) fn for_key(&self, key: &Key, began: Instant) -> Self {
        let wait = self.wait.map(|wait| wait.saturating_sub(began.elapsed()));
        Self { key: key.clone(), wait, ..self.clone() }
    }

    /// One attempt, and how it is to be repeated.
    pub(super) fn take_retry(mut self) -> (Self, Option<Retry>) {
        let retry = self.retry.take();
        (self, retry)
    }

    /// As `acquire`, with the idempotency record that is looked up first.
    pub(super) async fn ask(self, record: Option<Arc<str>>) -> Result<Answer, NotAcquired> {
        if let Some(retry) = self.retry {
            return self.retried(retry, record).await;
        }
        let started = Instant::now();
        let lines = self.store.room::<Lines>();
        let mut busy = Busy { left: self.terms.lease, line: 0, waited: None };
        // Behind those of this process that wait already; the store decides about the others.
        if self.wait.is_none() || !lines.is_waited_for(&self.key) {
            match self.once(record).await? {
                Answer::Busy(told) => busy = told,
                answer => return Ok(answer),
            }
        }
        let Some(wait) = self.wait else {
            return Ok(Answer::Busy(busy));
        };
        let until = started + wait;
        match lines.wait(&self.store, &self.key, &self.terms, until).await {
            Waited::Granted(hold) => Ok(Answer::Granted(LockGuard::new(hold))),
            Waited::Fault(error) => Err(error.into()),
            Waited::TooLong | Waited::Full => {
                busy.waited = Some(started.elapsed());
                Ok(Answer::Busy(busy))
            }
        }
    }

    /// One call, sent by the caller itself; takes the lock if it is free and nobody stands in line.
    pub(super) async fn once(&self, record: Option<Arc<str>>) -> Result<Answer, Error> {
        let lease = self.terms.for_the_first_time();
        let mut attempt = Attempt::new(&self.store, &self.key, self.terms.mode);
        let (key, me) = (self.key.clone(), attempt.me.clone());
        let mode = self.terms.mode;
        let call =
            Acquire { key, me, mode, lease, spare: SPARE_FENCES, wait: None, old_seq: 0, record };
        match attempt.send(lease, self.store.backend().acquire(call)).await? {
            Acquired::Held { fence, .. } => {
                let hold = attempt.granted(fence, self.terms.clone());
                Ok(Answer::Granted(LockGuard::new(hold)))
            }
            Acquired::Busy { left, line, .. } => {
                attempt.refused();
                Ok(Answer::Busy(Busy { left, line, waited: None }))
            }
            Acquired::Known => {
                attempt.refused();
                Ok(Answer::Known)
            }
        }
    }
}

/// What asking comes to.
pub(super) enum Answer<G = LockGuard> {
    Granted(G),
    Busy(Busy),
    Known,
}

impl<G> Answer<G> {
    pub(super) fn map<H>(self, granted: impl FnOnce(G) -> H) -> Answer<H> {
        match self {
            Self::Granted(guard) => Answer::Granted(granted(guard)),
            Self::Busy(busy) => Answer::Busy(busy),
            Self::Known => Answer::Known,
        }
    }
}

/// What is known about a lock that somebody else has.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Busy {
    /// When its lease ends if it is not renewed.
    pub left: Duration,
    /// How many stand in line.
    pub line: u64,
    /// How long this request has waited, if it did.
    pub waited: Option<Duration>,
}

/// Why there is no lock.
#[derive(Debug)]
#[non_exhaustive]
pub enum NotAcquired {
    /// Somebody else has it: an outcome, not a fault.
    Busy(Busy),
    /// This request has the lock already, shared or by a permit, and asks for it in another way, for which
    /// it would have to wait for itself: a fault of the program. Give it back first, or ask for it alone
    /// from the start.
    WouldDeadlock,
    /// The store could not be asked.
    Fault(Error),
}

impl NotAcquired {
    /// The wait was for several locks, and began then.
    pub(super) fn waited_since(self, began: Instant) -> Self {
        match self {
            Self::Busy(mut busy) => {
                busy.waited = busy.waited.map(|_| began.elapsed());
                Self::Busy(busy)
            }
            other => other,
        }
    }
}

impl From<Error> for NotAcquired {
    fn from(error: Error) -> Self {
        Self::Fault(error)
    }
}

impl fmt::Display for NotAcquired {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Busy(_) => f.write_str("the lock is held by somebody else"),
            Self::WouldDeadlock => f.write_str(
                "the lock is held by this request itself, in a way that excludes this one",
            ),
            Self::Fault(_) => f.write_str("the lock could not be asked for"),
        }
    }
}

impl StdError for NotAcquired {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Self::Busy(_) | Self::WouldDeadlock => None,
            Self::Fault(error) => Some(error),
        }
    }
}
