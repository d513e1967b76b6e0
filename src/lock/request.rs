//! Request for a lock: its settings, and the acquire.

use std::{slice, sync::Arc, time::Duration};

use futures_util::future::BoxFuture;
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

/// Request for a lock, created by [`Store::lock`].
#[derive(Debug, Clone)]
#[must_use = "nothing is locked until it is awaited"]
pub struct LockRequest {
    pub(super) store: Store,
    key: Key,
    pub(super) options: AcquireOptions,
    wait: Option<Duration>,
    retry: Option<LockRetry>,
}

impl Store {
    /// Creates a request for the lock of this key. Text becomes [`Key::custom`];
    /// [`Key::path_param`] is the key of a `LockLayer`, so that jobs and handlers can share its
    /// lock.
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

    /// Sets the lease: how long the lock outlives its process. It is renewed at a third of it.
    ///
    /// Default 10 s: long enough to survive pauses and short outages, short enough to wait for. At
    /// least 100 ms, and never longer than [`max_hold`](Self::max_hold).
    pub fn lease(mut self, lease: Duration) -> Self {
        self.options.set_lease(lease, true);
        self
    }

    /// Sets a lease that is never renewed: the lock ends after it in any case.
    ///
    /// At least 100 ms, and never longer than [`max_hold`](Self::max_hold), 60 s by default; set
    /// that too for a longer one. Resources that check the fence stay protected after it.
    pub fn fixed_lease(mut self, lease: Duration) -> Self {
        self.options.set_lease(lease, false);
        self
    }

    /// Sets the longest time for which a live holder may have the lock. Default 60 s, which limits
    /// a handler that never ends. At least 100 ms.
    pub fn max_hold(mut self, max_hold: Duration) -> Self {
        self.options.set_max_hold(max_hold);
        self
    }

    /// Waits at most this long, ten minutes at most. Default: no wait. Replaces
    /// [`retry`](Self::retry).
    pub fn wait(mut self, wait: Duration) -> Self {
        (self.wait, self.retry) = (Some(wait.min(MAX_WAIT)), None);
        self
    }

    /// Sets the retries. With `None`, the wait applies.
    pub(super) fn with_retry(mut self, retry: Option<LockRetry>) -> Self {
        (self.wait, self.retry) = (self.wait.filter(|_| retry.is_none()), retry);
        self
    }

    /// Sets the limits on handovers within this process: at most `most` handovers after each answer
    /// of the store, within `within` of its request.
    ///
    /// Default 16 handovers within 10 ms: one call for 17 acquisitions of a contended lock, even if
    /// several processes want it. At most 32, because each needs a fence that is reserved with the
    /// grant.
    ///
    /// Later waiters of this process may thus overtake a waiter of another process, up to these
    /// limits and as a rule only once before it gets the lock. A handover never overtakes a
    /// deferred request known to be older. [`strict_order`](Self::strict_order) disables handovers.
    pub fn handover_limits(mut self, most: u32, within: Duration) -> Self {
        self.options.set_handover_limits(most, within);
        self
    }

    /// Disables handovers within this process. The order of arrival then holds across processes, as
    /// far as times within a round trip can be told apart, at the cost of a call for each
    /// acquisition.
    pub fn strict_order(self) -> Self {
        self.handover_limits(0, Duration::ZERO)
    }

    /// Requires that `replicas` replicas have each grant. Otherwise the lock is released, and the
    /// error is that of an unavailable store.
    ///
    /// Default 0. Costs another round trip for each grant (`WAIT`).
    /// `StoreBuilder::replicas_on_disk` sets whether the grant must be on their disks. A reentrant
    /// acquire also waits for the replicas of the grant that the request already holds.
    ///
    /// It makes the loss of a grant in a failover less likely, but does not rule it out: if one of
    /// two replicas has it, the other may be promoted. Only the fence keeps a late writer out.
    pub fn min_replicas(mut self, replicas: u32) -> Self {
        self.options.replicas = replicas;
        self
    }

    /// Limits the waiters for this lock in this process. Beyond it the lock is reported as busy at
    /// once, without a call. With 0, no request waits.
    ///
    /// Default 1024: in a longer queue, most callers would have left before they are served. A
    /// request that asks the store for all later arrivals is no waiter yet; it becomes one if the
    /// answer is busy. All locks of a store and its clones together have at most 16,384 waiters,
    /// which is not a setting.
    pub fn max_waiters(mut self, most: usize) -> Self {
        self.options.max_waiters = most;
        self
    }

