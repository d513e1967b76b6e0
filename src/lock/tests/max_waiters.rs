//! How many of a process may wait for one lock.

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

fn request_with_max_waiters(store: &Store, most: usize) -> LockRequest {
    store.lock("x").max_waiters(most).wait(60 * SECOND)
}

fn local_waiter_count(store: &Store) -> usize {
    let queue_id = LocalQueueId { key: "x".into(), mode: LockMode::Exclusive };
    store.extension::<LocalQueues>().waiting_tasks(&queue_id)
}

/// Whoever is first asks the store, and waits when that has said that it is busy. Another one has come meanwhile.
#[tokio::test(start_paused = true)]
async fn leader_counts_toward_max_waiters() {
    let (store, faults) = faulty_store();
    let other = store.as_another_process();
    let held = other.lock("x").acquire().await.unwrap();
    faults.set("acquire", BackendFault::SlowReply(10 * MS), 1);
    let asks = crate::store::spawn(request_with_max_waiters(&store, 1).acquire());
    tokio::time::sleep(MS).await;
    let waits = crate::store::spawn(request_with_max_waiters(&store, 1).acquire());
    tokio::time::sleep(MS).await;
    let started = Instant::now();
    let told = expect_busy(asks.await.unwrap());
    assert!(told.waited.is_some() && started.elapsed() < SECOND, "{told:?}");
    assert_eq!(local_waiter_count(&store), 1);
    expect_busy(request_with_max_waiters(&store, 1).acquire().now_or_never().expect("it is full"));
    tokio::time::sleep(MS).await;
    let told = expect_busy(store.as_another_process().lock("x").acquire().await);
    assert_eq!(told.queue_length, 1, "the process has one place, for the one who waits");
    assert!(!waits.is_finished());
    held.release().await;
    let next = tokio::time::timeout(10 * MS, waits).await.expect("it is told of the offer");
    drop(next.unwrap().unwrap());
    drop(acquire_after_shutdown(&store).await);
}

#[tokio::test(start_paused = true)]
async fn zero_max_waiters_allows_no_waiter() {
    let (store, faults) = faulty_store();
    let here = request_with_max_waiters(&store, 0)
        .acquire()
        .await
        .expect("who need not wait needs no room");
    expect_busy(
        request_with_max_waiters(&store, 0).acquire().now_or_never().expect("it is held here"),
    );
    here.release().await;
    let held = store.as_another_process().lock("x").acquire().await.unwrap();
    let started = Instant::now();
    for reads in [false, true] {
        let request = request_with_max_waiters(&store, 0);
        let request = if reads { request.shared() } else { request };
        let told = expect_busy(request.acquire().await);
        assert!(told.waited.is_some() && !told.lease_remaining.is_zero(), "{told:?}");
    }
    assert_eq!(started.elapsed().as_secs(), 0);
    let places = faults.call_count("release");
    assert!(store.shutdown(SECOND).await);
    assert_eq!(faults.call_count("release"), places, "no place was taken for who may not wait");
    let told = expect_busy(store.as_another_process().lock("x").acquire().await);
    assert_eq!(told.queue_length, 0);
    held.release().await;
    drop(acquire_after_shutdown(&store).await);
}

/// Notes whether the mutex of the lines was free: another executor may run anything as it is woken.
struct MutexProbeWaker(Arc<LocalQueues>, Mutex<Vec<bool>>);

impl Wake for MutexProbeWaker {
    fn wake(self: Arc<Self>) {
        self.1.lock().push(!self.0.is_locked());
    }
}

