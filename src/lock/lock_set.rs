//! Several held locks, released together.

use std::{cmp::Ordering, time::Duration};

use futures_util::future::join_all;
use smallvec::SmallVec;

use super::{held_lock_view::HeldLocks, lock_guard::LockGuard, release_status::ReleaseStatus};
use crate::{
    error::Error,
    key::Key,
    store::{HoldRoute, LockLoss},
};

/// Several held locks. Dropping the set releases all of them in reverse order, as [`LockGuard`]
/// does.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), lockgate::AcquireError> {
/// # use lockgate::{ReleaseStatus, Store};
/// let store = Store::memory();
/// let transfer = store.locks(["account:7", "account:8"]).acquire().await?;
/// assert_eq!(transfer.fences().len(), 2);
/// assert!(store.lock("account:8").acquire().await.is_err());
/// assert_eq!(transfer.release().await, ReleaseStatus::Released);
/// # Ok(()) }
/// ```
#[derive(Debug, Default)]
#[must_use = "the locks are released when the set is dropped"]
pub struct LockSet {
    /// In order of acquisition, each with the number of its key.
    pub(super) guards: SmallVec<[(usize, LockGuard); 1]>,
}

impl LockSet {
    pub(super) fn from_guard(guard: LockGuard) -> Self {
        Self { guards: SmallVec::from_buf([(0, guard)]) }
    }

    /// Compares two keys in the order in which all processes acquire locks.
    pub(super) fn compare_keys(first: &Key, second: &Key) -> Ordering {
        first.shard().cmp(&second.shard()).then_with(|| first.cmp(second))
    }

    /// Returns the guard that was acquired first.
    pub(super) fn first(&self) -> Option<&LockGuard> {
        self.guards.first().map(|(_, guard)| guard)
    }

    /// Returns the guards in the order of acquisition; the first one keeps their span.
    pub(super) fn guards_mut(&mut self) -> Vec<&mut LockGuard> {
        self.guards.iter_mut().map(|(_, guard)| guard).collect()
    }

    /// Records the route of the request that holds the locks, for operators.
    pub(super) fn record_route(&self, route: &HoldRoute) {
        for hold_state in self.guards.iter().filter_map(|(_, guard)| guard.hold_state()) {
            hold_state.record_route(route);
        }
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
        let mut ordered: Vec<_> =
            self.guards.iter().map(|(key_index, guard)| (key_index, guard)).collect();
        ordered.sort_by_key(|(key_index, _)| **key_index);
        ordered.into_iter().map(|(_, guard)| guard.held_lock()).collect()
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
        let extensions = self.guards.iter().map(|(_, guard)| guard.extend(lease));
        let are_extended = join_all(extensions).await.into_iter().collect::<Result<Vec<_>, _>>()?;
        Ok(are_extended.into_iter().all(|is_extended| is_extended))
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
            Err(set) => Box::pin(set.release_all()).await,
        }
    }

    /// Returns the guard if it is the only one; otherwise returns the set.
    pub(super) fn into_single(mut self) -> Result<LockGuard, Self> {
        match self.guards.pop() {
            Some((_, guard)) if self.guards.is_empty() => Ok(guard),
            Some(entry) => {
                self.guards.push(entry);
                Err(self)
            }
            None => Err(self),
        }
    }

    async fn release_all(mut self) -> ReleaseStatus {
        let guards = std::mem::take(&mut self.guards).into_iter().rev();
        let statuses = join_all(guards.map(|(_, guard)| guard.release())).await;
        let has_status = |status| statuses.contains(&status);
        [ReleaseStatus::AlreadyLost, ReleaseStatus::Unknown, ReleaseStatus::StillHeld]
            .into_iter()
            .find(|status| has_status(*status))
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
