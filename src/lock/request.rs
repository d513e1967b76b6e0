//! Asking for a lock.

use std::{error::Error as StdError, fmt, sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{
    guard::LockGuard,
    held::HeldLocks,
    line::{Asking, HandOver, Lines, Waited, Word},
    retry::Retry,
};
use crate::{
    clock::LONGEST,
    error::{Error, ErrorKind},
    key::Key,
    store::{Acquire, Acquired, Attempt, Mode, Store, Terms},
};

/// Most waiters of one lock in one process, unless told otherwise: a line as long as this is served in
/// seconds, a longer one by time-outs.
const MAX_WAITERS: usize = 1024;

/// Most hand-overs without a word from the store: each needs a fence of its own, set aside with the grant.
const MOST_HAND_OVERS: u32 = 1000;

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
    asking: Asking,
    wait: Option<Duration>,
    retry: Option<Retry>,
}

impl Store {
    /// A lock of this name. Text becomes [`Key::custom`]; [`Key::path_param`] is the key of a
    /// `LockLayer`, so that jobs and handlers can share its lock.
    pub fn lock(&self, key: impl Into<Key>) -> LockRequest {
        LockRequest::of(self, &key.into(), Asking::default(), None)
    }
}

impl Default for Asking {
    fn default() -> Self {
        let terms = Terms {
            lease: Duration::from_secs(10),
            renew: true,
            max_hold: Duration::from_secs(60),
            job: None,
            mode: Mode::Exclusive,
        };
        Self {
            terms,
            hand_over: HandOver::default(),
            replicas: 0,
            linger: Duration::ZERO,
            max_waiters: MAX_WAITERS,
        }
    }
}

impl LockRequest {
    pub(super) fn of(store: &Store, key: &Key, asking: Asking, wait: Option<Duration>) -> Self {
        Self { store: store.clone(), key: key.clone(), asking, wait, retry: None }
    }

