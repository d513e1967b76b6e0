//! Renewals that fail or are answered late: a lock survives if possible, and no process relies on
//! its lease for longer than the store does.

use std::time::Duration;

use super::{SECOND, acquire_after_shutdown, expect_busy, handover::MS};
use crate::{
    LockGuard,
    lock::ReleaseStatus,
    store::{BackendFault, FaultSchedule, Store, faulty_store},
};

const LEASE: Duration = Duration::from_secs(3);

async fn wait_for_renewals(faults: &FaultSchedule, times: usize) {
    while faults.call_count("renew") < times {
        tokio::time::sleep(10 * MS).await;
    }
}

/// Within the validity time. The renewal did not run, ran without a reply, or failed twice in a
/// row.
#[tokio::test(start_paused = true)]
async fn failed_renewal_is_retried_and_the_lock_survives() {
    for (fault, times) in [
        (BackendFault::Unavailable, 1),
        (BackendFault::ReplyTimeout, 1),
        (BackendFault::Unavailable, 2),
    ] {
        let (store, faults) = faulty_store();
        let other = store.as_another_process();
        let guard = store.lock("x").lease(LEASE).acquire().await.unwrap();
        let copy = guard.held_lock();
        for _ in 0..5 {
            let before = faults.call_count("renew");
            faults.set("renew", fault, times);
            wait_for_renewals(&faults, before + times).await;
            assert!(!guard.remaining().is_zero(), "{fault:?}: there is time for another one");
            wait_for_renewals(&faults, before + times + 1).await;
            tokio::time::sleep(MS).await;
            assert!(guard.remaining() > LEASE * 4 / 5, "{fault:?}: renewed");
            assert!(
                expect_busy(other.lock("x").acquire().await).lease_remaining >= guard.remaining()
            );
        }
        assert_eq!((guard.loss(), copy.loss()), (None, None), "{fault:?}");
        assert_eq!(guard.release().await, ReleaseStatus::Released);
        drop(acquire_after_shutdown(&store).await);
    }
}

/// Asserts that the guard reports the loss before another process can acquire the lock.
async fn assert_guard_ends_before_the_lease(store: &Store, guard: &LockGuard) {
    let other = store.as_another_process();
    let busy = expect_busy(other.lock("x").acquire().await);
    assert!(
        guard.remaining() <= busy.lease_remaining,
        "{:?} of {:?}",
        guard.remaining(),
        busy.lease_remaining
    );
    guard.lost().await;
    expect_busy(other.lock("x").acquire().await);
    tokio::time::sleep(LEASE / 10).await;
    drop(other.lock("x").acquire().await.expect("no renewal came through"));
}

/// SAFETY: the validity time counts from the sending of the renewal, however late its reply is.
#[tokio::test(start_paused = true)]
async fn late_renewal_reply_does_not_outlast_the_lease() {
    let (store, faults) = faulty_store();
    let guard = store.lock("x").lease(LEASE).acquire().await.unwrap();
    faults.set("renew", BackendFault::SlowReply(SECOND), 1);
    wait_for_renewals(&faults, 1).await;
    faults.set("renew", BackendFault::Unavailable, usize::MAX);
    let mut before = guard.remaining();
    while guard.remaining() <= before {
        assert_eq!(guard.loss(), None);
        before = guard.remaining();
        tokio::time::sleep(MS).await;
    }
    assert_guard_ends_before_the_lease(&store, &guard).await;
}

/// SAFETY: the same for an explicit extension.
#[tokio::test(start_paused = true)]
async fn late_extension_reply_does_not_outlast_the_lease() {
    let (store, faults) = faulty_store();
    let guard = store.lock("x").lease(LEASE).acquire().await.unwrap();
    tokio::time::sleep(LEASE / 6).await;
    faults.set("renew", BackendFault::SlowReply(SECOND), 1);
    let extended = guard.extend(LEASE);
    let outage = async {
        wait_for_renewals(&faults, 1).await;
        faults.set("renew", BackendFault::Unavailable, usize::MAX);
    };
    let (extended, ()) = tokio::join!(extended, outage);
    assert!(extended.unwrap());
    assert_guard_ends_before_the_lease(&store, &guard).await;
}
