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

use super::{SECOND, busy, free, handover::MS};
use crate::{
    lock::{LockGuard, LockRequest, wait_queue::LocalQueues},
    store::{Fault, LockMode, Store, faulty},
};

fn with_room(store: &Store, most: usize) -> LockRequest {
    store.lock("x").max_waiters(most).wait(60 * SECOND)
}

fn waiting(store: &Store) -> usize {
    store.extension::<LocalQueues>().waiting(&("x".into(), LockMode::Exclusive))
}

/// Whoever is first asks the store, and waits when that has said that it is busy. Another one has come meanwhile.
#[tokio::test(start_paused = true)]
async fn who_asks_for_all_needs_room_too() {
    let (store, faults) = faulty();
    let other = store.as_another_process();
    let held = other.lock("x").acquire().await.unwrap();
    faults.set("acquire", Fault::Slow(10 * MS), 1);
    let asks = crate::store::spawn(with_room(&store, 1).acquire());
    tokio::time::sleep(MS).await;
    let waits = crate::store::spawn(with_room(&store, 1).acquire());
    tokio::time::sleep(MS).await;
    let started = Instant::now();
    let told = busy(asks.await.unwrap());
    assert!(told.waited.is_some() && started.elapsed() < SECOND, "{told:?}");
    assert_eq!(waiting(&store), 1);
    busy(with_room(&store, 1).acquire().now_or_never().expect("it is full"));
    tokio::time::sleep(MS).await;
    let told = busy(store.as_another_process().lock("x").acquire().await);
    assert_eq!(told.queue_length, 1, "the process has one place, for the one who waits");
    assert!(!waits.is_finished());
    held.release().await;
    let next = tokio::time::timeout(10 * MS, waits).await.expect("it is told of the offer");
    drop(next.unwrap().unwrap());
    drop(free(&store).await);
}

#[tokio::test(start_paused = true)]
async fn where_nobody_may_wait_nobody_does() {
    let (store, faults) = faulty();
    let here = with_room(&store, 0).acquire().await.expect("who need not wait needs no room");
    busy(with_room(&store, 0).acquire().now_or_never().expect("it is held here"));
    here.release().await;
    let held = store.as_another_process().lock("x").acquire().await.unwrap();
    let started = Instant::now();
    for reads in [false, true] {
        let request = with_room(&store, 0);
        let request = if reads { request.shared() } else { request };
        let told = busy(request.acquire().await);
        assert!(told.waited.is_some() && !told.lease_remaining.is_zero(), "{told:?}");
    }
    assert_eq!(started.elapsed().as_secs(), 0);
    let places = faults.seen("release");
    assert!(store.shutdown(SECOND).await);
    assert_eq!(faults.seen("release"), places, "no place was taken for who may not wait");
    let told = busy(store.as_another_process().lock("x").acquire().await);
    assert_eq!(told.queue_length, 0);
    held.release().await;
    drop(free(&store).await);
}

/// Notes whether the mutex of the lines was free: another executor may run anything as it is woken.
struct Looks(Arc<LocalQueues>, Mutex<Vec<bool>>);

impl Wake for Looks {
    fn wake(self: Arc<Self>) {
        self.1.lock().push(!self.0.is_locked());
    }
}

/// One who waits, looked at once, by something that is woken as it runs.
fn polled_once(request: LockRequest, looks: &Arc<Looks>) -> impl Future + use<> {
    let mut waits = Box::pin(request.acquire());
    let waker = Arc::clone(looks).into();
    assert!(waits.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    waits
}

/// Its time is over, and it has not looked yet: it is told by whoever takes it out of the line.
#[tokio::test(start_paused = true)]
async fn whose_time_is_over_is_woken_when_the_lines_are_free() {
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
        let looks = Arc::new(Looks(store.extension(), Mutex::default()));
        let held = store.lock("x").acquire().await.unwrap();
        let waits = polled_once(store.lock("x").wait(MS), &looks);
        tokio::time::advance(2 * MS).await;
        assert_eq!(*looks.1.lock(), [true], "by its timer");
        takes_out(&store, held);
        assert_eq!(*looks.1.lock(), [true, true]);
        drop(waits);
    }
}

/// It has lined up behind the holder, and the keeper that stands in the store's line for it came later.
#[tokio::test(start_paused = true)]
async fn who_leaves_is_heard_by_whoever_keeps_its_place_now() {
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
        busy(stranger.lock("x").acquire().await).queue_length,
        1,
        "its process stands in line for it"
    );
    waits.abort();
    tokio::time::sleep(5 * MS).await;
    assert_eq!(
        busy(stranger.lock("x").acquire().await).queue_length,
        0,
        "its place is kept for nobody"
    );
    assert!(store.shutdown(100 * MS).await);
    next.release().await;
    drop(free(&store).await);
}

/// Nobody waits beyond it, whatever is under way when they come.
#[tokio::test(start_paused = true)]
async fn never_more_wait_than_may() {
    for most in 0..4 {
        let (store, faults) = faulty();
        let held = store.as_another_process().lock("x").acquire().await.unwrap();
        faults.set("acquire", Fault::Late(3 * MS), usize::MAX);
        let mut all = Vec::new();
        for _ in 0..8 {
            all.push(crate::store::spawn(with_room(&store, most).acquire()));
            tokio::time::sleep(MS).await;
        }
        tokio::time::sleep(20 * MS).await;
        let still = all.iter().filter(|one| !one.is_finished()).count();
        assert_eq!((still, waiting(&store)), (most, most));
        held.release().await;
        let mut served = 0;
        for one in all {
            served += usize::from(one.await.unwrap().is_ok());
        }
        assert_eq!(served, most);
        drop(free(&store).await);
    }
}

/// It is one lock, whatever they want of it.
#[tokio::test(start_paused = true)]
async fn those_of_all_modes_have_one_room() {
    let store = Store::memory();
    let with_room = || with_room(&store, 2);
    let held = store.as_another_process().lock("x").acquire().await.unwrap();
    let writer = crate::store::spawn(with_room().acquire());
    let reader = crate::store::spawn(with_room().shared().acquire());
    tokio::time::sleep(MS).await;
    let started = Instant::now();
    for refused in [with_room(), with_room().shared(), with_room().permits(3)] {
        busy(refused.acquire().await);
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
    drop(free(&store).await);
}
