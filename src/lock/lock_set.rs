//! Several locks at once.
//!
//! Where all of them are free and nobody stands in line, one call takes them all. Else nothing is taken by it, and
//! they are taken one after the other, in an order that all processes share: by shard, then by name. So
//! of two requests that want the same two locks one has the first of them, and the other waits there with
//! empty hands; nobody waits in a circle. All waits together have one deadline.

use std::{cmp::Ordering, time::Duration};

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

/// How several locks are asked for. Made by [`Store::locks`].
#[derive(Debug, Clone)]
#[must_use = "nothing is locked until `acquire` is awaited"]
pub struct LockSetRequest {
    /// As they were named, each once.
    keys: Vec<Key>,
    /// How each is asked for.
    template: LockRequest,
}

impl Store {
    /// Locks of these names, all or none. A name that is there twice is one lock; no names are no locks.
    pub fn locks<K: Into<Key>>(&self, keys: impl IntoIterator<Item = K>) -> LockSetRequest {
        let keys = keys.into_iter().map(Into::into).collect();
        // The name is a placeholder: each lock is asked for by its own.
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

    /// As [`LockRequest::lease`], for each.
    pub fn lease(self, lease: Duration) -> Self {
        self.map_template(|each| each.lease(lease))
    }

    /// As [`LockRequest::fixed_lease`], for each; the first has less of it left when the last is there.
    pub fn fixed_lease(self, lease: Duration) -> Self {
        self.map_template(|each| each.fixed_lease(lease))
    }

    /// As [`LockRequest::max_hold`], for each, from when it was granted.
    pub fn max_hold(self, max_hold: Duration) -> Self {
        self.map_template(|each| each.max_hold(max_hold))
    }

    /// Stand in line for at most this long, for all of them together. Default: don't. At most ten minutes.
    /// What has been granted is kept meanwhile.
    pub fn wait(self, wait: Duration) -> Self {
        self.map_template(|each| each.wait(wait))
    }

    /// As [`LockRequest::retry`], for all of them together: nothing is kept from one attempt to the next.
    pub fn retry(self, times: u32, every: Duration) -> Self {
        self.map_template(|each| each.retry(times, every))
    }

    /// As [`LockRequest::handover_limits`], for each.
    pub fn handover_limits(self, most: u32, within: Duration) -> Self {
        self.map_template(|each| each.handover_limits(most, within))
    }

    /// As [`LockRequest::strict_order`], for each.
    pub fn strict_order(self) -> Self {
        self.map_template(LockRequest::strict_order)
    }

    /// As [`LockRequest::min_replicas`], for each: they are taken one after the other then, and waited for after each. Default 0.
    pub fn min_replicas(self, replicas: u32) -> Self {
        self.map_template(|each| each.min_replicas(replicas))
    }

    /// As [`LockRequest::max_waiters`], in the line of each. Default 1024.
    pub fn max_waiters(self, most: usize) -> Self {
        self.map_template(|each| each.max_waiters(most))
    }

    /// As [`LockRequest::shared`], for each.
    pub fn shared(self) -> Self {
        self.map_template(LockRequest::shared)
    }

    /// As [`LockRequest::permits`], for each.
    ///
    /// # Panics
    ///
    /// If `most` is 0.
    pub fn permits(self, most: u32) -> Self {
        self.map_template(|each| each.permits(most))
    }

    /// Acquires all of them, or none: by one call where all are free and at most 32 (in a cluster: of one shard), else one
    /// after the other.
    ///
    /// Cancel safe: if the future is dropped, what was granted is given back, in reverse.
    ///
    /// # Errors
    ///
    /// As [`LockRequest::acquire`]; what was granted before the one that failed has been given back.
    pub async fn acquire(self) -> Result<LockSet, AcquireError> {
        self.acquire_within(&HeldLocks::current()).await
    }

    /// Acquires them for a request that has these already.
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
        // All shares first: they cost little, and one that is refused should cost no more.
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
                    // Before the answer: whoever sees it may ask for one of them at once.
                    set.release().await;
                    return Err(error.with_wait_since(started));
                }
            }
        }
        // The first may have ended while the last was waited for.
        if set.held_locks().loss().is_some() {
            set.release().await;
            let busy = LockBusy { lease_remaining: Duration::ZERO, queue_length: 0, waited: None };
            return Err(AcquireError::Busy(busy).with_wait_since(started));
        }
        Ok(set)
    }
}

