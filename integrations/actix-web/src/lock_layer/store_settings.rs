//! Settings of `LockLayer` for its store, and for an outage of the store.

use lockgate::{LockOutage, Store};

use super::LockLayer;

impl LockLayer {
    /// Uses this store instead of the one that the request provides.
    ///
    /// See the core's [`store`](lockgate::lock::LockLayer::store).
    #[must_use]
    pub fn store(self, store: &Store) -> Self {
        Self { inner: self.inner.store(store) }
    }

    /// Reaction to an unavailable store.
    ///
    /// See the core's [`on_outage`](lockgate::lock::LockLayer::on_outage).
    #[must_use]
    pub fn on_outage(self, outage: LockOutage) -> Self {
        Self { inner: self.inner.on_outage(outage) }
    }
}
