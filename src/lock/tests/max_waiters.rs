//! Limit of the waiters of one process for one lock.

use std::{
    future::Future,
    sync::Arc,
    task::{Context, Wake},
    time::Duration,
};

use futures_util::FutureExt as _;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::{SECOND, acquire_after_shutdown, expect_busy, handover::MS};
use crate::{
    lock::{
        LockGuard, LockRequest,
        local_wait_queue::{LocalQueueId, LocalQueues},
    },
    store::{BackendFault, LockMode, Store, faulty_store},
};

fn request_with_max_waiters(store: &Store, limit: usize) -> LockRequest {
    store.lock("x").max_waiters(limit).wait(60 * SECOND)
}

fn local_waiter_count(store: &Store) -> usize {
    let queue_id = LocalQueueId { key: "x".into(), mode: LockMode::Exclusive };
    store.extension::<LocalQueues>().waiting_tasks(&queue_id)
}

/// The leader calls the store and would wait when the lock is busy. Another waiter has joined
/// meanwhile.
#[tokio::test(start_paused = true)]
async fn leader_counts_toward_max_waiters() {
    let (store, faults) = faulty_store();
    let other = store.as_another_process();
    let held = other.lock("x").acquire().await.unwrap();
    faults.set("acquire", BackendFault::SlowReply(10 * MS), 1);
    let leader = crate::store::spawn(request_with_max_waiters(&store, 1).acquire());
    tokio::time::sleep(MS).await;
    let waiter = crate::store::spawn(request_with_max_waiters(&store, 1).acquire());
    tokio::time::sleep(MS).await;
    let started = Instant::now();
    let busy = expect_busy(leader.await.unwrap());
    assert!(busy.waited.is_some() && started.elapsed() < SECOND, "{busy:?}");
    assert_eq!(local_waiter_count(&store), 1);
    expect_busy(request_with_max_waiters(&store, 1).acquire().now_or_never().expect("it is full"));
    tokio::time::sleep(MS).await;
    let busy = expect_busy(store.as_another_process().lock("x").acquire().await);
    assert_eq!(busy.queue_length, 1, "the process has one queue entry, for its waiter");
    assert!(!waiter.is_finished());
    held.release().await;
    let next = tokio::time::timeout(10 * MS, waiter).await.expect("the offer wakes the waiter");
    drop(next.unwrap().unwrap());
    drop(acquire_after_shutdown(&store).await);
}

#[tokio::test(start_paused = true)]
async fn zero_max_waiters_allows_no_waiter() {
    let (store, faults) = faulty_store();
    let local_guard = request_with_max_waiters(&store, 0)
        .acquire()
        .await
        .expect("an acquire without a wait is not limited");
    expect_busy(
        request_with_max_waiters(&store, 0).acquire().now_or_never().expect("it is held here"),
    );
    local_guard.release().await;
    let held = store.as_another_process().lock("x").acquire().await.unwrap();
    let started = Instant::now();
    for is_shared in [false, true] {
        let request = request_with_max_waiters(&store, 0);
        let request = if is_shared { request.shared() } else { request };
        let busy = expect_busy(request.acquire().await);
        assert!(busy.waited.is_some() && !busy.lease_remaining.is_zero(), "{busy:?}");
    }
    assert_eq!(started.elapsed().as_secs(), 0);
    let releases = faults.call_count("release");
    assert!(store.shutdown(SECOND).await);
    assert_eq!(faults.call_count("release"), releases, "a request without a wait joined the queue");
    let busy = expect_busy(store.as_another_process().lock("x").acquire().await);
    assert_eq!(busy.queue_length, 0);
    held.release().await;
    drop(acquire_after_shutdown(&store).await);
}

/// Records whether the mutex of the queues was free, since an executor may run any code in `wake`.
struct MutexProbeWaker(Arc<LocalQueues>, Mutex<Vec<bool>>);

impl Wake for MutexProbeWaker {
    fn wake(self: Arc<Self>) {
        self.1.lock().push(!self.0.is_locked());
    }
}

