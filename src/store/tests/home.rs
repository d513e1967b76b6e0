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
    store::{Store, faulty},
};

const SECOND: Duration = Duration::from_secs(1);

/// On a runtime with a stopped clock, with stores whose own one is polled by nobody any more, or never was. What hangs
/// ends here.
fn apart<F: Future<Output = ()>>(began: bool, test: impl FnOnce([Store; 3]) -> F) {
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

pub(crate) fn elsewhere<F: Future<Output = ()>>(test: impl FnOnce([Store; 3]) -> F) {
    apart(true, test);
}

#[test]
fn a_release_that_passes_on_says_that_it_does_not_know() {
    elsewhere(|[store, ..]| async move {
        let held = store.lock("x").strict_order().acquire().await.expect("it is free");
        let next = crate::store::spawn(store.lock("x").wait(30 * SECOND).acquire());
        yield_now().await;
        assert_eq!(held.release().await, ReleaseStatus::Unknown);
        next.abort();
    });
}

#[cfg(feature = "quorum")]
#[test]
fn a_guard_of_a_quorum_says_that_it_does_not_know() {
    elsewhere(|stores| async move {
        let quorum = Store::quorum(stores).expect("three are a quorum");
        let guard = quorum.lock("x").acquire().await.expect("it is free");
        assert_eq!(guard.release().await, ReleaseStatus::Unknown);
    });
}

#[test]
fn a_lease_is_renewed_from_where_it_is_used() {
    apart(false, |[store, ..]| async move {
        let held = store.lock("x").lease(2 * SECOND).acquire().await.expect("it is free");
        sleep(20 * SECOND).await;
        assert_eq!(held.loss(), None);
        assert_eq!(held.release().await, ReleaseStatus::Released);
        assert!(store.shutdown(SECOND).await, "nothing is left to give back");
    });
}

#[test]
fn who_waits_is_served_from_where_he_waits() {
    apart(false, |[store, ..]| async move {
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
fn what_tends_a_limiter_begins_where_that_is_used() {
    let runtime = |paused| -> Runtime {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_all().start_paused(paused).build().expect("a runtime")
    };
    let (still, passing, here) = (runtime(false), runtime(false), runtime(true));
    let (store, faults) = still.block_on(async { faulty() });
    let limit = store.rate_limiter(Policy::new(Quota::requests(9).per(60 * SECOND)));
    let check = async || limit.check("k", 1).await.expect("it is there").is_admitted();
    assert!(passing.block_on(check()));
    drop(passing);
    here.block_on(async {
        assert!(check().await);
        sleep(SECOND).await;
    });
    assert!(faults.seen("limiters") > 0, "nobody tends it");
    drop(still);
}