    /// Acquires the lock together with any number of other shared holders. Shared and exclusive
    /// holders exclude each other.
    ///
    /// A shared request that arrives while an exclusive one waits queues behind it. There is one
    /// exception: if its process has shared waiters that arrived before the exclusive one, it may
    /// be admitted with them, within 300 ms.
    pub fn shared(mut self) -> Self {
        self.options.terms.mode = LockMode::Shared;
        self
    }

    /// Acquires one of `most` permits, with no exclusive or shared holder beside them.
    ///
    /// Each request has its own number, and one with a smaller number waits for longer. Inside a
    /// request that has a permit, a smaller number fails with [`AcquireError::WouldDeadlock`], and
    /// the same or a larger one shares that permit.
    ///
    /// # Panics
    ///
    /// If `most` is 0, because no request would ever be admitted.
    pub fn permits(mut self, most: u32) -> Self {
        assert!(most > 0, "LockRequest::permits: the number of permits must be at least 1");
        self.options.terms.mode = LockMode::Permits(most);
        self
    }

    /// Acquires the lock.
    ///
    /// Inside a `LockLayer` that holds this lock, or within [`LockGuard::scope`], it returns
    /// another guard on the same grant without a call to the store. The lease and `max_hold` are
    /// those of the first guard. This applies to any handle on the same server, database and
    /// namespace. (A clone of a server's data counts as the same server.) Anywhere else each call
    /// is an owner of its own, and two of one task exclude each other.
    ///
    /// Cancel safe: if the future is dropped, it leaves the queue, and a grant that the store has
    /// made or will make for it is released.
    ///
    /// # Errors
    ///
    /// - [`AcquireError::Busy`] if another holder has the lock, after the wait if there is one
    /// - [`AcquireError::WouldDeadlock`] if this request itself keeps it from being granted
    /// - [`AcquireError::Fault`] if the store is unavailable
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

    /// Like `acquire`, but ignores the locks that this request already holds.
    pub(super) async fn acquire_non_reentrant(self) -> Result<LockGuard, AcquireError> {
        match self.acquire_with_record(None).await? {
            LockOutcome::Granted(guard) => Ok(guard),
            LockOutcome::Busy(busy) => Err(AcquireError::Busy(busy)),
            #[expect(clippy::unreachable, reason = "returned for idempotency records only")]
            LockOutcome::RecordExists | LockOutcome::TooManyKeys(_) => {
                unreachable!("the request has no idempotency record")
            }
        }
    }

    /// Returns a guard on a lock that the request already holds, once the required number of
    /// replicas have its grant.
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

    /// Returns the same request for another lock, with the rest of a wait that began at `began`.
    pub(super) fn for_key(&self, key: &Key, began: Instant) -> Self {
        let wait = self.wait.map(|wait| wait.saturating_sub(began.elapsed()));
        Self { key: key.clone(), wait, ..self.clone() }
    }

    /// Returns the request for one attempt, and its retries.
    pub(super) fn split_retry(mut self) -> (Self, Option<LockRetry>) {
        let retry = self.retry.take();
        (self, retry)
    }

    /// Like `acquire`, but looks up an idempotency record first.
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
                // If this future fails or is dropped, so is the guard, and the lock is released.
                let have = ensure_replicated(&self.store, guard.key(), wanted, since).await?;
                if let Some(lease) = guard.lease() {
                    lease.record_replicas(have, since);
                }
                guard.ensure_valid().map(LockOutcome::Granted)
            }
            answer => Ok(answer),
        }
    }

    /// Returns true if the request needs one attempt and one answer only.
    pub(super) fn is_single_call(&self) -> bool {
        self.wait.is_none() && self.retry.is_none() && self.options.replicas == 0
    }

    /// Like [`acquire_with_record`](Self::acquire_with_record), for a [single
    /// call](Self::is_single_call).
    pub(super) async fn try_acquire(
        &self,
        record: Option<&Arc<str>>,
    ) -> Result<LockOutcome, AcquireError> {
        Ok(self.try_acquire_from(&self.store.extension::<LocalQueues>(), record).await?)
    }

    pub(super) fn has_wait(&self) -> bool {
        self.wait.is_some()
    }

    /// Makes one attempt, with a place in the wait queue if a wait is set.
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

    /// Makes one call in the caller's own future. It acquires the lock if that is free and has no
    /// waiters.
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

impl IntoFuture for LockRequest {
    type Output = Result<LockGuard, AcquireError>;
    type IntoFuture = BoxFuture<'static, Self::Output>;

    /// Calls [`acquire`](Self::acquire).
    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.acquire())
    }
}