    /// How long the lock outlives its process; renewed at a third of it. Default 10 s: long enough to
    /// survive pauses and short outages, short enough to wait for. At least 100 ms.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.asking.terms.lease = lease.clamp(MIN_LEASE, LONGEST);
        self.asking.terms.renew = true;
        self
    }

    /// A lease that is never renewed: the lock ends after it, whatever its holder does.
    pub fn lease_fixed(mut self, lease: Duration) -> Self {
        self.asking.terms.lease = lease.clamp(MIN_LEASE, LONGEST);
        self.asking.terms.renew = false;
        self
    }

    /// How long a living holder may have it in all. Default 60 s: bounds a handler that never ends.
    pub fn max_hold(mut self, max_hold: Duration) -> Self {
        self.asking.terms.max_hold = max_hold.min(LONGEST);
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

    /// How the lock may pass from one holder of this process to the next without asking the store:
    /// at most this often, within this time, after a word from the store. Default 16 times within
    /// 10 ms: one call for 17 acquisitions of a hot lock, while other processes wait no longer than
    /// that for a message that was lost. Nobody is passed over whom the store has told of.
    pub fn hand_over(mut self, most: u32, within: Duration) -> Self {
        self.asking.hand_over = HandOver { most: most.min(MOST_HAND_OVERS).into(), within };
        self
    }

    /// Never passes the lock on without asking the store: the order of asking holds across processes
    /// to the last place, at a call for each acquisition.
    pub fn strict_order(self) -> Self {
        self.hand_over(0, Duration::ZERO)
    }

    /// Keeps a released lock in this process for so long, until somebody wants it: who asks for it here
    /// meanwhile has it without asking the store, within the bounds of [`hand_over`](Self::hand_over).
    /// A process that joins its line is told of and gets it at once; one that merely tries is told
    /// "busy". Default: not at all. Worth it where requests for one resource come to one process.
    pub fn linger(mut self, linger: Duration) -> Self {
        self.asking.linger = linger;
        self
    }

    /// Grants count only when so many replicas have them; else the lock is given back, and the answer is
    /// the fault of a store that is away. Default 0. One more round trip for each grant (`WAIT`).
    ///
    /// It makes the loss of a grant in a failover less likely and does not rule it out: with one of two
    /// replicas, the other may be promoted. The fence is what keeps a late writer out.
    pub fn replicas(mut self, replicas: u32) -> Self {
        self.asking.replicas = replicas;
        self
    }

    /// Most who may wait for this lock in this process; beyond it the answer is "busy" at once, without
    /// asking the store. Default 1024.
    pub fn max_waiters(mut self, most: usize) -> Self {
        self.asking.max_waiters = most;
        self
    }

    /// Any number of holders who ask for it like this; they and exclusive holders exclude each other.
    /// Who comes while an exclusive one waits stands behind it.
    pub fn shared(mut self) -> Self {
        self.asking.terms.mode = Mode::Shared;
        self
    }

    /// Up to this many holders at once, and no exclusive or shared one beside them. Each request brings
    /// its own number along: a smaller one waits for longer.
    ///
    /// # Panics
    ///
    /// If `most` is 0: nobody would ever be let in.
    pub fn permits(mut self, most: u32) -> Self {
        assert!(most > 0, "LockRequest::permits: with 0 permits nobody would ever be let in");
        self.asking.terms.mode = Mode::Permits(most);
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
        held.find(&self.store, key, self.asking.terms.mode)
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
        let wanted = self.asking.replicas;
        let answer = match self.retry {
            Some(retry) => self.retried(retry, record).await?,
            None => self.ask_once(record).await?,
        };
        match answer {
            Answer::Granted(guard) if wanted > 0 => {
                // If this future is dropped, or fails, so is the guard: the lock is given back.
                let shard = guard.key().shard();
                let have = self.store.backend().replicated(shard, wanted).await?;
                if have < wanted {
                    tracing::warn!(have, wanted, "lock refused: too few replicas have the grant");
                    return Err(Error::new(ErrorKind::Unavailable, "replicas").into());
                }
                Ok(Answer::Granted(guard))
            }
            answer => Ok(answer),
        }
    }

    /// One attempt, with a place in line if a wait is set.
    pub(super) async fn ask_once(&self, record: Option<Arc<str>>) -> Result<Answer, NotAcquired> {
        let started = Instant::now();
        let lines = self.store.room::<Lines>();
        if record.is_none()
            && let Some(guard) = lines.take_resting(&self.key, &self.asking)
        {
            return Ok(Answer::Granted(guard));
        }
        let Some(wait) = self.wait else {
            return Ok(self.once(&lines, record).await?);
        };
        let until = started + wait;
        let mut busy = match lines.acquire(&self.store, &self.key, &self.asking, until).await {
            Waited::Granted(guard) => return Ok(Answer::Granted(guard)),
            Waited::Fault(error) => return Err(error.into()),
            Waited::TooLong(busy) | Waited::Full(busy) => busy,
        };
        busy.waited = Some(started.elapsed());
        Ok(Answer::Busy(busy))
    }

    /// One call, sent by the caller itself; takes the lock if it is free and nobody stands in line.
    async fn once(&self, lines: &Arc<Lines>, record: Option<Arc<str>>) -> Result<Answer, Error> {
        let Asking { terms, hand_over, .. } = &self.asking;
        let lease = terms.for_the_first_time();
        let mut attempt = Attempt::new(&self.store, &self.key, terms.mode);
        let call = Acquire {
            key: self.key.clone(),
            me: attempt.me.clone(),
            mode: terms.mode,
            lease,
            spare: hand_over.most,
            wait: None,
            old_seq: 0,
            record,
        };
        match attempt.send(lease, self.store.backend().acquire(call)).await? {
            Acquired::Held { fence, next, now, .. } => {
                let word = Word::new(attempt.sent(), now, next);
                let hold = attempt.granted(fence, terms.clone());
                Ok(Answer::Granted(lines.granted(hold, &self.asking, word)))
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
