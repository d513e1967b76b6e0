//! Renewals that fail, or whose answers are late: a lock that can be kept is, and nobody believes in one for longer than the
//! store does.

use std::time::Duration;

use super::{SECOND, busy, free, handover::MS};
use crate::{
    LockGuard,
    lock::ReleaseStatus,
    store::{Fault, Faults, Store, faulty},
};

const LEASE: Duration = Duration::from_secs(3);

async fn until_it_renews(faults: &Faults, times: usize) {
    while faults.seen("renew") < times {
        tokio::time::sleep(10 * MS).await;
    }
}

/// As long as the lease is sure: once it did not run, once it ran and was not answered, and twice in a row.
#[tokio::test(start_paused = true)]
async fn a_renewal_that_failed_is_tried_again_and_the_lock_survives() {
    for (fault, times) in [(Fault::Away, 1), (Fault::NoReply, 1), (Fault::Away, 2)] {
        let (store, faults) = faulty();
        let other = store.as_another_process();
        let guard = store.lock("x").lease(LEASE).acquire().await.unwrap();
        let copy = guard.held_lock();
        for _ in 0..5 {
            let before = faults.seen("renew");
            faults.set("renew", fault, times);
            until_it_renews(&faults, before + times).await;
            assert!(!guard.remaining().is_zero(), "{fault:?}: there is time for another one");
            until_it_renews(&faults, before + times + 1).await;
            tokio::time::sleep(MS).await;
            assert!(guard.remaining() > LEASE * 4 / 5, "{fault:?}: renewed");
            assert!(busy(other.lock("x").acquire().await).lease_remaining >= guard.remaining());
        }
        assert_eq!((guard.loss(), copy.loss()), (None, None), "{fault:?}");
        assert_eq!(guard.release().await, ReleaseStatus::Released);
        drop(free(&store).await);
    }
}

/// Whoever asks then is refused: it was told in time.
async fn ends_before_the_store_has_it_end(store: &Store, guard: &LockGuard) {
    let other = store.as_another_process();
    let told = busy(other.lock("x").acquire().await);
    assert!(
        guard.remaining() <= told.lease_remaining,
        "{:?} of {:?}",
        guard.remaining(),
        told.lease_remaining
    );
    guard.lost().await;
    busy(other.lock("x").acquire().await);
    tokio::time::sleep(LEASE / 10).await;
    drop(other.lock("x").acquire().await.expect("no renewal came through"));
}

/// SAFETY: it is valid from before it was sent, however late it is answered.
#[tokio::test(start_paused = true)]
async fn a_renewal_that_is_answered_late_is_no_longer_than_the_store_has_it() {
    let (store, faults) = faulty();
    let guard = store.lock("x").lease(LEASE).acquire().await.unwrap();
    faults.set("renew", Fault::Slow(SECOND), 1);
    until_it_renews(&faults, 1).await;
    faults.set("renew", Fault::Away, usize::MAX);
    let mut before = guard.remaining();
    while guard.remaining() <= before {
        assert_eq!(guard.loss(), None);
        before = guard.remaining();
        tokio::time::sleep(MS).await;
    }
    ends_before_the_store_has_it_end(&store, &guard).await;
}

/// As above.
#[tokio::test(start_paused = true)]
async fn an_extension_that_is_answered_late_is_no_longer_than_the_store_has_it() {
    let (store, faults) = faulty();
    let guard = store.lock("x").lease(LEASE).acquire().await.unwrap();
    tokio::time::sleep(LEASE / 6).await;
    faults.set("renew", Fault::Slow(SECOND), 1);
    let extended = guard.extend(LEASE);
    let away = async {
        until_it_renews(&faults, 1).await;
        faults.set("renew", Fault::Away, usize::MAX);
    };
    let (extended, ()) = tokio::join!(extended, away);
    assert!(extended.unwrap());
    ends_before_the_store_has_it_end(&store, &guard).await;
}
