//! Request for several locks, acquired together.
//!
//! If all of them are free and have no waiters, one call acquires them all. Otherwise that call
//! acquires nothing, and the locks are acquired one by one, in an order that all processes share:
//! by shard, then by key. Of two requests that want the same two locks, one gets the first lock and
//! the other waits there without holding either, so there is no deadlock. All waits share one
//! deadline.

use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::time::Instant;

use super::{
    held_lock_view::HeldLocks,
    lock_outcome::{AcquireError, LockBusy, LockOutcome},
    lock_request::LockRequest,
    lock_set::LockSet,
};
use crate::{error::Error, gate::dedup_keys, key::Key, store::Store};

/// Request for several locks, created by [`Store::locks`].
#[derive(Debug, Clone)]
#[must_use = "nothing is locked until it is awaited"]
pub struct LockSetRequest {
    /// In the order in which they were named, without duplicates.
    keys: Vec<Key>,
    /// Settings of each lock.
    template: LockRequest,
}

impl Store {
    /// Creates a request for the locks of these keys, all or none. Duplicate keys are one lock;
    /// without keys, the set is empty.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), lockgate::AcquireError> {
    /// # use std::time::Duration;
    /// # use lockgate::Store;
    /// let store = Store::memory();
    /// let request = store.locks(["account:7", "account:8"]).wait(Duration::from_secs(5));
    /// let transfer = request.acquire().await?;
    /// assert!(transfer.held_locks().get("account:8").is_some());
    /// # Ok(()) }
    /// ```
    pub fn locks<K: Into<Key>>(&self, keys: impl IntoIterator<Item = K>) -> LockSetRequest {
        let keys = keys.into_iter().map(Into::into).collect();
        // The key is a placeholder that is replaced by that of each lock.
        LockSetRequest::new(keys, self.lock(""))
    }
}

impl LockSetRequest {
    pub(super) fn new(mut keys: Vec<Key>, template: LockRequest) -> Self {
        dedup_keys(&mut keys);
        Self { keys, template }
    }

    fn map_template(mut self, set: impl FnOnce(LockRequest) -> LockRequest) -> Self {
        self.template = set(self.template);
        self
    }

    /// Sets the lease of each lock, as [`LockRequest::lease`].
    pub fn lease(self, lease: Duration) -> Self {
        self.map_template(|template| template.lease(lease))
    }

    /// Sets a fixed lease for each lock, as [`LockRequest::fixed_lease`]. The first lock has less
    /// of its lease left when the last one is acquired.
    pub fn fixed_lease(self, lease: Duration) -> Self {
        self.map_template(|template| template.fixed_lease(lease))
    }

    /// Sets the longest hold of each lock, counted from its grant, as [`LockRequest::max_hold`].
    pub fn max_hold(self, max_hold: Duration) -> Self {
        self.map_template(|template| template.max_hold(max_hold))
    }

    /// Waits at most this long for all locks together, ten minutes at most. Default: no wait. Locks
    /// that are already granted are kept during the wait.
    pub fn wait(self, wait: Duration) -> Self {
        self.map_template(|template| template.wait(wait))
    }

    /// Retries the whole set, as [`LockRequest::retry`]. No lock is kept between two attempts.
    pub fn retry(self, max_retries: u32, interval: Duration) -> Self {
        self.map_template(|template| template.retry(max_retries, interval))
    }

    /// Sets the handover limits of each lock, as [`LockRequest::handover_limits`].
    pub fn handover_limits(self, limit: u32, window: Duration) -> Self {
        self.map_template(|template| template.handover_limits(limit, window))
    }

    /// Disables handovers of each lock, as [`LockRequest::strict_order`].
    pub fn strict_order(self) -> Self {
        self.map_template(LockRequest::strict_order)
    }

    /// Requires replicas for each grant, as [`LockRequest::min_replicas`]. The locks are then
    /// acquired one by one, with a wait after each. Default 0.
    pub fn min_replicas(self, replicas: u32) -> Self {
        self.map_template(|template| template.min_replicas(replicas))
    }

    /// Limits the waiters of each lock, as [`LockRequest::max_waiters`]. Default 1024.
    pub fn max_waiters(self, limit: usize) -> Self {
        self.map_template(|template| template.max_waiters(limit))
    }

    /// Acquires each lock as shared, as [`LockRequest::shared`].
    pub fn shared(self) -> Self {
        self.map_template(LockRequest::shared)
    }

