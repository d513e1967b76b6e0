//! Regressions of leases and queues, as a review found them.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use tokio::time::Instant;

use super::SECOND;
use crate::{
    key::Key,
    store::{BackendFault, Store, faulty_store},
};

const MS: Duration = Duration::from_millis(1);

/// SAFETY: the extension is shorter than the remaining lease, and its reply is lost.
#[tokio::test(start_paused = true)]
async fn unanswered_extension_keeps_guard_within_store_lease() {
    let (store, faults) = faulty_store();
    let guard = store.lock("x").acquire().await.unwrap();
    faults.set("renew", BackendFault::ReplyTimeout, 1);
    guard.extend(SECOND).await.unwrap_err();
    let other = store.as_another_process();
    let next = other.lock("x").wait(2 * SECOND).acquire().await;
    // Exactly one of the two holds the lock.
    assert_eq!(next.is_ok(), guard.remaining().is_zero(), "{next:?} {:?}", guard.remaining());
}

/// SAFETY: the same, with a dropped future.
#[tokio::test(start_paused = true)]
async fn dropped_extension_keeps_guard_within_store_lease() {
    let (store, faults) = faulty_store();
    let guard = store.lock("x").acquire().await.unwrap();
    faults.set("renew", BackendFault::SlowReply(SECOND), 1);
    let _ = tokio::time::timeout(MS, guard.extend(SECOND)).await;
    let other = store.as_another_process();
    let next = other.lock("x").wait(2 * SECOND).acquire().await;
    // Exactly one of the two holds the lock.
    assert_eq!(next.is_ok(), guard.remaining().is_zero(), "{next:?} {:?}", guard.remaining());
}

/// SAFETY: the first lock of a set is lost during the wait for the last one.
#[tokio::test(start_paused = true)]
async fn granted_lock_set_holds_all_its_locks() {
    let store = Store::memory();
    let other = store.as_another_process();
    let mut keys = ["a", "b"].map(Key::custom);
    keys.sort_by_key(|key| (key.shard(), key.clone()));
    let held = other.lock(keys[1].clone()).acquire().await.unwrap();
    let request = store.locks(keys.clone()).max_hold(SECOND).wait(5 * SECOND);
    let both = crate::store::spawn(request.acquire());
    tokio::time::sleep(2 * SECOND).await;
    let thief = other.lock(keys[0].clone()).acquire().await.expect("its max_hold is over");
    held.release().await;
    let set = both.await.unwrap();
    assert!(set.is_err(), "granted while another holder has the first lock: {set:?}");
    drop(thief);
}

/// FAIRNESS: a strict waiter may get the lock by a handover, but must not hand it over itself.
#[tokio::test(start_paused = true)]
async fn strict_order_applies_after_a_default_order_holder() {
    let (store, faults) = faulty_store();
    let first = store.lock("x").acquire().await.unwrap();
    let strict = store.lock("x").strict_order().wait(SECOND);
    let second = crate::store::spawn(strict.clone().acquire());
    let third = crate::store::spawn(strict.acquire());
    tokio::time::sleep(MS).await;
    first.release().await;
    second.await.unwrap().unwrap().release().await;
    third.await.unwrap().unwrap().release().await;
    assert!(faults.call_count("pass") >= 1, "passed on twice without asking the store");
}

/// A renewal near the end of one hold is answered during the next one.
#[tokio::test(start_paused = true)]
async fn max_hold_counts_from_the_guards_own_grant() {
    let (store, faults) = faulty_store();
    let request = || {
        let request = store.lock("x").lease(3 * SECOND).max_hold(4 * SECOND);
        request.handover_limits(16, 60 * SECOND).wait(60 * SECOND)
    };
    let first = request().acquire().await.unwrap();
    let second = crate::store::spawn(request().acquire());
    tokio::time::sleep(3 * SECOND / 2).await;
    let before = faults.call_count("renew");
    faults.set("renew", BackendFault::SlowReply(SECOND / 2), 1);
    while faults.call_count("renew") == before {
        tokio::time::sleep(MS).await;
    }
    first.release().await;
    let second = second.await.unwrap().unwrap();
    let since = Instant::now();
    let loss = second.lost().await;
    assert!(since.elapsed() > 7 * SECOND / 2, "{loss:?} after {:?}", since.elapsed());
}

#[tokio::test(start_paused = true)]
async fn downgrade_does_not_reset_max_hold() {
    let store = Store::memory();
    let since = Instant::now();
    let guard = store.lock("x").max_hold(2 * SECOND).acquire().await.unwrap();
    tokio::time::sleep(SECOND).await;
    let guard = guard.downgrade().await.unwrap();
    guard.lost().await;
    assert!(since.elapsed() <= 2 * SECOND, "{:?}", since.elapsed());
}

/// An extension that waits for a hanging renewal must end with the lease.
#[tokio::test(start_paused = true)]
async fn pending_extension_ends_with_the_lease() {
    let (store, faults) = faulty_store();
    let guard = store.lock("x").lease(3 * SECOND).acquire().await.unwrap();
    faults.set("renew", BackendFault::NeverReplies, usize::MAX);
    let polls = AtomicUsize::new(0);
    tokio::time::sleep(2 * SECOND).await;
    polls.fetch_add(1, Ordering::Relaxed);
    let extended = tokio::time::timeout(60 * SECOND, guard.extend(SECOND)).await;
    assert!(extended.is_ok(), "it is lost, and this waits on");
}
