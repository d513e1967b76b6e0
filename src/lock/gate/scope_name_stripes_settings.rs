//! Settings of `LockLayer` for the name of the lock: scope, name and stripes.

use super::LockLayer;
use crate::{gate::RequestKind, key::Key};

impl<R: RequestKind> LockLayer<R> {
    /// Separates keys of one kind: with scopes, `/orders/7` and `/users/7` are two locks.
    #[must_use]
    pub fn scope(self, scope: &str) -> Self {
        self.with_policy(|policy| policy.scope = Some(scope.to_owned()))
    }

    /// Names the lock by `name` instead of by the parameter or header, so that `/orders/{id}` and
    /// `/payments/{order}` can share a lock: see [`Key::named`](crate::Key::named).
    #[must_use]
    pub fn named(self, name: &str) -> Self {
        self.with_policy(|policy| policy.name = Some(name.to_owned()))
    }

    /// Maps all keys of this kind, name and scope onto `n` locks.
    ///
    /// The store then has fewer locks, but unrelated resources sometimes wait for each other. All
    /// layers that have to exclude each other need the same number: see
    /// [`Key::stripe`](crate::Key::stripe).
    ///
    /// # Panics
    ///
    /// If `n` is not within 1 to 65,536.
    #[must_use]
    pub fn stripes(self, n: u32) -> Self {
        // Panics now instead of at the first request.
        let _ = Key::custom("").stripe(n);
        self.with_policy(|policy| policy.stripes = Some(n))
    }
}
