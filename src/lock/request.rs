//! Asking for a lock.

use std::{slice, sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{
    acquire_options::{AcquireOptions, MAX_WAIT},
    guard::LockGuard,
    held_lock::HeldLocks,
    outcome::{AcquireError, LockBusy, LockOutcome},
    retry::LockRetry,
    wait_queue::{LocalQueues, QueueSnapshot, WaitOutcome},
};
use crate::{
    error::Error,
    key::Key,
    store::{AcquireCommand, AcquireReply, GrantAttempt, LockMode, Store, ensure_replicated},
};

/// How a lock is asked for. Made by [`Store::lock`].
#[derive(Debug, Clone)]
#[must_use = "nothing is locked until `acquire` is awaited"]
pub struct LockRequest {
    pub(super) store: Store,
    key: Key,
    pub(super) options: AcquireOptions,
    wait: Option<Duration>,
    retry: Option<LockRetry>,
}

impl Store {
    /// A lock of this name. Text becomes [`Key::custom`]; [`Key::path_param`] is the key of a
    /// `LockLayer`, so that jobs and handlers can share its lock.
    pub fn lock(&self, key: impl Into<Key>) -> LockRequest {
        LockRequest::new(self, &key.into(), AcquireOptions::default(), None)
    }
}

impl LockRequest {
    pub(super) fn new(
        store: &Store,
        key: &Key,
        asking: AcquireOptions,
        wait: Option<Duration>,
    ) -> Self {
        Self { store: store.clone(), key: key.clone(), options: asking, wait, retry: None }
    }

    /// How long the lock outlives its process; renewed at a third of it. Default 10 s: long enough to
    /// survive pauses and short outages, short enough to wait for. At least 100 ms, and never longer than
    /// [`max_hold`](Self::max_hold).
    pub fn lease(mut self, lease: Duration) -> Self {
        self.options.set_lease(lease, true);
        self
    }

    /// A lease that is never renewed: the lock ends after it, whatever its holder does. At least 100 ms, and never longer
    /// than [`max_hold`](Self::max_hold), 60 s by default: set that too for a longer one. What the fence protects stays
    /// protected after it.
    pub fn fixed_lease(mut self, lease: Duration) -> Self {
        self.options.set_lease(lease, false);
        self
    }

    /// How long a living holder may have it in all. Default 60 s: bounds a handler that never ends. At
    /// least 100 ms.
    pub fn max_hold(mut self, max_hold: Duration) -> Self {
        self.options.set_max_hold(max_hold);
        self
    }

    /// Stand in line for at most this long. Default: don't. At most ten minutes.
    pub fn wait(mut self, wait: Duration) -> Self {
        (self.wait, self.retry) = (Some(wait.min(MAX_WAIT)), None);
        self
    }

    /// Ask again as this says, or, with `None`, as `wait` says.
    pub(super) fn with_retry(mut self, retry: Option<LockRetry>) -> Self {
        (self.wait, self.retry) = (self.wait.filter(|_| retry.is_none()), retry);
        self
    }

    /// How the lock may pass from one holder of this process to the next without asking the store:
    /// at most this often, within this time, after a word from the store. Default 16 times within
    /// 10 ms: one call for 17 acquisitions of a hot lock, also where several processes want it. More
    /// than 32 times is 32: each needs a fence that is set aside with the grant.
    ///
    /// Who waits at another process may be passed so by those who came later to this one: by so many, and for so
    /// long, and as a rule not again before he has had it. Deferred requests that came first, and that this process has been told
    /// of, are not passed. [`strict_order`](Self::strict_order) passes nobody.
    pub fn handover_limits(mut self, most: u32, within: Duration) -> Self {
        self.options.set_handover_limits(most, within);
        self
    }

    /// Never passes the lock on without asking the store: the order of asking holds across processes, as
    /// far as times within a round trip can be told apart, at a call for each acquisition.
    pub fn strict_order(self) -> Self {
        self.handover_limits(0, Duration::ZERO)
    }

    /// Grants count only when so many replicas have them; else the lock is given back, and the answer is
    /// the fault of a store that is away. Default 0. One more round trip for each grant (`WAIT`).
    /// Whether it has to be on their disks is a setting of the store (`StoreBuilder::replicas_on_disk`).
    /// A lock that this request already has counts under the same condition: its grant is waited for.
    ///
    /// It makes the loss of a grant in a failover less likely and does not rule it out: with one of two
    /// replicas, the other may be promoted. The fence is what keeps a late writer out.
    pub fn min_replicas(mut self, replicas: u32) -> Self {
        self.options.replicas = replicas;
        self
    }

    /// Most who may wait for this lock in this process; beyond it the answer is "busy" at once, without
    /// asking the store. Who asks the store for all of them does not wait yet: it needs room when that has said "busy".
    /// With 0 nobody waits. Default 1024: who stands behind so many would be served after most callers have gone.
    /// For all locks of a store and its clones together 16,384 may wait, which is no setting.
    pub fn max_waiters(mut self, most: usize) -> Self {
        self.options.max_waiters = most;
        self
    }

    /// Any number of holders who ask for it like this; they and exclusive holders exclude each other.
    /// Who comes while an exclusive one waits stands behind it, unless others of its process waited for it before that
    /// one came: it may come in with them, within 300 ms.
    pub fn shared(mut self) -> Self {
        self.options.terms.mode = LockMode::Shared;
        self
    }

    /// Up to this many holders at once, and no exclusive or shared one beside them. Each request brings
    /// its own number along: a smaller one waits for longer. Inside a request that has a permit, a smaller
    /// number is [`AcquireError::WouldDeadlock`], and the same or a larger one is that permit.
    ///
    /// # Panics
    ///
    /// If `most` is 0: nobody would ever be let in.
    pub fn permits(mut self, most: u32) -> Self {
        assert!(most > 0, "LockRequest::permits: with 0 permits nobody would ever be let in");
        self.options.terms.mode = LockMode::Permits(most);
        self
    }

    /// Acquires the lock.
    ///
    /// Within a request whose `LockLayer` has this lock, or within [`LockGuard::scope`], this is another
    /// guard on what is held, by memory alone; the lease and `max_hold` are those of the first. That holds
    /// for any handle on the same server, database and namespace. (A clone of a server's data counts as the
    /// same server.) Anywhere else each call is an owner of its own, and two of one task exclude each other.
    ///
    /// Cancel safe: if the future is dropped, whatever the store has granted or will grant for it is
    /// given back, and its place in line is left.
    ///
    /// # Errors
    ///
    /// [`AcquireError::Busy`] if somebody else has it, after the wait if there is one;
    /// [`AcquireError::WouldDeadlock`] if this request itself keeps it from being granted;
    /// [`AcquireError::Fault`] if the store is away.
    pub async fn acquire(self) -> Result<LockGuard, AcquireError> {
        let held = HeldLocks::current();
        if held.is_empty() {
            return self.acquire_non_reentrant().await;
        }
        match Box::pin(self.acquire_reentrant(&self.key, &held)).await? {
            Some(guard) => Ok(guard),
            None => self.acquire_non_reentrant().await,
        }
    }

    /// As `acquire`, whatever this request has already.
    pub(super) async fn acquire_non_reentrant(self) -> Result<LockGuard, AcquireError> {
        match self.acquire_with_record(None).await? {
            LockOutcome::Granted(guard) => Ok(guard),
            LockOutcome::Busy(busy) => Err(AcquireError::Busy(busy)),
            #[expect(clippy::unreachable, reason = "said of records only")]
            LockOutcome::RecordExists | LockOutcome::TooManyKeys(_) => {
                unreachable!("no record was asked for")
            }
        }
    }

    /// A guard on a lock that the request already has, once as many replicas have its grant as are asked
    /// for here.
    pub(super) async fn acquire_reentrant(
        &self,
        key: &Key,
        held: &HeldLocks,
    ) -> Result<Option<LockGuard>, AcquireError> {
        held.identify_stores(&self.store, slice::from_ref(key)).await?;
        let Some(guard) = held.find_guard(&self.store, key, self.options.terms.mode)? else {
            return Ok(None);
        };
        let wanted = self.options.replicas;
        if wanted == 0 {
            return Ok(Some(guard));
        }
        guard.held_lock().await_replicas(&self.store, wanted).await?;
        guard.ensure_valid().map(Some)
    }

    /// The same for another lock, with what is left of the wait that began then.
    pub(super) fn for_key(&self, key: &Key, began: Instant) -> Self {
        let wait = self.wait.map(|wait| wait.saturating_sub(began.elapsed()));
        Self { key: key.clone(), wait, ..self.clone() }
    }

    /// One attempt, and how it is to be repeated.
    pub(super) fn split_retry(mut self) -> (Self, Option<LockRetry>) {
        let retry = self.retry.take();
        (self, retry)
    }

    /// As `acquire`, with the idempotency record that is looked up first.
    pub(super) async fn acquire_with_record(
        self,
        record: Option<Arc<str>>,
    ) -> Result<LockOutcome, AcquireError> {
        let wanted = self.options.replicas;
        let since = self.store.backend().server_generation();
        let answer = match self.retry {
            Some(retry) => self.acquire_with_retry(retry, record).await?,
            None => self.acquire_or_wait(record).await?,
        };
        match answer {
            LockOutcome::Granted(guard) if wanted > 0 => {
                // If this future is dropped, or fails, so is the guard: the lock is given back.
                let have = ensure_replicated(&self.store, guard.key(), wanted, since).await?;
                if let Some(lease) = guard.lease() {
                    lease.record_replicas(have, since);
                }
                guard.ensure_valid().map(LockOutcome::Granted)
            }
            answer => Ok(answer),
        }
    }

    /// Whether it is tried once, and granted by one answer.
    pub(super) fn is_single_call(&self) -> bool {
        self.wait.is_none() && self.retry.is_none() && self.options.replicas == 0
    }

    /// As [`acquire_with_record`](Self::acquire_with_record), for what [is one call](Self::is_single_call).
    pub(super) async fn try_acquire(
        &self,
        record: Option<&Arc<str>>,
    ) -> Result<LockOutcome, AcquireError> {
        Ok(self.try_acquire_from(&self.store.extension::<LocalQueues>(), record).await?)
    }

    pub(super) fn has_wait(&self) -> bool {
        self.wait.is_some()
    }

    /// One attempt, with a place in line if a wait is set.
    pub(super) async fn acquire_or_wait(
        &self,
        record: Option<Arc<str>>,
    ) -> Result<LockOutcome, AcquireError> {
        let Some(wait) = self.wait else { return self.try_acquire(record.as_ref()).await };
        let started = Instant::now();
        let lines = self.store.extension::<LocalQueues>();
        let until = started + wait;
        if let Some(record) = record {
            return self.wait_unless_recorded(&lines, record, started, until).await;
        }
        self.wait_in_queue(&lines, started, until).await
    }

    pub(super) async fn wait_in_queue(
        &self,
        lines: &Arc<LocalQueues>,
        started: Instant,
        until: Instant,
    ) -> Result<LockOutcome, AcquireError> {
        let mut busy = match lines.acquire(&self.store, &self.key, &self.options, until).await {
            WaitOutcome::Granted(guard) => return Ok(LockOutcome::Granted(guard)),
            WaitOutcome::Fault(error) => return Err(error.into()),
            WaitOutcome::TimedOut(busy) | WaitOutcome::QueueFull(busy) => busy,
        };
        busy.waited = Some(started.elapsed());
        Ok(LockOutcome::Busy(busy))
    }

    /// One call, sent by the caller itself; takes the lock if it is free and nobody stands in line.
    pub(super) async fn try_acquire_from(
        &self,
        lines: &Arc<LocalQueues>,
        record: Option<&Arc<str>>,
    ) -> Result<LockOutcome, Error> {
        let AcquireOptions { terms, .. } = &self.options;
        let lease = terms.initial_lease();
        let mut attempt = GrantAttempt::new(&self.store, &self.key, terms.mode);
        let call =
            AcquireCommand { record_name: record.cloned(), ..attempt.try_acquire_command(lease) };
        match attempt.send(lease, || self.store.backend().acquire(call)).await? {
            AcquireReply::Granted { fence, contenders: others, server_us: now, .. } => {
                let word = QueueSnapshot::new(attempt.sent_at(), now, others);
                let hold = attempt.accept_grant(fence, terms.clone())?;
                Ok(LockOutcome::Granted(lines.register_grant(hold, &self.options, word)))
            }
            AcquireReply::Busy { lease_remaining: left, queue_length: line, .. } => {
                attempt.mark_refused();
                Ok(LockOutcome::Busy(LockBusy {
                    lease_remaining: left,
                    queue_length: line,
                    waited: None,
                }))
            }
            AcquireReply::AlreadyAccepted => {
                attempt.mark_refused();
                Ok(LockOutcome::RecordExists)
            }
        }
    }
}