    /// Acquires a permit of each lock, as [`LockRequest::permits`].
    ///
    /// # Panics
    ///
    /// If `max_holders` is 0. For a number from a configuration use
    /// [`try_permits`](Self::try_permits).
    pub fn permits(self, max_holders: u32) -> Self {
        self.map_template(|request| request.permits(max_holders))
    }

    /// Like [`permits`](Self::permits), for a number from a configuration.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`](crate::ErrorKind) if `max_holders` is 0.
    pub fn try_permits(self, max_holders: u32) -> Result<Self, Error> {
        let template = self.template.try_permits(max_holders)?;
        Ok(Self { template, ..self })
    }

    /// Acquires all locks, or none: in one call if all are free and at most 32 (in a cluster, of
    /// one shard), otherwise one by one.
    ///
    /// Cancel safe: if the future is dropped, granted locks are released in reverse order.
    ///
    /// # Errors
    ///
    /// As [`LockRequest::acquire`]; locks that were granted before the failure have been released.
    pub async fn acquire(self) -> Result<LockSet, AcquireError> {
        let span = self.template.start_span(&self.keys);
        let LockRequest { store, wait: max_wait, .. } = self.template.clone();
        let keys = self.keys.clone();
        let mut acquired =
            self.acquire_within(&HeldLocks::current()).await.map(LockOutcome::Granted);
        span.end_wait((&store, &keys, max_wait), &mut acquired, LockSet::guards_mut);
        acquired?.into_granted()
    }

    /// Acquires the locks for a request that holds these already.
    pub(super) async fn acquire_within(
        self,
        held_locks: &HeldLocks,
    ) -> Result<LockSet, AcquireError> {
        let (template, retry) = self.template.clone().split_retry();
        let Some(retry) = retry else {
            return self.acquire_in_order(template, held_locks).await;
        };
        let attempt = || async {
            match self.acquire_in_order(template.clone(), held_locks).await {
                Ok(set) => Ok(Ok(set)),
                Err(AcquireError::Busy(busy)) => Ok(Err(busy)),
                Err(error) => Err(error),
            }
        };
        retry.run(attempt).await?.map_err(AcquireError::Busy)
    }

    async fn acquire_in_order(
        &self,
        template: LockRequest,
        held_locks: &HeldLocks,
    ) -> Result<LockSet, AcquireError> {
        let started_at = Instant::now();
        let mut ordered_keys: Vec<_> = self.keys.iter().enumerate().collect();
        ordered_keys.sort_by(|(_, first), (_, second)| LockSet::compare_keys(first, second));
        // All reentrant acquires first: they are cheap, and a refusal must not cost more than that.
        let mut reentrant_guards = Vec::with_capacity(ordered_keys.len());
        for (key_index, key) in ordered_keys {
            let reentrant_guard = if held_locks.is_empty() {
                None
            } else {
                template.acquire_reentrant(key, held_locks).await?
            };
            reentrant_guards.push((key_index, key, reentrant_guard));
        }
        if reentrant_guards.iter().all(|(.., guard)| guard.is_none()) {
            let indexed_keys =
                reentrant_guards.iter().map(|(key_index, key, _)| (*key_index, *key));
            let ordered_keys = Vec::from_iter(indexed_keys);
            if let Some(guards) = template.try_acquire_all(&ordered_keys).await? {
                return Ok(LockSet { guards: guards.into() });
            }
        }
        let mut set = LockSet::default();
        for (key_index, key, reentrant_guard) in reentrant_guards {
            let acquired = match reentrant_guard {
                Some(guard) => Ok(guard),
                None => template.for_key(key, started_at).acquire_for_set().await,
            };
            match acquired {
                Ok(guard) => set.guards.push((key_index, guard)),
                Err(error) => {
                    // Before the error is returned: its receiver may ask for one of them at once.
                    set.release().await;
                    return Err(error.with_wait_since(started_at));
                }
            }
        }
        // The first lock may have been lost during the wait for the last.
        if set.held_locks().loss().is_some() {
            set.release().await;
            let busy = LockBusy { lease_remaining: Duration::ZERO, queue_length: 0, waited: None };
            return Err(AcquireError::Busy(busy).with_wait_since(started_at));
        }
        Ok(set)
    }
}

impl IntoFuture for LockSetRequest {
    type Output = Result<LockSet, AcquireError>;
    type IntoFuture = BoxFuture<'static, Self::Output>;

    /// Calls [`acquire`](Self::acquire).
    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.acquire())
    }
}
