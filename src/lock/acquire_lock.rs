//! Acquire of one lock: reentrant, with retries, in one call, or with a wait in the local queue.

use std::{slice, sync::Arc};

use tokio::time::Instant;

use super::{
    acquire_options::AcquireOptions,
    held_lock_view::HeldLocks,
    local_wait_queue::{LocalQueues, QueueSnapshot, WaitOutcome},
    lock_guard::LockGuard,
    lock_outcome::{AcquireError, LockBusy, LockOutcome},
    lock_request::LockRequest,
    lock_retry::LockRetry,
    lock_span::{AcquireTimer, LockSpan},
};
use crate::{
    error::Error,
    key::Key,
    store::{AcquireCommand, AcquireReply, GrantAttempt, ensure_replicated},
};

impl LockRequest {
    /// Like `acquire`, but ignores the locks that this request already holds.
    pub(super) async fn acquire_non_reentrant(self) -> Result<LockGuard, AcquireError> {
        let span = self.start_span(slice::from_ref(&self.key));
        let (store, key, max_wait) = (self.store.clone(), self.key.clone(), self.wait);
        let mut acquired = self.acquire_with_record(None).await;
        let acquire = (&store, slice::from_ref(&key), max_wait);
        span.end_wait(acquire, &mut acquired, |guard| vec![guard]);
        acquired?.into_granted()
    }

    /// Like [`acquire_non_reentrant`](Self::acquire_non_reentrant), as a part of a set that has a
    /// span.
    pub(super) async fn acquire_for_set(self) -> Result<LockGuard, AcquireError> {
        self.acquire_with_record(None).await?.into_granted()
    }

    /// Starts the span of an acquire of these locks, on the terms of this request.
    pub(super) fn start_span(&self, keys: &[Key]) -> AcquireTimer {
        LockSpan::start(&self.store, keys, self.options.terms.mode)
    }

    /// Returns a guard on a lock that the request already holds, once the required number of
    /// replicas have its grant.
    pub(super) async fn acquire_reentrant(
        &self,
        key: &Key,
        held_locks: &HeldLocks,
    ) -> Result<Option<LockGuard>, AcquireError> {
        held_locks.identify_stores(&self.store, slice::from_ref(key)).await?;
        let Some(guard) = held_locks.find_guard(&self.store, key, self.options.terms.mode)? else {
            return Ok(None);
        };
        let min_replicas = self.options.replicas;
        if min_replicas == 0 {
            return Ok(Some(guard));
        }
        guard.held_lock().await_replicas(&self.store, min_replicas).await?;
        guard.ensure_valid().map(Some)
    }

    /// Returns the same request for another lock, with the remainder of a wait that began at
    /// `started_at`.
    pub(super) fn for_key(&self, key: &Key, started_at: Instant) -> Self {
        let wait = self.wait.map(|wait| wait.saturating_sub(started_at.elapsed()));
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
        let min_replicas = self.options.replicas;
        let server_generation = self.store.backend().server_generation();
        let outcome = match self.retry {
            Some(retry) => self.acquire_with_retry(retry, record).await?,
            None => self.acquire_or_wait(record).await?,
        };
        match outcome {
            LockOutcome::Granted(guard) if min_replicas > 0 => {
                // If this future fails or is dropped, so is the guard, and the lock is released.
                let replica_count =
                    ensure_replicated(&self.store, guard.key(), min_replicas, server_generation)
                        .await?;
                if let Some(lease) = guard.lease() {
                    lease.record_replicas(replica_count, server_generation);
                }
                guard.ensure_valid().map(LockOutcome::Granted)
            }
            outcome => Ok(outcome),
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

    /// Makes one attempt, with an entry in the wait queue if a wait is set.
    pub(super) async fn acquire_or_wait(
        &self,
        record: Option<Arc<str>>,
    ) -> Result<LockOutcome, AcquireError> {
        let Some(wait) = self.wait else { return self.try_acquire(record.as_ref()).await };
        let started_at = Instant::now();
        let local_queues = self.store.extension::<LocalQueues>();
        let deadline = started_at + wait;
        if let Some(record) = record {
            return self.wait_unless_recorded(&local_queues, record, started_at, deadline).await;
        }
        self.wait_in_queue(&local_queues, started_at, deadline).await
    }

    /// Waits in the local queue until the deadline.
    pub(super) async fn wait_in_queue(
        &self,
        local_queues: &Arc<LocalQueues>,
        started_at: Instant,
        deadline: Instant,
    ) -> Result<LockOutcome, AcquireError> {
        let mut busy =
            match local_queues.acquire(&self.store, &self.key, &self.options, deadline).await {
                WaitOutcome::Granted(guard) => return Ok(LockOutcome::Granted(guard)),
                WaitOutcome::Fault(error) => return Err(error.into()),
                WaitOutcome::TimedOut(busy) | WaitOutcome::QueueFull(busy) => busy,
            };
        busy.waited = Some(started_at.elapsed());
        Ok(LockOutcome::Busy(busy))
    }

    /// Makes one call in the caller's own future. It acquires the lock if that is free and has no
    /// waiters.
    pub(super) async fn try_acquire_from(
        &self,
        local_queues: &Arc<LocalQueues>,
        record: Option<&Arc<str>>,
    ) -> Result<LockOutcome, Error> {
        let AcquireOptions { terms, .. } = &self.options;
        let lease = terms.initial_lease();
        let mut attempt = GrantAttempt::new(&self.store, &self.key, terms.mode);
        let command =
            AcquireCommand { record_name: record.cloned(), ..attempt.try_acquire_command(lease) };
        match attempt.send(lease, || self.store.backend().acquire(command)).await? {
            AcquireReply::Granted { fence, contenders, server_us, .. } => {
                let snapshot = QueueSnapshot::new(attempt.sent_at(), server_us, contenders);
                let hold = attempt.accept_grant(fence, terms.clone())?;
                Ok(LockOutcome::Granted(local_queues.register_grant(hold, &self.options, snapshot)))
            }
            AcquireReply::Busy { lease_remaining, queue_length, .. } => {
                attempt.mark_refused();
                Ok(LockOutcome::Busy(LockBusy { lease_remaining, queue_length, waited: None }))
            }
            AcquireReply::AlreadyAccepted => {
                attempt.mark_refused();
                Ok(LockOutcome::RecordExists)
            }
        }
    }
}
