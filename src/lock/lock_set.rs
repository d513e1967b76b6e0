//! Several locks, acquired together.
//!
//! If all of them are free and have no waiters, one call acquires them all. Otherwise that call
//! acquires nothing, and the locks are acquired one by one, in an order that all processes share:
//! by shard, then by key. Of two requests that want the same two locks, one gets the first lock and
//! the other waits there without holding either, so there is no deadlock. All waits share one
//! deadline.

use std::{cmp::Ordering, time::Duration};

use futures_util::future::BoxFuture;
use futures_util::future::join_all;
use smallvec::SmallVec;
use tokio::time::Instant;

use super::{
    guard::{LockGuard, ReleaseStatus},
    held_lock::HeldLocks,
    outcome::{AcquireError, LockBusy},
    request::LockRequest,
};
use crate::{
    error::Error,
    gate::dedup_keys,
    key::Key,
    store::{LockLoss, Store},
};

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
    pub fn locks<K: Into<Key>>(&self, keys: impl IntoIterator<Item = K>) -> LockSetRequest {
        let keys = keys.into_iter().map(Into::into).collect();
        // The key is a placeholder that is replaced by that of each lock.
        LockSetRequest::new(keys, self.lock(""))
    }
}

impl LockSetRequest {
    pub(super) fn new(mut keys: Vec<Key>, each: LockRequest) -> Self {
        dedup_keys(&mut keys);
        Self { keys, template: each }
    }

    fn map_template(mut self, set: impl FnOnce(LockRequest) -> LockRequest) -> Self {
        self.template = set(self.template);
        self
    }

    /// Sets the lease of each lock, as [`LockRequest::lease`].
    pub fn lease(self, lease: Duration) -> Self {
        self.map_template(|each| each.lease(lease))
    }

    /// Sets a fixed lease for each lock, as [`LockRequest::fixed_lease`]. The first lock has less
    /// of its lease left when the last one is acquired.
    pub fn fixed_lease(self, lease: Duration) -> Self {
        self.map_template(|each| each.fixed_lease(lease))
    }

    /// Sets the longest hold of each lock, counted from its grant, as [`LockRequest::max_hold`].
    pub fn max_hold(self, max_hold: Duration) -> Self {
        self.map_template(|each| each.max_hold(max_hold))
    }

    /// Waits at most this long for all locks together, ten minutes at most. Default: no wait. Locks
    /// that are already granted are kept during the wait.
    pub fn wait(self, wait: Duration) -> Self {
        self.map_template(|each| each.wait(wait))
    }

    /// Retries the whole set, as [`LockRequest::retry`]. No lock is kept between two attempts.
    pub fn retry(self, times: u32, every: Duration) -> Self {
        self.map_template(|each| each.retry(times, every))
    }

    /// Sets the handover limits of each lock, as [`LockRequest::handover_limits`].
    pub fn handover_limits(self, most: u32, within: Duration) -> Self {
        self.map_template(|each| each.handover_limits(most, within))
    }

    /// Disables handovers of each lock, as [`LockRequest::strict_order`].
    pub fn strict_order(self) -> Self {
        self.map_template(LockRequest::strict_order)
    }

    /// Requires replicas for each grant, as [`LockRequest::min_replicas`]. The locks are then
    /// acquired one by one, with a wait after each. Default 0.
    pub fn min_replicas(self, replicas: u32) -> Self {
        self.map_template(|each| each.min_replicas(replicas))
    }

    /// Limits the waiters of each lock, as [`LockRequest::max_waiters`]. Default 1024.
    pub fn max_waiters(self, most: usize) -> Self {
        self.map_template(|each| each.max_waiters(most))
    }

    /// Acquires each lock as shared, as [`LockRequest::shared`].
    pub fn shared(self) -> Self {
        self.map_template(LockRequest::shared)
    }

    /// Acquires a permit of each lock, as [`LockRequest::permits`].
    ///
    /// # Panics
    ///
    /// If `most` is 0.
    pub fn permits(self, most: u32) -> Self {
        self.map_template(|each| each.permits(most))
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
        self.acquire_within(&HeldLocks::current()).await
    }

    /// Acquires the locks for a request that holds these already.
    pub(super) async fn acquire_within(self, held: &HeldLocks) -> Result<LockSet, AcquireError> {
        let (each, retry) = self.template.clone().split_retry();
        let Some(retry) = retry else {
            return self.acquire_in_order(each, held).await;
        };
        let once = || async {
            match self.acquire_in_order(each.clone(), held).await {
                Ok(set) => Ok(Ok(set)),
                Err(AcquireError::Busy(busy)) => Ok(Err(busy)),
                Err(other) => Err(other),
            }
        };
        retry.run(once).await?.map_err(AcquireError::Busy)
    }

