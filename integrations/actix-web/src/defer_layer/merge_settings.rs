//! Settings of `DeferLayer` that merge waiting requests: coalesce and supersede.

use super::DeferLayer;

impl DeferLayer {
    /// Merges requests into the first: while a request waits, another one with the same owner,
    /// method and target is not stored, and its response refers to the waiting one.
    ///
    /// See the core's [`coalesce`](lockgate::defer::DeferLayer::coalesce).
    #[must_use]
    pub fn coalesce(self) -> Self {
        Self { inner: self.inner.coalesce() }
    }

    /// Merges requests into the last: while a request waits, another one with the same owner,
    /// method and target supersedes it.
    ///
    /// See the core's [`supersede`](lockgate::defer::DeferLayer::supersede).
    #[must_use]
    pub fn supersede(self) -> Self {
        Self { inner: self.inner.supersede() }
    }
}
