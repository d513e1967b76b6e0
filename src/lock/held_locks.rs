//! All locks that a request holds.

use std::fmt;

use futures_util::future::select_all;
use smallvec::SmallVec;

use super::{held_lock_view::HeldLock, lock_guard::LockGuard, lock_outcome::AcquireError};
use crate::{
    error::Error,
    gate::RequestScope,
    key::Key,
    store::{LockLoss, LockMode, Store},
};

/// All locks that a request runs under, those of the outermost layer first. The locks of one layer
/// are in the order in which it names them. A clone does not keep them held.
#[derive(Clone, Default)]
pub struct HeldLocks(SmallVec<[HeldLock; 1]>);

impl HeldLocks {
    /// Returns the locks of the request that runs this code.
    pub(super) fn current() -> Self {
        RequestScope::current_value().unwrap_or_default()
    }

    /// Adds locks, except those of a grant that is already here, such as one of an outer layer.
    #[expect(clippy::indexing_slicing, reason = "the list only grows")]
    pub(super) fn with_unique(mut self, added: impl IntoIterator<Item = HeldLock>) -> Self {
        let existing_len = self.len();
        for lock in added {
            if !self.0[..existing_len].iter().any(|held_lock| held_lock.is_same_grant(&lock)) {
                self.0.push(lock);
            }
        }
        self
    }

    /// Removes the delegated locks that are not known to be in this store.
    pub(super) fn without_delegations_of_other_stores(mut self, store: &Store) -> Self {
        self.0.retain(|held_lock| {
            !held_lock.is_delegated() || held_lock.is_in_store(store) == Some(true)
        });
        self
    }

    pub(super) fn merged_with(self, inner: Self) -> Self {
        if self.is_empty() { inner } else { self.with_unique(inner.0) }
    }

    pub(super) fn from_lock(held_lock: HeldLock) -> Self {
        Self(SmallVec::from_buf([held_lock]))
    }

    /// Returns a scope in which code finds these locks by [`current`](Self::current).
    pub(super) fn to_scope(&self) -> RequestScope {
        RequestScope::with_value(self.clone())
    }

    /// Returns an iterator over the locks.
    pub fn iter(&self) -> std::slice::Iter<'_, HeldLock> {
        self.0.iter()
    }

    /// Returns the number of locks.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns true if there are no locks.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the lock of this key. Text becomes [`Key::custom`].
    #[must_use]
    pub fn get(&self, key: impl Into<Key>) -> Option<&HeldLock> {
        let key = key.into();
        // The innermost, if a lock was lost and acquired again.
        self.iter().rev().find(|held_lock| *held_lock.key() == key)
    }

    /// Returns the fences in the same order. Omits locks that were admitted without a grant.
    pub fn fences(&self) -> impl Iterator<Item = (&Key, u64)> {
        self.iter().filter_map(|held_lock| Some((held_lock.key(), held_lock.fence()?)))
    }

    /// Returns the reason of a loss, if one of the locks was lost.
    #[must_use]
    pub fn loss(&self) -> Option<LockLoss> {
        self.iter().find_map(HeldLock::loss)
    }

    /// Resolves when one of the locks is lost; never if all are released first. Cancel safe.
    pub async fn lost(&self) -> LockLoss {
        if self.is_empty() {
            return std::future::pending().await;
        }
        select_all(self.iter().map(|held_lock| Box::pin(held_lock.lost()))).await.0
    }

    /// Connects the handles that [`find_guard`](Self::find_guard) needs in order to know which of
    /// these locks are in this store.
    pub(super) async fn identify_stores(&self, store: &Store, keys: &[Key]) -> Result<(), Error> {
        for held_lock in self.iter().filter(|held_lock| keys.contains(held_lock.key())) {
            if held_lock.is_in_store(store).is_none() {
                held_lock.identify_stores(store).await?;
            }
        }
        Ok(())
    }

    /// Returns true if [`find_guard`](Self::find_guard) knows which of these locks are in this
    /// store.
    pub(super) fn has_identified_stores(&self, store: &Store, keys: &[Key]) -> bool {
        let mut with_keys = self.iter().filter(|held_lock| keys.contains(held_lock.key()));
        with_keys.all(|held_lock| held_lock.is_in_store(store).is_some())
    }

    /// Returns a guard on the held lock of this key, the innermost that covers the mode.
    ///
    /// # Errors
    ///
    /// [`AcquireError::WouldDeadlock`] if it is held, but never in a mode that covers this one.
    pub(super) fn find_guard(
        &self,
        store: &Store,
        key: &Key,
        mode: LockMode,
    ) -> Result<Option<LockGuard>, AcquireError> {
        let with_key = self.iter().rev().filter(|held_lock| held_lock.key() == key);
        let mut in_store = with_key.filter(|held_lock| held_lock.is_in_store(store) == Some(true));
        let mut is_held = false;
        let shared_guard = in_store.find_map(|held_lock| {
            let guard = held_lock.share_guard()?;
            is_held = true;
            held_lock.mode().is_some_and(|held_mode| mode_covers(held_mode, mode)).then_some(guard)
        });
        match shared_guard {
            None if is_held => Err(AcquireError::WouldDeadlock),
            shared_guard => Ok(shared_guard),
        }
    }

    /// Returns a display of the locks' names for log records, hashed unless their store shows them.
    pub(super) fn display_names(&self) -> impl fmt::Display {
        LockLogNames(self.clone())
    }
}

struct LockLogNames(HeldLocks);

impl fmt::Display for LockLogNames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, held_lock) in self.0.iter().enumerate() {
            let comma = if index > 0 { "," } else { "" };
            write!(f, "{comma}{}", held_lock.log_name())?;
        }
        Ok(())
    }
}

impl FromIterator<HeldLock> for HeldLocks {
    fn from_iter<I: IntoIterator<Item = HeldLock>>(locks: I) -> Self {
        Self(locks.into_iter().collect())
    }
}

impl<'a> IntoIterator for &'a HeldLocks {
    type Item = &'a HeldLock;
    type IntoIter = std::slice::Iter<'a, HeldLock>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl fmt::Debug for HeldLocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// Returns true if a lock held in the one mode may be used as one in the other: if it admits no
/// more holders.
///
/// | held | exclusive | shared | permits(m) |
/// |---|---|---|---|
/// | exclusive | yes | yes | yes |
/// | shared | no | yes | no |
/// | permits(n) | no | no | if n <= m |
///
/// A grant of permits(n) has at most n - 1 others beside it, so permits(10) covers permits(20), but
/// not permits(1). Readers are not counted, so shared covers no number of permits.
fn mode_covers(has: LockMode, wanted: LockMode) -> bool {
    match (has, wanted) {
        (LockMode::Exclusive, _) | (LockMode::Shared, LockMode::Shared) => true,
        (LockMode::Permits(has), LockMode::Permits(wanted)) => has <= wanted,
        (LockMode::Shared | LockMode::Permits(_), _) => false,
    }
}
