//! Handovers: number, window, order, and lease.

use std::{sync::Arc, time::Duration};

use futures_util::FutureExt as _;
use parking_lot::Mutex;
use tokio::{task::JoinHandle, time::Instant};

use super::{SECOND, acquire_after_shutdown, expect_busy, revoke_lease};
use crate::{
    lock::{LockRequest, ReleaseStatus},
    store::{BackendFault, LockLoss, Store, faulty_store},
};

pub(super) const MS: Duration = Duration::from_millis(1);

/// Names and fences of the lock's holders in the order of their grants.
#[derive(Clone, Default)]
pub(super) struct HolderLog(Arc<Mutex<Vec<(u32, u64)>>>);

impl HolderLog {
    pub(super) fn names(&self) -> Vec<u32> {
        self.0.lock().iter().map(|(name, _)| *name).collect()
    }

    /// Spawns a task that waits, holds the lock for `work` and releases it. The task is queued when
    /// this returns.
    pub(super) async fn spawn_waiter(
        &self,
        name: u32,
        request: LockRequest,
        work: Duration,
    ) -> JoinHandle<()> {
        let log = self.clone();
        let task = crate::store::spawn(async move {
            let guard = request.wait(60 * SECOND).acquire().await.expect("served in time");
            log.0.lock().push((name, guard.fence()));
            if !work.is_zero() {
                tokio::time::sleep(work).await;
            }
            assert_eq!(guard.release().await, ReleaseStatus::Released);
        });
        // The clock is paused, so this sleep ends when all tasks are idle.
        tokio::time::sleep(MS).await;
        task
    }

    pub(super) fn assert_fences_grow(&self) {
        assert!(self.0.lock().is_sorted_by(|a, b| a.1 < b.1), "{:?}", self.0.lock());
    }
}