    async fn acquire_in_order(
        &self,
        each: LockRequest,
        held: &HeldLocks,
    ) -> Result<LockSet, AcquireError> {
        let started = Instant::now();
        let mut order: Vec<_> = self.keys.iter().enumerate().collect();
        order.sort_by(|(_, one), (_, other)| LockSet::compare_keys(one, other));
        // All reentrant acquires first: they are cheap, and a refusal must not cost more than that.
        let mut shares = Vec::with_capacity(order.len());
        for (place, key) in order {
            let share =
                if held.is_empty() { None } else { each.acquire_reentrant(key, held).await? };
            shares.push((place, key, share));
        }
        if shares.iter().all(|(.., share)| share.is_none()) {
            let order = Vec::from_iter(shares.iter().map(|(place, key, _)| (*place, *key)));
            if let Some(guards) = each.try_acquire_all(&order).await? {
                return Ok(LockSet { guards: guards.into() });
            }
        }
        let mut set = LockSet::default();
        for (place, key, share) in shares {
            let acquired = match share {
                Some(guard) => Ok(guard),
                None => each.for_key(key, started).acquire_non_reentrant().await,
            };
            match acquired {
                Ok(guard) => set.guards.push((place, guard)),
                Err(error) => {
                    // Before the error is returned: its receiver may ask for one of them at once.
                    set.release().await;
                    return Err(error.with_wait_since(started));
                }
            }
        }
        // The first lock may have been lost during the wait for the last.
        if set.held_locks().loss().is_some() {
            set.release().await;
            let busy = LockBusy { lease_remaining: Duration::ZERO, queue_length: 0, waited: None };
            return Err(AcquireError::Busy(busy).with_wait_since(started));
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

/// Several held locks. Dropping the set releases all of them in reverse order, as [`LockGuard`]
/// does.
#[derive(Debug, Default)]
#[must_use = "the locks are released when the set is dropped"]
pub struct LockSet {
    /// In order of acquisition, each with the number of its key.
    guards: SmallVec<[(usize, LockGuard); 1]>,
}

impl LockSet {
    pub(super) fn from_guard(guard: LockGuard) -> Self {
        Self { guards: SmallVec::from_buf([(0, guard)]) }
    }

    /// Compares two keys in the order in which all processes acquire locks.
    pub(super) fn compare_keys(one: &Key, other: &Key) -> Ordering {
        one.shard().cmp(&other.shard()).then_with(|| one.cmp(other))
    }

    /// Returns the guard that was acquired first.
    pub(super) fn first(&self) -> Option<&LockGuard> {
        self.guards.first().map(|(_, guard)| guard)
    }

    pub(super) fn from_guards(guards: Vec<LockGuard>) -> Self {
        Self { guards: guards.into_iter().enumerate().collect() }
    }

    /// Drops the guards of lost locks, since no release has to be awaited for them.
    pub(super) fn drop_lost(&mut self) {
        self.guards.retain(|(_, guard)| guard.loss().is_none());
    }

    /// Returns views of the locks for code that must not release them, in the order of the
    /// request's keys.
    #[must_use]
    pub fn held_locks(&self) -> HeldLocks {
        if let [(_, guard)] = &self.guards[..] {
            return HeldLocks::from_lock(guard.held_lock());
        }
        let mut named: Vec<_> = self.guards.iter().map(|(place, guard)| (place, guard)).collect();
        named.sort_by_key(|(place, _)| **place);
        named.into_iter().map(|(_, guard)| guard.held_lock()).collect()
    }

    /// Returns the fence of each lock, in the order of the request's keys.
    #[must_use]
    pub fn fences(&self) -> Vec<(Key, u64)> {
        self.held_locks().fences().map(|(key, fence)| (key.clone(), fence)).collect()
    }

    /// Returns how long all locks are certain to be held if no renewal succeeds from now on; zero
    /// if the set is empty.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.guards.iter().map(|(_, guard)| guard.remaining()).min().unwrap_or_default()
    }

    /// Extends all leases at once, as [`LockGuard::extend`]. Returns false if one of the locks is
    /// lost; the others may have been extended. Cancel safe in the same way.
    ///
    /// # Errors
    ///
    /// If the store could not be asked for one of them; all are held as before, or for longer.
    pub async fn extend(&self, lease: Duration) -> Result<bool, Error> {
        let each = self.guards.iter().map(|(_, guard)| guard.extend(lease));
        let extended = join_all(each).await.into_iter().collect::<Result<Vec<_>, _>>()?;
        Ok(extended.into_iter().all(|extended| extended))
    }

    /// Returns the reason of a loss, if one of the locks was lost.
    #[must_use]
    pub fn loss(&self) -> Option<LockLoss> {
        self.guards.iter().find_map(|(_, guard)| guard.loss())
    }

    /// Resolves when one of the locks is lost, with the reason; never if they are released first.
    /// Cancel safe.
    pub async fn lost(&self) -> LockLoss {
        self.held_locks().lost().await
    }

    /// Runs a future within the scope of all locks, as [`LockGuard::scope`].
    pub fn scope<F: Future>(&self, future: F) -> impl Future<Output = F::Output> + use<F> {
        HeldLocks::current().merged_with(self.held_locks()).to_scope().run(future)
    }

    /// Releases all locks now and returns the worst of their statuses. The calls are sent in
    /// reverse order and awaited together. If the future is dropped, the lease agent releases them.
    pub async fn release(self) -> ReleaseStatus {
        match self.into_single() {
            Ok(guard) => guard.release().await,
            Err(several) => Box::pin(several.release_all()).await,
        }
    }

    /// Returns the guard if it is the only one; otherwise returns the set.
    pub(super) fn into_single(mut self) -> Result<LockGuard, Self> {
        match self.guards.pop() {
            Some((_, guard)) if self.guards.is_empty() => Ok(guard),
            Some(last) => {
                self.guards.push(last);
                Err(self)
            }
            None => Err(self),
        }
    }

    async fn release_all(mut self) -> ReleaseStatus {
        let guards = std::mem::take(&mut self.guards).into_iter().rev();
        let ends = join_all(guards.map(|(_, guard)| guard.release())).await;
        let has = |end| ends.contains(&end);
        [ReleaseStatus::AlreadyLost, ReleaseStatus::Unknown, ReleaseStatus::StillHeld]
            .into_iter()
            .find(|end| has(*end))
            .unwrap_or(ReleaseStatus::Released)
    }

    #[cfg(test)]
    pub(super) fn first_lease(&self) -> &std::sync::Arc<crate::store::LockLease> {
        self.guards[0].1.lease().expect("it is this process's own")
    }
}

impl Drop for LockSet {
    fn drop(&mut self) {
        while self.guards.pop().is_some() {}
    }
}
