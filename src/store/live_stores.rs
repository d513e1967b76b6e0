//! Number of stores of this process, and of those that a thread has created.

use std::cell::Cell;
#[cfg(test)]
use std::cell::RefCell;

#[cfg(not(test))]
use parking_lot::Mutex;

/// Returns the number of stores of this process that have a handle. Clones of a handle count once.
pub(crate) fn live_store_count() -> usize {
    with_live_stores(|count| *count)
}

thread_local!(static CREATED_STORES: Cell<usize> = const { Cell::new(0) });

/// Returns the number of stores that this thread has created.
#[cfg(feature = "serve")]
pub(crate) fn created_store_count() -> usize {
    CREATED_STORES.get()
}

pub(super) fn count_live_store() {
    CREATED_STORES.set(CREATED_STORES.get().wrapping_add(1));
    with_live_stores(|count| *count += 1);
}

pub(super) fn uncount_live_store() {
    with_live_stores(|count| *count = count.saturating_sub(1));
}

#[cfg(not(test))]
fn with_live_stores<O>(access: impl FnOnce(&mut usize) -> O) -> O {
    static LIVE_STORES: Mutex<usize> = Mutex::new(0);
    access(&mut LIVE_STORES.lock())
}

/// Like the function above, for each thread: tests run in parallel. A store that another thread
/// drops still counts in its own.
#[cfg(test)]
fn with_live_stores<O>(access: impl FnOnce(&mut usize) -> O) -> O {
    thread_local!(static LIVE_STORES: RefCell<usize> = const { RefCell::new(0) });
    LIVE_STORES.with(|count| access(&mut count.borrow_mut()))
}
