//! A store whose runtime is not polled, as in a program that drives it only during its own calls.
//! Its background tasks continue later, and no caller on another runtime may wait for them.

use std::{future::Future, time::Duration};

use tokio::{
    runtime::Runtime,
    task::yield_now,
    time::{sleep, timeout},
};

use crate::{
    Policy, Quota,
    lock::ReleaseStatus,
    store::{Store, faulty_store},
};

const SECOND: Duration = Duration::from_secs(1);

/// Runs a test on a runtime with a paused clock. Its stores belong to another runtime, which is no
/// longer polled or, without `is_started`, has never run a task. A hang ends after a minute.
fn run_beside_stalled_runtime<F: Future<Output = ()>>(
    is_started: bool,
    test: impl FnOnce([Store; 3]) -> F,
) {
    let runtime = |paused| -> Runtime {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_all().start_paused(paused).build().expect("a runtime")
    };
    let (stalled, current) = (runtime(false), runtime(true));
    let stores = stalled.block_on(async {
        let stores = [(); 3].map(|()| Store::memory());
        for store in stores.iter().filter(|_| is_started) {
            let _ = store.lock("began").acquire().await.expect("it is free").release().await;
            yield_now().await;
        }
        stores
    });
    let result = current.block_on(async { timeout(60 * SECOND, test(stores)).await });
    result.expect("a call waits for a stalled runtime");
}

pub(crate) fn with_stalled_stores<F: Future<Output = ()>>(test: impl FnOnce([Store; 3]) -> F) {
    run_beside_stalled_runtime(true, test);
}

#[test]
fn release_on_stalled_runtime_reports_unknown() {
    with_stalled_stores(|[store, ..]| async move {
        let guard = store.lock("x").strict_order().acquire().await.expect("it is free");
        let next = crate::store::spawn(store.lock("x").wait(30 * SECOND).acquire());
        yield_now().await;
        assert_eq!(guard.release().await, ReleaseStatus::Unknown);
        next.abort();
    });
}

#[cfg(feature = "quorum")]
#[test]
fn quorum_release_on_stalled_runtime_reports_unknown() {
    with_stalled_stores(|stores| async move {
        let quorum = Store::quorum(stores).expect("three are a quorum");
        let guard = quorum.lock("x").acquire().await.expect("it is free");
        assert_eq!(guard.release().await, ReleaseStatus::Unknown);
    });
}

#[test]
fn lease_is_renewed_on_runtime_that_uses_it() {
    run_beside_stalled_runtime(false, |[store, ..]| async move {
        let guard = store.lock("x").lease(2 * SECOND).acquire().await.expect("it is free");
        sleep(20 * SECOND).await;
        assert_eq!(guard.loss(), None);
        assert_eq!(guard.release().await, ReleaseStatus::Released);
        assert!(store.shutdown(SECOND).await, "a lock or a queue entry is left");
    });
}

#[test]
fn waiters_are_served_on_their_own_runtime() {
    run_beside_stalled_runtime(false, |[store, ..]| async move {
        let guard = store.lock("x").strict_order().acquire().await.expect("it is free");
        let waiters = [store.clone(), store.as_another_process()].map(|store| {
            let acquire = store.lock("x").strict_order().wait(30 * SECOND).acquire();
            crate::store::spawn(async move { acquire.await.expect("it is served").release().await })
        });
        sleep(SECOND).await;
        assert_eq!(guard.release().await, ReleaseStatus::Released);
        for waiter in waiters {
            assert_eq!(waiter.await.expect("it does not panic"), ReleaseStatus::Released);
        }
    });
}

/// The runtime of the first check has ended before it started the task.
#[test]
fn limiter_task_starts_on_runtime_that_checks() {
    let runtime = |paused| -> Runtime {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_all().start_paused(paused).build().expect("a runtime")
    };
    let (stalled, short_lived, current) = (runtime(false), runtime(false), runtime(true));
    let (store, faults) = stalled.block_on(async { faulty_store() });
    let limiter = store.rate_limiter(Policy::new(Quota::requests(9).per(60 * SECOND)));
    let check = async || limiter.check("k", 1).await.expect("it is there").is_admitted();
    assert!(short_lived.block_on(check()));
    drop(short_lived);
    current.block_on(async {
        assert!(check().await);
        sleep(SECOND).await;
    });
    assert!(faults.call_count("limiters") > 0, "no task refreshes the number of limiters");
    drop(stalled);
}
