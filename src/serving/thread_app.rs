//! Creation of an application for each thread of a server.

use crate::{store::created_store_count, throttle::throttled};

/// Creates the application of one thread, and logs an error if that creates a store. With a store
/// in memory for each thread, two requests for one resource would both get its lock.
pub fn build_thread_app<A>(build: impl FnOnce() -> A) -> A {
    let stores_before = created_store_count();
    let app = build();
    if created_store_count() != stores_before {
        throttled!(
            error,
            "the closure of the app creates a store, so each thread of the server has a store of \
             its own, and in memory its own locks, quotas and deferred requests too; create one \
             store outside of the closure, and clone it inside"
        );
    }
    app
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{CapturedLog, Store};

    #[test]
    fn store_of_one_thread_is_an_error() {
        const ERROR: &str = "the closure of the app creates a store";
        let (log, _guard) = CapturedLog::start_capture();
        let store = Store::memory();
        drop(build_thread_app(|| store.clone()));
        assert!(!log.text().contains(ERROR), "{}", log.text());
        drop(build_thread_app(Store::memory));
        log.assert_contains(ERROR);
    }
}
