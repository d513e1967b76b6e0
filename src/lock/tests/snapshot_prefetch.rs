//! Prefetches of the queue snapshot while the lock is held.

use std::time::Duration;

use tokio::time::Instant;

use super::{
    SECOND, acquire_after_shutdown,
    handover::{HolderLog, MS, join_tasks},
    revoke_lease,
};
use crate::{
    lock::ReleaseStatus,
    store::{BackendFault, FaultSchedule, Store, faulty_store},
};

/// Serves six waiters in order, each of which holds the lock for 6 ms.
async fn run_six_waiters(store: &Store, log: &HolderLog) {
    let held = store.lock("x").acquire().await.unwrap();
    let mut tasks = Vec::new();
    for name in 0..6 {
        tasks.push(log.spawn_waiter(name, store.lock("x"), 6 * MS).await);
    }
    assert_eq!(held.release().await, ReleaseStatus::Released);
    join_tasks(tasks).await;
    assert_eq!(log.names(), (0..6).collect::<Vec<_>>());
    log.assert_fences_grow();
}

fn store_call_counts(faults: &FaultSchedule) -> [usize; 3] {
    ["pass", "still", "release"].map(|operation| faults.call_count(operation))
}

#[tokio::test(start_paused = true)]
async fn millisecond_holders_do_not_wait_for_the_store() {
    let (store, faults) = faulty_store();
    run_six_waiters(&store, &HolderLog::default()).await;
    // One prefetch in each hold with a waiter.
    assert_eq!(store_call_counts(&faults), [0, 5, 1]);
    drop(acquire_after_shutdown(&store).await);
}

#[tokio::test(start_paused = true)]
async fn late_prefetch_reply_changes_nothing() {
    for late in [5 * MS, 13 * MS, 100 * MS] {
        for fault in [BackendFault::SlowReply(late), BackendFault::SlowCall(late)] {
            let (store, faults) = faulty_store();
            faults.set("still", fault, usize::MAX);
            run_six_waiters(&store, &HolderLog::default()).await;
            assert!(faults.call_count("pass") > 0, "{fault:?}");
            drop(acquire_after_shutdown(&store).await);
        }
    }
}

/// Few spare fences are left, so each hold prefetches. The first reply arrives after that of a
/// later prefetch was applied.
#[tokio::test(start_paused = true)]
async fn overtaken_prefetch_reply_gives_no_older_fence() {
    let (store, faults) = faulty_store();
    let log = HolderLog::default();
    faults.set("still", BackendFault::SlowReply(7 * MS), 1);
    let request = || store.lock("x").handover_limits(4, SECOND);
    let held = request().acquire().await.unwrap();
    let mut tasks = Vec::new();
    for name in 0..6 {
        tasks.push(log.spawn_waiter(name, request(), 3 * MS).await);
    }
    assert_eq!(held.release().await, ReleaseStatus::Released);
    join_tasks(tasks).await;
    assert_eq!(log.names(), (0..6).collect::<Vec<_>>());
    assert!(faults.call_count("still") > 1);
    log.assert_fences_grow();
}

#[tokio::test(start_paused = true)]
async fn instant_and_long_holds_do_not_prefetch() {
    for work in [Duration::ZERO, SECOND] {
        let (store, faults) = faulty_store();
        let log = HolderLog::default();
        let held = store.lock("x").acquire().await.unwrap();
        let tasks = [1, 2].map(|name| (name, log.clone(), store.clone()));
        let mut waiters = Vec::new();
        for (name, log, store) in tasks {
            waiters.push(log.spawn_waiter(name, store.lock("x"), work).await);
        }
        tokio::time::sleep(work).await;
        held.release().await;
        join_tasks(waiters).await;
        assert_eq!(faults.call_count("still"), 0);
    }
}