/// Several locks that are held. Dropping it gives all of them back, as [`LockGuard`] does, in reverse.
#[derive(Debug, Default)]
#[must_use = "the locks are given back when the set is dropped"]
pub struct LockSet {
    /// In the order they were taken in, each with its place among the names.
    guards: SmallVec<[(usize, LockGuard); 1]>,
}

impl LockSet {
    pub(super) fn from_guard(guard: LockGuard) -> Self {
        Self { guards: SmallVec::from_buf([(0, guard)]) }
    }

    /// In which they are taken, by all processes.
    pub(super) fn compare_keys(one: &Key, other: &Key) -> Ordering {
        one.shard().cmp(&other.shard()).then_with(|| one.cmp(other))
    }

    /// The one that was taken first.
    pub(super) fn first(&self) -> Option<&LockGuard> {
        self.guards.first().map(|(_, guard)| guard)
    }

    pub(super) fn from_guards(guards: Vec<LockGuard>) -> Self {
        Self { guards: guards.into_iter().enumerate().collect() }
    }

    /// Those that were lost: there is nothing to wait for.
    pub(super) fn drop_lost(&mut self) {
        self.guards.retain(|(_, guard)| guard.loss().is_none());
    }

    /// Copies of them to hand to code that must not give them back, in the order they were named in.
    #[must_use]
    pub fn held_locks(&self) -> HeldLocks {
        if let [(_, guard)] = &self.guards[..] {
            return HeldLocks::from_lock(guard.held_lock());
        }
        let mut named: Vec<_> = self.guards.iter().map(|(place, guard)| (place, guard)).collect();
        named.sort_by_key(|(place, _)| **place);
        named.into_iter().map(|(_, guard)| guard.held_lock()).collect()
    }

    /// The fence of each lock, in the order they were named in.
    #[must_use]
    pub fn fences(&self) -> Vec<(Key, u64)> {
        self.held_locks().fences().map(|(key, fence)| (key.clone(), fence)).collect()
    }

    /// How long all of them are sure to be held if no renewal succeeds from now on; zero if there are none.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.guards.iter().map(|(_, guard)| guard.remaining()).min().unwrap_or_default()
    }

    /// As [`LockGuard::extend`], for all of them at once. False if one of them is lost; the others may have been
    /// extended. Cancel safe in the same way.
    ///
    /// # Errors
    ///
    /// If the store could not be asked for one of them; all are held as before, or for longer.
    pub async fn extend(&self, lease: Duration) -> Result<bool, Error> {
        let each = self.guards.iter().map(|(_, guard)| guard.extend(lease));
        let extended = join_all(each).await.into_iter().collect::<Result<Vec<_>, _>>()?;
        Ok(extended.into_iter().all(|extended| extended))
    }

    /// Why one of them was lost, if one was.
    #[must_use]
    pub fn loss(&self) -> Option<LockLoss> {
        self.guards.iter().find_map(|(_, guard)| guard.loss())
    }

    /// Resolves when one of them is lost, with the reason; never if they are released first. Cancel safe.
    pub async fn lost(&self) -> LockLoss {
        self.held_locks().lost().await
    }

    /// As [`LockGuard::scope`], for all of them.
    pub fn scope<F: Future>(&self, future: F) -> impl Future<Output = F::Output> + use<F> {
        HeldLocks::current().merged_with(self.held_locks()).to_scope().run(future)
    }

    /// Gives all of them back now, and says how the worst of them went. The calls are sent in reverse
    /// order and waited for together. If this future is dropped, the agent gives them back.
    pub async fn release(self) -> ReleaseStatus {
        match self.into_single() {
            Ok(guard) => guard.release().await,
            Err(several) => Box::pin(several.release_all()).await,
        }
    }

    /// The one that it is.
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
    pub(super) fn lease(&self) -> &std::sync::Arc<crate::store::LockLease> {
        self.guards[0].1.lease().expect("it is this process's own")
    }
}

impl Drop for LockSet {
    fn drop(&mut self) {
        while self.guards.pop().is_some() {}
    }
}
