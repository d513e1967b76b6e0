//! Replies that are lost after the server has run the call.

use std::{
    cell::Cell,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use futures_util::future::join_all;

use super::{
    RELEASE_LIMIT, SECOND, lossy_proxy::LossyProxy, server_process::ServerProcess,
    wait_for_queue_length,
};
use crate::{
    lock::{
        ReleaseStatus,
        tests::cancellation::{
            DropPhase, DropScenario, FAST_SCENARIOS, REAL_CLOCK_UNDO_TIMEOUT,
            drop_after_with_observer,
        },
    },
    store::Store,
};

/// In strict order, each release is one call, which also acquires for the next waiter of the
/// process.
#[tokio::test]
async fn reacquire_with_lost_reply_hands_over_once() {
    let server = ServerProcess::start().await;
    let proxy = LossyProxy::to(server.port()).await;
    let store = proxy.store_with_long_timeout().await;
    let request = || store.lock("x").strict_order().wait(20 * SECOND);
    let mut guard = request().acquire().await.unwrap();
    for _ in 0..20 {
        let waiter = crate::store::spawn(request().acquire());
        tokio::task::yield_now().await;
        let fence = guard.fence();
        proxy.lose_next_replies(1);
        assert_eq!(guard.release().await, ReleaseStatus::Released);
        guard = waiter.await.unwrap().expect("it is passed on");
        assert_eq!(proxy.pending_cuts(), 0);
        assert!(guard.fence() > fence);
    }
    assert_eq!(guard.release().await, ReleaseStatus::Released);
    assert!(store.shutdown(RELEASE_LIMIT).await);
    assert_eq!(server.remaining_keys().await, [""; 0]);
}

/// The reply to the confirmation of an offer is lost, but the lock is held.
#[tokio::test]
async fn offer_confirmation_with_lost_reply_is_repeated() {
    let server = ServerProcess::start().await;
    let proxy = LossyProxy::to(server.port()).await;
    let (store, other) =
        (proxy.store_with_long_timeout().await, server.store_with_long_timeout().await);
    for _ in 0..10 {
        let held = other.lock("x").acquire().await.unwrap();
        let waiter = crate::store::spawn(store.lock("x").wait(20 * SECOND).acquire());
        wait_for_queue_length(&other, 1).await;
        proxy.lose_next_replies(1);
        held.release().await;
        let guard = waiter.await.unwrap().expect("no self-block");
        assert_eq!(proxy.pending_cuts(), 0);
        assert_eq!(guard.release().await, ReleaseStatus::Released);
    }
}

/// Any call of three processes may lose its reply, at any time.
#[tokio::test]
async fn contenders_with_constant_reply_loss_are_all_served() {
    let server = ServerProcess::start().await;
    let (is_held, grants) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let (mut tasks, mut proxies, mut stores) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..3 {
        let proxy = LossyProxy::to(server.port()).await;
        let store = proxy.store_with_long_timeout().await;
        for n in 0..6 {
            let (store, is_held, grants) =
                (store.clone(), Arc::clone(&is_held), Arc::clone(&grants));
            tasks.push(crate::store::spawn(async move {
                for round in 0..10 {
                    let request = store.lock("x").wait(30 * SECOND);
                    let request = if n % 2 == 0 { request.strict_order() } else { request };
                    let guard = request.acquire().await.expect("it is served");
                    assert!(!is_held.swap(true, Ordering::SeqCst), "two at once");
                    tokio::task::yield_now().await;
                    let last = grants.swap(guard.fence(), Ordering::SeqCst);
                    assert!(last < guard.fence(), "the fence went back");
                    assert!(is_held.swap(false, Ordering::SeqCst));
                    if (n + round) % 3 == 0 {
                        drop(guard);
                    } else {
                        assert_eq!(guard.release().await, ReleaseStatus::Released);
                    }
                }
            }));
        }
        proxies.push(proxy);
        stores.push(store);
    }
    let lost = Arc::new(AtomicU64::new(0));
    let loss_count = Arc::clone(&lost);
    let loss_task = crate::store::spawn(async move {
        let mut granted = [0; 3];
        for (n, proxy) in proxies.iter().enumerate().cycle() {
            // Only after a grant, so that retries get through; and each process in turn.
            let now = grants.load(Ordering::SeqCst);
            if proxy.pending_cuts() == 0 && now > granted[n] {
                granted[n] = now;
                proxy.lose_next_replies(1);
                loss_count.fetch_add(1, Ordering::SeqCst);
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    });
    let started = Instant::now();
    for task in tasks {
        task.await.unwrap();
    }
    println!("figure: 180 holds while replies are lost {} ms", started.elapsed().as_millis());
    loss_task.abort();
    let lost = lost.load(Ordering::SeqCst);
    println!("figure: fewest replies lost in 180 holds {lost}");
    // The last fault of each process may not have met a call.
    assert!(lost > 6, "{lost} replies lost");
    for store in stores {
        assert!(store.shutdown(20 * SECOND).await);
    }
    assert_eq!(server.remaining_keys().await, [""; 0]);
}

/// A future is dropped while the reply to its call is being lost. A grant that was never reported
/// is released, long before its lease ends.
#[tokio::test]
async fn dropped_while_a_reply_is_lost_leaves_nothing() {
    // Concurrently, since a shutdown waits for calls in doubt.
    join_all(FAST_SCENARIOS.map(assert_drop_at_lost_reply_leaves_nothing)).await;
}

async fn assert_drop_at_lost_reply_leaves_nothing(scenario: DropScenario) {
    let server = ServerProcess::start().await;
    let proxy = LossyProxy::to(server.port()).await;
    let other = server.store_with_long_timeout().await;
    // Loads the scripts. A lost `NOSCRIPT` error would be without effect.
    let first =
        proxy.store_with_long_timeout().await.lock("x").acquire().await.expect("it is free");
    assert_eq!(first.release().await, ReleaseStatus::Released);
    // Number of replies lost before a drop. It is zero if the machine was slower or faster than the
    // pauses assume.
    let (mut losses, mut rounds, mut longest) = (0, 0, Duration::ZERO);
    while losses == 0 {
        assert!(rounds < 30, "no reply was lost before {scenario:?} was dropped");
        rounds += 1;
        for (pause, lost) in POLL_PAUSES.into_iter().zip([1, 2, 1]) {
            let (lost, released_after) =
                drop_while_replies_are_lost(&proxy, scenario, &other, pause, lost).await;
            (losses, longest) = (losses + usize::from(lost), longest.max(released_after));
            assert_eq!(server.remaining_keys().await, [""; 0], "{scenario:?}");
        }
    }
    println!("figure: fewest replies lost before {scenario:?} was dropped {losses}");
    println!("figure: longest until it was free again {} ms", longest.as_millis());
}

/// Pauses between two polls: about as long as a call whose reply is lost, and longer.
const POLL_PAUSES: [Duration; 3] =
    [Duration::from_micros(300), Duration::from_millis(1), Duration::from_millis(3)];

/// Loses `lost` replies from the first poll on, and drops the future. Returns whether a reply was
/// lost before the drop, and how long after it the lock was free.
async fn drop_while_replies_are_lost(
    proxy: &LossyProxy,
    scenario: DropScenario,
    other: &Store,
    pause: Duration,
    lost: usize,
) -> (bool, Duration) {
    let store = proxy.store_with_long_timeout().await;
    let (was_reply_lost, next) = (Cell::new(false), Cell::new(None));
    // In this scenario, the lock is released after three pauses. Before that, there is no call.
    let polls = if matches!(scenario, DropScenario::WaitForSameProcess) { 4 } else { 2 };
    let done = drop_after_with_observer(polls, scenario, &store, pause, &|phase| match phase {
        DropPhase::BeforeFirstPoll => proxy.lose_next_replies(lost),
        DropPhase::Dropped => {
            was_reply_lost.set(proxy.pending_cuts() < lost);
            // The lease is longer than this wait, so a grant proves that the lock was released.
            let request = other.lock("x").wait(RELEASE_LIMIT).acquire();
            let dropped = Instant::now();
            let acquire = async move { (request.await, dropped.elapsed()) };
            next.set(Some(crate::store::spawn(acquire)));
        }
    })
    .await;
    let (next, released_after) = next.take().expect("it was dropped").await.expect("no panic");
    let context = format!("{scenario:?}, polled every {pause:?}, {lost} replies lost");
    let guard =
        next.unwrap_or_else(|error| panic!("{context}: the lock is not released: {error:?}"));
    assert_eq!(guard.release().await, ReleaseStatus::Released, "{context}");
    proxy.lose_next_replies(0);
    assert!(store.shutdown(REAL_CLOCK_UNDO_TIMEOUT).await, "{context}");
    (was_reply_lost.get() && !done, released_after)
}
