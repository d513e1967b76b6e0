//! Settings of `LockLayer` for its store, and for an outage of the store.

use super::LockLayer;
use crate::{gate::RequestKind, outage::LockOutage, store::Store};

impl<R: RequestKind> LockLayer<R> {
    /// Uses this store instead of the one that the request provides.
    #[must_use]
    pub fn store(self, store: &Store) -> Self {
        self.with_policy(|policy| policy.store = Some(store.clone()))
    }

    /// Reaction to an unavailable store. Default: [`LockOutage::Refuse`](crate::LockOutage), since
    /// two concurrent changes are worse than none.
    #[must_use]
    pub fn on_outage(self, outage: LockOutage) -> Self {
        self.with_policy(|policy| policy.outage = outage)
    }
}