/// Polls an acquire once, with the probing waker.
fn poll_acquire_once(request: LockRequest, probe: &Arc<MutexProbeWaker>) -> impl Future + use<> {
    let mut acquire = Box::pin(request.acquire());
    let waker = Arc::clone(probe).into();
    assert!(acquire.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    acquire
}

/// The waiter has timed out and was not polled since. Its removal from the queue wakes it.
#[tokio::test(start_paused = true)]
async fn expired_waiter_is_woken_outside_the_queue_mutex() {
    let remove: [fn(&Store, LockGuard); 3] = [
        |_, held| drop(held),
        |store, held| {
            let full = store.lock("x").max_waiters(1).wait(60 * SECOND).acquire();
            assert!(full.now_or_never().is_none(), "the limit allows another waiter");
            drop(held);
        },
        |store, held| {
            let _ = store.shutdown(Duration::ZERO).now_or_never();
            drop(held);
        },
    ];
    for remove in remove {
        let store = Store::memory();
        let probe = Arc::new(MutexProbeWaker(store.extension(), Mutex::default()));
        let held = store.lock("x").acquire().await.unwrap();
        let waiter = poll_acquire_once(store.lock("x").wait(MS), &probe);
        tokio::time::advance(2 * MS).await;
        assert_eq!(*probe.1.lock(), [true], "by its timer");
        remove(&store, held);
        assert_eq!(*probe.1.lock(), [true, true]);
        drop(waiter);
    }
}

/// The waiter joined the local queue before its process had an entry in the store's queue.
#[tokio::test(start_paused = true)]
async fn cancelled_waiter_removes_its_queue_entry() {
    let store = Store::memory();
    let [other, stranger] = [store.as_another_process(), store.as_another_process()];
    let request = || store.lock("x").strict_order().wait(60 * SECOND);
    let held = request().acquire().await.unwrap();
    let next = crate::store::spawn(other.lock("x").wait(60 * SECOND).acquire());
    tokio::time::sleep(MS).await;
    let waiter = crate::store::spawn(request().acquire());
    tokio::time::sleep(MS).await;
    held.release().await;
    let next = next.await.unwrap().unwrap();
    tokio::time::sleep(MS).await;
    assert_eq!(
        expect_busy(stranger.lock("x").acquire().await).queue_length,
        1,
        "its process has a queue entry"
    );
    waiter.abort();
    tokio::time::sleep(5 * MS).await;
    assert_eq!(
        expect_busy(stranger.lock("x").acquire().await).queue_length,
        0,
        "the queue entry is removed"
    );
    assert!(store.shutdown(100 * MS).await);
    next.release().await;
    drop(acquire_after_shutdown(&store).await);
}

/// The limit holds whatever call is in flight when the waiters arrive.
#[tokio::test(start_paused = true)]
async fn waiters_never_exceed_max_waiters() {
    for limit in 0..4 {
        let (store, faults) = faulty_store();
        let held = store.as_another_process().lock("x").acquire().await.unwrap();
        faults.set("acquire", BackendFault::SlowCall(3 * MS), usize::MAX);
        let mut tasks = Vec::new();
        for _ in 0..8 {
            tasks.push(crate::store::spawn(request_with_max_waiters(&store, limit).acquire()));
            tokio::time::sleep(MS).await;
        }
        tokio::time::sleep(20 * MS).await;
        let waiting = tasks.iter().filter(|task| !task.is_finished()).count();
        assert_eq!((waiting, local_waiter_count(&store)), (limit, limit));
        held.release().await;
        let mut served = 0;
        for task in tasks {
            served += usize::from(task.await.unwrap().is_ok());
        }
        assert_eq!(served, limit);
        drop(acquire_after_shutdown(&store).await);
    }
}

/// All modes of a lock share its limit.
#[tokio::test(start_paused = true)]
async fn all_lock_modes_share_max_waiters() {
    let store = Store::memory();
    let request = || request_with_max_waiters(&store, 2);
    let held = store.as_another_process().lock("x").acquire().await.unwrap();
    let writer = crate::store::spawn(request().acquire());
    let reader = crate::store::spawn(request().shared().acquire());
    tokio::time::sleep(MS).await;
    let started = Instant::now();
    for refused in [request(), request().shared(), request().permits(3)] {
        expect_busy(refused.acquire().await);
    }
    assert_eq!(started.elapsed(), Duration::ZERO);
    // A waiter that leaves makes room for another one of any mode.
    reader.abort();
    let _ = reader.await;
    let next = crate::store::spawn(request().acquire());
    tokio::time::sleep(MS).await;
    assert!(!next.is_finished());
    drop(held);
    for waiter in [writer, next] {
        drop(waiter.await.unwrap().expect("the limit allows it to wait"));
    }
    drop(acquire_after_shutdown(&store).await);
}
