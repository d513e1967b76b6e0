//! Keys that a `LockLayer` asks for, noted for a test that holds a key of another form, or a lock
//! of another store.

use std::cell::Cell;

use super::Store;
use crate::key::Key;

thread_local!(static LAYER_REQUESTS: Cell<u64> = const { Cell::new(0) });

impl Store {
    /// Notes a request that has met a `LockLayer` with this store.
    pub(crate) fn note_layer_request(&self, keys: &[Key]) {
        LAYER_REQUESTS.set(LAYER_REQUESTS.get().wrapping_add(1));
        self.backend().note_layer_keys(keys);
    }
}

/// Returns the number of requests of this thread that have met a `LockLayer`, of any store. Tests
/// run in parallel, each in a thread of its own.
#[cfg(feature = "test-kit")]
pub(crate) fn layer_request_count() -> u64 {
    LAYER_REQUESTS.get()
}
