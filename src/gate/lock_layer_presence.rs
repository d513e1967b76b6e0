//! Whether this process has created a `LockLayer`. Neither framework tells a layer what is inside
//! it, but in a process without any `LockLayer` there is none.

use std::sync::atomic::{AtomicBool, Ordering};

/// Notes that a `LockLayer` is created.
pub(crate) fn note_lock_layer() {
    with_flag(|flag| flag.store(true, Ordering::Relaxed));
}

/// Returns true if this process has created a `LockLayer`.
pub(crate) fn has_lock_layer() -> bool {
    with_flag(|flag| flag.load(Ordering::Relaxed))
}

#[cfg(not(test))]
fn with_flag<O>(access: impl FnOnce(&AtomicBool) -> O) -> O {
    static HAS_LOCK_LAYER: AtomicBool = AtomicBool::new(false);
    access(&HAS_LOCK_LAYER)
}

/// Like the function above, for each thread: tests run in parallel, and some have no lock.
#[cfg(test)]
fn with_flag<O>(access: impl FnOnce(&AtomicBool) -> O) -> O {
    thread_local!(static HAS_LOCK_LAYER: AtomicBool = const { AtomicBool::new(false) });
    HAS_LOCK_LAYER.with(access)
}
