//! All locks that a request has.

use std::fmt;

use futures_util::future::select_all;
use smallvec::SmallVec;

use super::{answer::NotAcquired, guard::LockGuard, held::HeldLock};
use crate::{
    gate::Scope,
    key::Key,
    store::{Loss, Mode, Store},
};

/// All locks this request runs under, those of the outermost layer first, each layer's in the order in
/// which it names them. Cloning it holds nothing.
#[derive(Clone, Default)]
pub struct HeldLocks(SmallVec<[HeldLock; 1]>);

impl HeldLocks {
    /// Those of the request that this code runs within.
    pub(super) fn current() -> Self {
        Scope::current().unwrap_or_default()
    }

    /// These and more; what is here already, from a layer further out, is here once.
    #[expect(clippy::indexing_slicing, reason = "it only grows")]
    pub(super) fn and(mut self, more: impl IntoIterator<Item = HeldLock>) -> Self {
        let known = self.len();
        for new in more {
            let same = |held: &&HeldLock| (held.key(), held.fence()) == (new.key(), new.fence());
            if !self.0[..known].iter().filter(same).any(|held| held.node() == new.node()) {
                self.0.push(new);
            }
        }
        self
    }

    /// As `and`.
    pub(super) fn and_all(self, more: Self) -> Self {
        if self.is_empty() { more } else { self.and(more.0) }
    }

    pub(super) fn one(held: HeldLock) -> Self {
        Self(SmallVec::from_buf([held]))
    }

    /// What makes code that runs within it know of these.
    pub(super) fn scope(&self) -> Scope {
        Scope::of(self.clone())
    }

    /// The locks.
    pub fn iter(&self) -> std::slice::Iter<'_, HeldLock> {
        self.0.iter()
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The lock of this name. Text becomes [`Key::custom`].
    #[must_use]
    pub fn get(&self, key: impl Into<Key>) -> Option<&HeldLock> {
        let key = key.into();
        // The innermost, if a lock was lost and taken anew.
        self.iter().rev().find(|held| *held.key() == key)
    }

    /// The fences, in the same order; those of locks that were let through without one are missing.
    pub fn fences(&self) -> impl Iterator<Item = (&Key, u64)> {
        self.iter().filter_map(|held| Some((held.key(), held.fence()?)))
    }

    /// Why one of them was lost, if one was.
    #[must_use]
    pub fn loss(&self) -> Option<Loss> {
        self.iter().find_map(HeldLock::loss)
    }

    /// Resolves when one of them is lost; never if all are given back first. Cancel safe.
    pub async fn lost(&self) -> Loss {
        if self.is_empty() {
            return std::future::pending().await;
        }
        select_all(self.iter().map(|held| Box::pin(held.lost()))).await.0
    }

    /// The one that is held already, for somebody who wants it in this mode.
    ///
    /// # Errors
    ///
    /// [`NotAcquired::WouldDeadlock`] if it is held in a way that lets nobody have it in that one.
    pub(super) fn find(
        &self,
        store: &Store,
        key: &Key,
        mode: Mode,
    ) -> Result<Option<LockGuard>, NotAcquired> {
        let mut here = self.iter().rev().filter(|held| held.is_of(store, key));
        let Some((held, guard)) = here.find_map(|held| Some((held, held.share()?))) else {
            return Ok(None);
        };
        if held.mode().is_some_and(|has| covers(has, mode)) {
            Ok(Some(guard))
        } else {
            Err(NotAcquired::WouldDeadlock)
        }
    }

    /// Their names in a log line.
    pub(super) fn hashed(&self) -> impl fmt::Display {
        Hashed(self.clone())
    }
}

struct Hashed(HeldLocks);

impl fmt::Display for Hashed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, held) in self.0.iter().enumerate() {
            let comma = if n > 0 { "," } else { "" };
            write!(f, "{comma}{}", held.key().hashed())?;
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

/// One that has it alone has it in every way. All readers are alike, and so are all permits, however
/// many there are of them.
fn covers(has: Mode, wanted: Mode) -> bool {
    match has {
        Mode::Exclusive => true,
        Mode::Shared => wanted == Mode::Shared,
        Mode::Permits(_) => matches!(wanted, Mode::Permits(_)),
    }
}