/// One who waits, looked at once, by something that is woken as it runs.
fn poll_acquire_once(request: LockRequest, looks: &Arc<MutexProbeWaker>) -> impl Future + use<> {
    let mut waits = Box::pin(request.acquire());
    let waker = Arc::clone(looks).into();
    assert!(waits.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    waits
}

/// Its time is over, and it has not looked yet: it is told by whoever takes it out of the line.
#[tokio::test(start_paused = true)]
async fn expired_waiter_is_woken_outside_the_queue_mutex() {
    let takes_out: [fn(&Store, LockGuard); 3] = [
        |_, held| drop(held),
        |store, held| {
            let full = store.lock("x").max_waiters(1).wait(60 * SECOND).acquire();
            assert!(full.now_or_never().is_none(), "there is room for it again");
            drop(held);
        },
        |store, held| {
            let _ = store.shutdown(Duration::ZERO).now_or_never();
            drop(held);
        },
    ];
    for takes_out in takes_out {
        let store = Store::memory();
        let looks = Arc::new(MutexProbeWaker(store.extension(), Mutex::default()));
        let held = store.lock("x").acquire().await.unwrap();
        let waits = poll_acquire_once(store.lock("x").wait(MS), &looks);
        tokio::time::advance(2 * MS).await;
        assert_eq!(*looks.1.lock(), [true], "by its timer");
        takes_out(&store, held);
        assert_eq!(*looks.1.lock(), [true, true]);
        drop(waits);
    }
}

/// It has lined up behind the holder, and the keeper that stands in the store's line for it came later.
#[tokio::test(start_paused = true)]
async fn cancelled_waiter_removes_its_queue_entry() {
    let store = Store::memory();
    let [other, stranger] = [store.as_another_process(), store.as_another_process()];
    let request = || store.lock("x").strict_order().wait(60 * SECOND);
    let held = request().acquire().await.unwrap();
    let next = crate::store::spawn(other.lock("x").wait(60 * SECOND).acquire());
    tokio::time::sleep(MS).await;
    let waits = crate::store::spawn(request().acquire());
    tokio::time::sleep(MS).await;
    held.release().await;
    let next = next.await.unwrap().unwrap();
    tokio::time::sleep(MS).await;
    assert_eq!(
        expect_busy(stranger.lock("x").acquire().await).queue_length,
        1,
        "its process stands in line for it"
    );
    waits.abort();
    tokio::time::sleep(5 * MS).await;
    assert_eq!(
        expect_busy(stranger.lock("x").acquire().await).queue_length,
        0,
        "its place is kept for nobody"
    );
    assert!(store.shutdown(100 * MS).await);
    next.release().await;
    drop(acquire_after_shutdown(&store).await);
}

/// Nobody waits beyond it, whatever is under way when they come.
#[tokio::test(start_paused = true)]
async fn waiters_never_exceed_max_waiters() {
    for most in 0..4 {
        let (store, faults) = faulty_store();
        let held = store.as_another_process().lock("x").acquire().await.unwrap();
        faults.set("acquire", BackendFault::SlowCall(3 * MS), usize::MAX);
        let mut all = Vec::new();
        for _ in 0..8 {
            all.push(crate::store::spawn(request_with_max_waiters(&store, most).acquire()));
            tokio::time::sleep(MS).await;
        }
        tokio::time::sleep(20 * MS).await;
        let still = all.iter().filter(|one| !one.is_finished()).count();
        assert_eq!((still, local_waiter_count(&store)), (most, most));
        held.release().await;
        let mut served = 0;
        for one in all {
            served += usize::from(one.await.unwrap().is_ok());
        }
        assert_eq!(served, most);
        drop(acquire_after_shutdown(&store).await);
    }
}

/// It is one lock, whatever they want of it.
#[tokio::test(start_paused = true)]
async fn all_lock_modes_share_max_waiters() {
    let store = Store::memory();
    let with_room = || request_with_max_waiters(&store, 2);
    let held = store.as_another_process().lock("x").acquire().await.unwrap();
    let writer = crate::store::spawn(with_room().acquire());
    let reader = crate::store::spawn(with_room().shared().acquire());
    tokio::time::sleep(MS).await;
    let started = Instant::now();
    for refused in [with_room(), with_room().shared(), with_room().permits(3)] {
        expect_busy(refused.acquire().await);
    }
    assert_eq!(started.elapsed(), Duration::ZERO);
    // Who leaves makes room, whoever comes.
    reader.abort();
    let _ = reader.await;
    let next = crate::store::spawn(with_room().acquire());
    tokio::time::sleep(MS).await;
    assert!(!next.is_finished());
    drop(held);
    for waiter in [writer, next] {
        drop(waiter.await.unwrap().expect("it has room"));
    }
    drop(acquire_after_shutdown(&store).await);
}