pub(super) async fn join_tasks(tasks: Vec<JoinHandle<()>>) {
    for task in tasks {
        task.await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn one_snapshot_serves_seventeen_holders() {
    let (store, faults) = faulty_store();
    let log = HolderLog::default();
    let held = store.lock("x").acquire().await.unwrap();
    let mut tasks = Vec::new();
    for name in 0..40 {
        tasks.push(log.spawn_waiter(name, store.lock("x"), Duration::ZERO).await);
    }
    // The first queue snapshot is too old by now.
    held.release().await;
    join_tasks(tasks).await;
    assert_eq!(log.names(), (0..40).collect::<Vec<_>>());
    log.assert_fences_grow();
    // 17 holders after the first call, 17 after the second, 6 after the third.
    assert_eq!(
        [faults.call_count("acquire"), faults.call_count("pass"), faults.call_count("release")],
        [1, 3, 1]
    );
    drop(acquire_after_shutdown(&store).await);
}

#[tokio::test(start_paused = true)]
async fn one_snapshot_serves_for_ten_milliseconds() {
    let (store, faults) = faulty_store();
    // Disables the handover prefetch.
    faults.set("still", BackendFault::Unavailable, usize::MAX);
    let log = HolderLog::default();
    let held = store.lock("x").acquire().await.unwrap();
    let mut tasks = Vec::new();
    for name in 0..6 {
        tasks.push(log.spawn_waiter(name, store.lock("x"), 6 * MS).await);
    }
    held.release().await;
    join_tasks(tasks).await;
    // Each snapshot allows one handover after 6 ms and is too old after 12 ms.
    assert_eq!([faults.call_count("pass"), faults.call_count("release")], [3, 1]);
}

#[tokio::test(start_paused = true)]
async fn strict_order_calls_the_store_for_each_holder() {
    let (store, faults) = faulty_store();
    let log = HolderLog::default();
    let strict = || store.lock("x").strict_order();
    let held = strict().acquire().await.unwrap();
    let mut tasks = Vec::new();
    for name in 0..3 {
        tasks.push(log.spawn_waiter(name, strict(), Duration::ZERO).await);
    }
    held.release().await;
    join_tasks(tasks).await;
    assert_eq!([faults.call_count("pass"), faults.call_count("release")], [3, 1]);
}

/// Waiters of two processes arrive alternately; returns the order of their grants.
async fn serving_order_of_two_processes(
    max_handovers: u32,
    window: Duration,
    work: Duration,
) -> Vec<u32> {
    let (store, _) = faulty_store();
    let other = store.as_another_process();
    let log = HolderLog::default();
    let request = |store: &Store| store.lock("x").handover_limits(max_handovers, window);
    let held = request(&store).acquire().await.unwrap();
    let mut tasks = Vec::new();
    for name in 1..=8 {
        let store = if name % 2 == 0 { &other } else { &store };
        tasks.push(log.spawn_waiter(name, request(store), work).await);
    }
    held.release().await;
    join_tasks(tasks).await;
    log.assert_fences_grow();
    log.names()
}

#[tokio::test(start_paused = true)]
async fn other_process_is_overtaken_by_max_handovers_at_most() {
    // After 2 and 4 of the other process, this process is next: its waiter 3 is older than 6.
    assert_eq!(
        serving_order_of_two_processes(1, 60 * SECOND, Duration::ZERO).await,
        [1, 2, 4, 3, 5, 6, 8, 7]
    );
    assert_eq!(
        serving_order_of_two_processes(2, 60 * SECOND, Duration::ZERO).await,
        [1, 3, 2, 4, 6, 5, 7, 8]
    );
    assert_eq!(
        serving_order_of_two_processes(16, 60 * SECOND, Duration::ZERO).await,
        [1, 3, 5, 7, 2, 4, 6, 8]
    );
}

#[tokio::test(start_paused = true)]
async fn other_process_is_overtaken_within_the_window_only() {
    // A snapshot is too old after two holds.
    assert_eq!(
        serving_order_of_two_processes(16, 60 * MS, 30 * MS).await,
        [1, 3, 2, 4, 5, 7, 6, 8]
    );
    assert_eq!(
        serving_order_of_two_processes(16, 20 * MS, 30 * MS).await,
        (1..=8).collect::<Vec<_>>()
    );
}

#[tokio::test(start_paused = true)]
async fn strict_order_allows_no_overtaking() {
    assert_eq!(
        serving_order_of_two_processes(0, Duration::ZERO, Duration::ZERO).await,
        (1..=8).collect::<Vec<_>>()
    );
}

#[tokio::test(start_paused = true)]
async fn unrenewed_lease_is_not_handed_over_near_its_end() {
    let (store, faults) = faulty_store();
    let request = || store.lock("x").lease(3 * SECOND).handover_limits(16, 60 * SECOND);
    let held = request().acquire().await.unwrap();
    faults.set("renew", BackendFault::NeverReplies, usize::MAX);
    let waiter = crate::store::spawn(request().wait(60 * SECOND).acquire());
    tokio::time::sleep(2500 * MS).await;
    assert_eq!(held.release().await, ReleaseStatus::Released);
    let next = waiter.await.unwrap().unwrap();
    assert_eq!(faults.call_count("pass"), 1, "half a second of three is too little");
    assert!(next.remaining() > 2900 * MS);
}

/// Hands a lock over while a renewal is in flight, whose reply arrives during the next hold.
async fn handover_during_renewal(end: BackendFault) -> (Store, crate::LockGuard, Instant) {
    let (store, faults) = faulty_store();
    let request = || store.lock("x").lease(3 * SECOND).handover_limits(16, 60 * SECOND);
    let held = request().acquire().await.unwrap();
    faults.set("renew", end, 1);
    let waiter = crate::store::spawn(request().wait(60 * SECOND).acquire());
    tokio::time::sleep(1200 * MS).await;
    if matches!(end, BackendFault::SlowCall(_)) {
        // Before the renewal reaches the store.
        revoke_lease(&store, held.lease().unwrap()).await;
    }
    let _ = held.release().await;
    let next = waiter.await.unwrap().unwrap();
    assert_eq!(faults.call_count("pass"), 0, "handed over here");
    (store, next, Instant::now())
}

#[tokio::test(start_paused = true)]
async fn renewal_in_flight_extends_the_next_holder() {
    let (_store, next, _) = handover_during_renewal(BackendFault::SlowReply(SECOND)).await;
    assert!(next.remaining() < 2 * SECOND);
    tokio::time::sleep(SECOND).await;
    assert!(next.remaining() > SECOND, "it was answered meanwhile");
    tokio::time::sleep(10 * SECOND).await;
    assert_eq!(next.release().await, ReleaseStatus::Released);
}

#[tokio::test(start_paused = true)]
async fn failed_renewal_is_reported_to_the_current_holder() {
    let (_store, next, since) = handover_during_renewal(BackendFault::SlowCall(SECOND / 2)).await;
    assert_eq!(next.lost().await, LockLoss::Taken);
    assert!(since.elapsed() < SECOND);
    assert_eq!(next.release().await, ReleaseStatus::AlreadyLost);
}

#[tokio::test(start_paused = true)]
async fn waiters_do_not_wait_for_a_holder_that_lost_the_lock() {
    let store = Store::memory();
    let request = || store.lock("x").lease(SECOND).max_hold(SECOND);
    let loser = request().acquire().await.unwrap();
    let waiter = crate::store::spawn(request().wait(60 * SECOND).acquire());
    let started = Instant::now();
    assert_eq!(loser.lost().await, LockLoss::HeldTooLong);
    let next = waiter.await.unwrap().unwrap();
    assert!(started.elapsed() < SECOND + 400 * MS, "{:?}", started.elapsed());
    assert_eq!(loser.release().await, ReleaseStatus::AlreadyLost);
    assert_eq!(next.release().await, ReleaseStatus::Released);
    drop(acquire_after_shutdown(&store).await);
}

#[tokio::test(start_paused = true)]
async fn cancelled_waiter_hands_over_its_unreceived_grant() {
    let (store, faults) = faulty_store();
    let request = || store.lock("x").handover_limits(16, 60 * SECOND);
    let held = request().acquire().await.unwrap();
    let cancelled = crate::store::spawn(request().wait(60 * SECOND).acquire());
    let remaining = crate::store::spawn(request().wait(60 * SECOND).acquire());
    tokio::time::sleep(MS).await;
    // The grant is in the channel of the first waiter, which has not run since and is aborted.
    let released = held.release();
    cancelled.abort();
    assert_eq!(released.await, ReleaseStatus::Released);
    let next = remaining.await.unwrap().unwrap();
    assert_eq!(faults.call_count("pass"), 0);
    drop(next);
    drop(acquire_after_shutdown(&store).await);
}

/// The limit covers all locks of the process, whatever their `max_waiters`. It bounds the memory
/// that a flood can take.
#[tokio::test(start_paused = true)]
async fn waiters_of_a_process_are_bounded() {
    const PROCESS_LIMIT: usize = 16 * 1024;
    let (store, faults) = faulty_store();
    let acquire = |name| store.lock(name).max_waiters(usize::MAX).wait(60 * SECOND).acquire();
    let other = store.as_another_process();
    let _held = other.locks(["x", "y", "z"]).acquire().await.unwrap();
    // The first waiter of each lock calls the store for all later ones.
    let first = ["x", "y"].map(|name| crate::store::spawn(acquire(name)));
    tokio::time::sleep(MS).await;
    let mut waiting: Vec<_> =
        (2..PROCESS_LIMIT).map(|n| Box::pin(acquire(["x", "y"][n % 2]))).collect();
    let refused = waiting.iter_mut().filter_map(|waiter| waiter.as_mut().now_or_never()).count();
    assert_eq!(refused, 0, "the limit of waiters is not reached");
    let before = faults.call_count("acquire");
    for name in ["x", "y"] {
        let busy = expect_busy(acquire(name).await);
        assert!(busy.waited.is_some_and(|waited| waited.is_zero()), "{busy:?}");
    }
    assert_eq!(faults.call_count("acquire"), before);
    let started = Instant::now();
    expect_busy(acquire("z").await);
    assert_eq!(started.elapsed(), Duration::ZERO, "a lock without waiters is refused too");
    drop(store.lock("free").acquire().await.expect("an acquire without a wait is not limited"));
    drop(waiting.pop());
    assert!(acquire("x").now_or_never().is_none(), "a dropped waiter frees its slot");
    drop((waiting, first));
}

/// If this process died, other processes would wait for the remaining lease.
#[tokio::test(start_paused = true)]
async fn extension_is_not_handed_over() {
    let store = Store::memory();
    let request = || store.lock("x").wait(60 * SECOND).acquire();
    let guard = request().await.unwrap();
    let next = crate::store::spawn(request().into_future());
    tokio::task::yield_now().await;
    assert!(guard.extend(55 * SECOND).await.unwrap());
    guard.release().await;
    let left = next.await.unwrap().unwrap().remaining();
    assert!(left <= 10 * SECOND, "{left:?}");
}

#[tokio::test(start_paused = true)]
async fn extended_lease_bridges_failed_renewals() {
    let (store, faults) = faulty_store();
    let guard = store.lock("x").lease(SECOND).acquire().await.unwrap();
    assert!(guard.extend(20 * SECOND).await.unwrap());
    faults.set("renew", BackendFault::Unavailable, usize::MAX);
    tokio::time::sleep(15 * SECOND).await;
    assert!(guard.remaining() > 4 * SECOND);
    faults.set("renew", BackendFault::Unavailable, 0);
    tokio::time::sleep(15 * SECOND).await;
    assert_eq!(
        guard.release().await,
        ReleaseStatus::Released,
        "renewed as ever, when the time came"
    );
}

/// The queue entry was made for a waiter with a short wait. A later local waiter waits longer and
/// does not lose the entry to waiters that join later at other processes.
#[tokio::test(start_paused = true)]
async fn queue_entry_is_kept_for_later_waiters() {
    let store = Store::memory();
    let [second, third] = [(); 2].map(|()| store.as_another_process());
    let log = HolderLog::default();
    let own = store.lock("x").acquire().await.unwrap();
    let mut tasks = vec![log.spawn_waiter(0, second.lock("x"), 80 * MS).await];
    // Longer than the handover window.
    tokio::time::sleep(20 * MS).await;
    let short_wait = store.lock("x").wait(40 * MS);
    let short_wait =
        crate::store::spawn(async move { drop(short_wait.acquire().await.unwrap_err()) });
    tokio::time::sleep(MS).await;
    // The queue entry exists now, for the duration of the short wait.
    drop(own);
    tokio::time::sleep(MS).await;
    tasks.push(log.spawn_waiter(1, store.lock("x"), Duration::ZERO).await);
    tokio::time::sleep(50 * MS).await;
    tasks.push(log.spawn_waiter(2, third.lock("x"), Duration::ZERO).await);
    join_tasks(tasks).await;
    short_wait.await.unwrap();
    assert_eq!(log.names(), [0, 1, 2]);
}
