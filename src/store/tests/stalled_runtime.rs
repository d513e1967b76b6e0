//! A store whose runtime stands still, as where a program drives it for its own calls alone: what goes on there
//! goes on later, and nobody who waits elsewhere waits for that.

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

/// On a runtime with a stopped clock, with stores whose own one is polled by nobody any more, or never was. What hangs
/// ends here.
fn run_beside_stalled_runtime<F: Future<Output = ()>>(
    began: bool,
    test: impl FnOnce([Store; 3]) -> F,
) {
    let runtime = |paused| -> Runtime {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_all().start_paused(paused).build().expect("a runtime")
    };
    let (still, here) = (runtime(false), runtime(true));
    let stores = still.block_on(async {
        let stores = [(); 3].map(|()| Store::memory());
        for store in stores.iter().filter(|_| began) {
            let _ = store.lock("began").acquire().await.expect("it is free").release().await;
            yield_now().await;
        }
        stores
    });
    let ended = here.block_on(async { timeout(60 * SECOND, test(stores)).await });
    ended.expect("somebody waits for a runtime that stands still");
}

pub(crate) fn with_stalled_stores<F: Future<Output = ()>>(test: impl FnOnce([Store; 3]) -> F) {
    run_beside_stalled_runtime(true, test);
}

#[test]
fn release_on_stalled_runtime_reports_unknown() {
    with_stalled_stores(|[store, ..]| async move {
        let held = store.lock("x").strict_order().acquire().await.expect("it is free");
        let next = crate::store::spawn(store.lock("x").wait(30 * SECOND).acquire());
        yield_now().await;
        assert_eq!(held.release().await, ReleaseStatus::Unknown);
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
        let held = store.lock("x").lease(2 * SECOND).acquire().await.expect("it is free");
        sleep(20 * SECOND).await;
        assert_eq!(held.loss(), None);
        assert_eq!(held.release().await, ReleaseStatus::Released);
        assert!(store.shutdown(SECOND).await, "nothing is left to give back");
    });
}

#[test]
fn waiters_are_served_on_their_own_runtime() {
    run_beside_stalled_runtime(false, |[store, ..]| async move {
        let held = store.lock("x").strict_order().acquire().await.expect("it is free");
        let waiters = [store.clone(), store.as_another_process()].map(|store| {
            let waits = store.lock("x").strict_order().wait(30 * SECOND).acquire();
            crate::store::spawn(async move { waits.await.expect("it is served").release().await })
        });
        sleep(SECOND).await;
        assert_eq!(held.release().await, ReleaseStatus::Released);
        for waiter in waiters {
            assert_eq!(waiter.await.expect("it does not panic"), ReleaseStatus::Released);
        }
    });
}

/// Whoever asked first has gone before anybody was found who drives a runtime.
#[test]
fn limiter_task_starts_on_runtime_that_checks() {
    let runtime = |paused| -> Runtime {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_all().start_paused(paused).build().expect("a runtime")
    };
    let (still, passing, here) = (runtime(false), runtime(false), runtime(true));
    let (store, faults) = still.block_on(async { faulty_store() });
    let limit = store.rate_limiter(Policy::new(Quota::requests(9).per(60 * SECOND)));
    let check = async || limit.check("k", 1).await.expect("it is there").is_admitted();
    assert!(passing.block_on(check()));
    drop(passing);
    here.block_on(async {
        assert!(check().await);
        sleep(SECOND).await;
    });
    assert!(faults.call_count("limiters") > 0, "nobody tends it");
    drop(still);
}