/// A snapshot is valid for two holds. A waiter of the other process, queued at the prefetch, is
/// overtaken by one later waiter, and by no more because of a newer snapshot.
#[tokio::test(start_paused = true)]
async fn prefetch_allows_no_additional_overtaking() {
    for fault in [
        BackendFault::SlowReply(2 * MS),
        BackendFault::SlowCall(MS),
        BackendFault::SlowReply(Duration::ZERO),
    ] {
        let (store, faults) = faulty_store();
        faults.set("still", fault, usize::MAX);
        let other = store.as_another_process();
        let log = HolderLog::default();
        let held = store.lock("x").acquire().await.unwrap();
        let mut tasks = Vec::new();
        for name in 0..4 {
            tasks.push(log.spawn_waiter(name, store.lock("x"), 6 * MS).await);
        }
        assert_eq!(held.release().await, ReleaseStatus::Released);
        for name in 4..20 {
            let store = if name % 5 == 0 { &other } else { &store };
            tasks.push(log.spawn_waiter(name, store.lock("x"), 6 * MS).await);
        }
        join_tasks(tasks).await;
        let names = log.names();
        for (at, name) in names.iter().enumerate() {
            let in_other_process = |other: &&u32| other.is_multiple_of(5) != name.is_multiple_of(5);
            let overtaking =
                names[..at].iter().filter(|other| *other > name).filter(in_other_process);
            assert!(overtaking.count() <= 1, "{name} of {names:?}, {fault:?}");
        }
        log.assert_fences_grow();
        assert!(faults.call_count("still") > 0);
    }
}

/// The prefetch is sent at 7 ms and answered at 11 ms, when no local waiter is next and 4 has
/// waited elsewhere since 8 ms. A local waiter that joins at 12 ms would precede 4 only by the
/// previous snapshot, which is valid until 10 ms.
#[tokio::test(start_paused = true)]
async fn newer_snapshot_does_not_admit_later_arrivals_first() {
    let (store, faults) = faulty_store();
    let (other, log, began) = (store.as_another_process(), HolderLog::default(), Instant::now());
    faults.set("still", BackendFault::SlowCall(2 * MS), usize::MAX);
    let held = store.lock("x").acquire().await.unwrap();
    let mut tasks = Vec::new();
    for (name, work) in [(0, 4), (1, 2), (2, 4)] {
        tasks.push(log.spawn_waiter(name, store.lock("x"), work * MS).await);
    }
    drop(held);
    for (at, name, store) in [(8, 4, &other), (12, 3, &store)] {
        tokio::time::sleep_until(began + at * MS).await;
        tasks.push(log.spawn_waiter(name, store.lock("x"), MS).await);
    }
    join_tasks(tasks).await;
    assert_eq!(log.names(), [0, 1, 2, 4, 3]);
    assert!(faults.call_count("still") > 0);
}

#[tokio::test(start_paused = true)]
async fn lost_lock_is_not_handed_over() {
    let (store, faults) = faulty_store();
    let log = HolderLog::default();
    let held = store.lock("x").acquire().await.unwrap();
    let first = crate::store::spawn(store.lock("x").wait(SECOND).acquire());
    tokio::time::sleep(6 * MS).await;
    let last = log.spawn_waiter(2, store.lock("x"), Duration::ZERO).await;
    assert_eq!(held.release().await, ReleaseStatus::Released);
    let first = first.await.unwrap().unwrap();
    revoke_lease(&store, first.lease().unwrap()).await;
    tokio::time::sleep(7 * MS).await;
    assert_eq!(faults.call_count("still"), 1);
    assert_eq!(first.release().await, ReleaseStatus::AlreadyLost);
    last.await.unwrap();
    assert_eq!(faults.call_count("pass"), 1);
    drop(acquire_after_shutdown(&store).await);
}

#[tokio::test(start_paused = true)]
async fn pending_prefetch_does_not_keep_a_store_alive() {
    let (store, _) = faulty_store();
    let log = HolderLog::default();
    let held = store.lock("x").acquire().await.unwrap();
    let waiter = log.spawn_waiter(1, store.lock("x"), 10 * MS).await;
    tokio::time::sleep(50 * MS).await;
    held.release().await;
    let next = crate::store::spawn(store.lock("x").wait(60 * SECOND).acquire());
    tokio::time::sleep(MS).await;
    next.abort();
    waiter.await.unwrap();
    let weak = store.downgrade();
    drop(store);
    tokio::time::sleep(MS).await;
    assert!(weak.upgrade().is_none());
}
