//! Replies that are lost after the server has done what it was asked.

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

/// In strict order each release is a call that gives back and asks for the next of this process.
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

/// The confirmation of an offer is not answered: it was the lock's owner all the same.
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
    let (inside, grants) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let (mut tasks, mut proxies, mut stores) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..3 {
        let proxy = LossyProxy::to(server.port()).await;
        let store = proxy.store_with_long_timeout().await;
        for n in 0..6 {
            let (store, inside, grants) = (store.clone(), Arc::clone(&inside), Arc::clone(&grants));
            tasks.push(crate::store::spawn(async move {
                for turn in 0..10 {
                    let request = store.lock("x").wait(30 * SECOND);
                    let request = if n % 2 == 0 { request.strict_order() } else { request };
                    let guard = request.acquire().await.expect("it is served");
                    assert!(!inside.swap(true, Ordering::SeqCst), "two at once");
                    tokio::task::yield_now().await;
                    let last = grants.swap(guard.fence(), Ordering::SeqCst);
                    assert!(last < guard.fence(), "the fence went back");
                    assert!(inside.swap(false, Ordering::SeqCst));
                    if (n + turn) % 3 == 0 {
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
    let count = Arc::clone(&lost);
    let losing = crate::store::spawn(async move {
        let mut granted = [0; 3];
        for (n, proxy) in proxies.iter().enumerate().cycle() {
            // Only after a grant, so that second tries get through; and the others have had their loss.
            let now = grants.load(Ordering::SeqCst);
            if proxy.pending_cuts() == 0 && now > granted[n] {
                granted[n] = now;
                proxy.lose_next_replies(1);
                count.fetch_add(1, Ordering::SeqCst);
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    });
    let began = Instant::now();
    for task in tasks {
        task.await.unwrap();
    }
    println!("figure: 180 turns while replies are lost {} ms", began.elapsed().as_millis());
    losing.abort();
    let lost = lost.load(Ordering::SeqCst);
    println!("figure: fewest replies lost in 180 turns {lost}");
    // The last of each process may not have met a call.
    assert!(lost > 6, "{lost} replies lost");
    for store in stores {
        assert!(store.shutdown(20 * SECOND).await);
    }
    assert_eq!(server.remaining_keys().await, [""; 0]);
}

/// A future is dropped while the reply to its call is being lost: what the call has taken, although nobody was told, is
/// given back, and not left to the end of its lease.
#[tokio::test]
async fn dropped_while_a_reply_is_lost_leaves_nothing() {
    // Beside each other: a shutdown waits for what is in doubt.
    join_all(FAST_SCENARIOS.map(assert_drop_at_lost_reply_leaves_nothing)).await;
}

async fn assert_drop_at_lost_reply_leaves_nothing(way: DropScenario) {
    let server = ServerProcess::start().await;
    let proxy = LossyProxy::to(server.port()).await;
    let stranger = server.store_with_long_timeout().await;
    // A call that is sent again because the server has no scripts has run at nothing yet.
    let first =
        proxy.store_with_long_timeout().await.lock("x").acquire().await.expect("it is free");
    assert_eq!(first.release().await, ReleaseStatus::Released);
    // How often a reply was lost before it was dropped: the machine may have been slower than that, or faster.
    let (mut met, mut rounds, mut longest) = (0, 0, Duration::ZERO);
    while met == 0 {
        assert!(rounds < 30, "no reply was lost before {way:?} was dropped");
        rounds += 1;
        for (pause, lost) in POLL_PAUSES.into_iter().zip([1, 2, 1]) {
            let (lost, free) =
                drop_while_replies_are_lost(&proxy, way, &stranger, pause, lost).await;
            (met, longest) = (met + usize::from(lost), longest.max(free));
            assert_eq!(server.remaining_keys().await, [""; 0], "{way:?}");
        }
    }
    println!("figure: fewest replies lost before {way:?} was dropped {met}");
    println!("figure: longest until it was free again {} ms", longest.as_millis());
}

/// Between two polls: about as long as a call takes whose reply is lost, and longer.
const POLL_PAUSES: [Duration; 3] =
    [Duration::from_micros(300), Duration::from_millis(1), Duration::from_millis(3)];

/// So many replies are lost from the moment in which it is polled. Whether one was before it was dropped, and how long
/// afterwards the lock came free.
async fn drop_while_replies_are_lost(
    proxy: &LossyProxy,
    way: DropScenario,
    stranger: &Store,
    pause: Duration,
    lost: usize,
) -> (bool, Duration) {
    let store = proxy.store_with_long_timeout().await;
    let (met, next) = (Cell::new(false), Cell::new(None));
    // This process gives it back after three pauses; before that nobody has anything to say.
    let polls = if matches!(way, DropScenario::WaitForSameProcess) { 4 } else { 2 };
    let done = drop_after_with_observer(polls, way, &store, pause, &|moment| match moment {
        DropPhase::BeforeFirstPoll => proxy.lose_next_replies(lost),
        DropPhase::Dropped => {
            met.set(proxy.pending_cuts() < lost);
            // From this moment on: its lease is longer, so that it was given back if this one comes in.
            let next_one = stranger.lock("x").wait(RELEASE_LIMIT).acquire();
            let dropped = Instant::now();
            let came = async move { (next_one.await, dropped.elapsed()) };
            next.set(Some(crate::store::spawn(came)));
        }
    })
    .await;
    let (next, took) = next.take().expect("it was dropped").await.expect("no panic");
    let context = format!("{way:?}, polled every {pause:?}, {lost} replies lost");
    let guard = next.unwrap_or_else(|error| panic!("{context}: it is not given back: {error:?}"));
    assert_eq!(guard.release().await, ReleaseStatus::Released, "{context}");
    proxy.lose_next_replies(0);
    assert!(store.shutdown(REAL_CLOCK_UNDO_TIMEOUT).await, "{context}");
    (met.get() && !done, took)
}
