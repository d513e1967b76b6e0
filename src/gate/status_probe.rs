//! `StatusProbe`: the mark of a request by which a starting server finds the status routes.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

/// Extension of a request that a server sends through its own application when it starts, to find
/// out whether the status routes get it. They answer it without the store, and rate limits do not
/// charge it. Clones share their answer.
#[derive(Debug, Clone, Default)]
pub struct StatusProbe(Arc<AtomicBool>);

impl StatusProbe {
    /// Notes that the status routes got the request.
    pub(crate) fn note_found(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Returns true if the status routes got the request.
    #[must_use]
    pub fn is_found(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
