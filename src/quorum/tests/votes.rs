//! Acquires by vote, with late and unavailable nodes.

use futures_util::FutureExt as _;
use tokio::time::Instant;

use super::*;
use crate::ReleaseStatus;

#[tokio::test(start_paused = true)]
async fn single_holder_has_a_lease_on_every_node() {
    let rig = TestQuorum::new(5);
    let guard = rig.acquire().await.unwrap();
    tokio::task::yield_now().await;
    assert_eq!(rig.busy_nodes().await, [0, 1, 2, 3, 4]);
    let Err(AcquireError::Busy(busy)) = rig.acquire().await else { panic!("two have it") };
    assert!(
        busy.lease_remaining > LEASE / 2 && busy.lease_remaining <= LEASE && busy.waited.is_none(),
        "{busy:?}"
    );
    assert_eq!(guard.release().await, ReleaseStatus::Released);
    rig.assert_all_free().await;
    assert!(rig.acquire().await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn hanging_nodes_are_awaited_only_if_they_decide() {
    let rig = TestQuorum::new(5);
    rig.fail_nodes(&[0, 2], BackendFault::NeverReplies);
    let started = Instant::now();
    let guard = rig.acquire().await.unwrap();
    assert_eq!(started.elapsed(), Duration::ZERO);
    rig.clear_faults();
    assert_eq!(guard.release().await, ReleaseStatus::Released);
    rig.fail_nodes(&[0, 2, 4], BackendFault::NeverReplies);
    let started = Instant::now();
    assert!(matches!(rig.acquire().await, Err(AcquireError::Fault(_))));
    assert_eq!(started.elapsed(), NODE_TIMEOUT);
    rig.clear_faults();
    rig.assert_all_free().await;
}

#[tokio::test(start_paused = true)]
async fn acquire_that_cannot_win_fails_at_once() {
    let rig = TestQuorum::new(5);
    rig.fail_nodes(&[0, 1], BackendFault::SlowReply(ms(200)));
    let others = Store::quorum(rig.stores[2..].iter().cloned()).unwrap();
    let other = others.lock("x").lease(LEASE).acquire().await.unwrap();
    tokio::task::yield_now().await;
    let started = Instant::now();
    assert!(matches!(rig.acquire().await, Err(AcquireError::Busy(_))));
    assert_eq!(started.elapsed(), Duration::ZERO);
    assert_eq!(other.release().await, ReleaseStatus::Released);
    rig.clear_faults();
    rig.assert_all_free().await;
}

/// The release is sent even before the reply to the vote, and runs after the vote.
#[tokio::test(start_paused = true)]
async fn vote_arriving_after_the_refusal_is_released() {
    let rig = TestQuorum::new(3);
    rig.faults[0].set("acquire", BackendFault::SlowReply(ms(200)), 1);
    rig.fail_nodes(&[1, 2], BackendFault::Unavailable);
    assert!(matches!(rig.acquire().await, Err(AcquireError::Fault(_))));
    rig.clear_faults();
    rig.assert_all_free().await;
}

#[tokio::test(start_paused = true)]
async fn vote_arriving_after_the_grant_joins_the_guard() {
    let rig = TestQuorum::new(5);
    for node in [3, 4] {
        rig.faults[node].set("acquire", BackendFault::SlowReply(ms(200)), 1);
    }
    let guard = rig.acquire().await.unwrap();
    tokio::time::sleep(ms(210)).await;
    // With the late votes, the lock survives the loss of two of the first.
    rig.fail_nodes(&[0, 1], BackendFault::Unavailable);
    tokio::time::sleep(LEASE * 2).await;
    assert_eq!(guard.loss(), None);
    rig.clear_faults();
    assert_eq!(guard.release().await, ReleaseStatus::Released);
    rig.assert_all_free().await;
}

#[tokio::test(start_paused = true)]
async fn vote_arriving_after_the_release_is_released() {
    let rig = TestQuorum::new(5);
    for node in [3, 4] {
        rig.faults[node].set("acquire", BackendFault::SlowReply(ms(200)), 1);
    }
    let guard = rig.acquire().await.unwrap();
    assert_eq!(guard.release().await, ReleaseStatus::Released);
    rig.assert_all_free().await;
}

/// Holds wherever the future is dropped.
#[tokio::test(start_paused = true)]
async fn dropped_acquire_leaves_nothing() {
    let faults = [
        None,
        Some(BackendFault::SlowReply(ms(1))),
        Some(BackendFault::SlowCall(ms(1))),
        Some(BackendFault::NeverReplies),
    ];
    for fault in faults {
        let mut completed = 0;
        for polls in 0..40 {
            let rig = TestQuorum::with_clocks((0..5).map(|node| {
                let clock = Clock::manual();
                // The clocks differ so much that every fence has to be raised.
                clock.advance(ms(node));
                clock
            }));
            for node in 0..5 {
                let operation = if node % 2 == 0 { "acquire" } else { "raise_fence" };
                if let Some(fault) = fault {
                    rig.faults[node].set(operation, fault, 1);
                }
            }
            let mut acquire = Box::pin(rig.quorum.lock("x").lease(LEASE).wait(ms(20)).acquire());
            for _ in 0..polls {
                if poll_once(&mut acquire).await {
                    completed += 1;
                    break;
                }
                let is_hanging = matches!(fault, Some(BackendFault::NeverReplies));
                tokio::time::advance(ms(if is_hanging { 20 } else { 1 })).await;
            }
            drop(acquire);
            for faults in &rig.faults {
                faults.set("acquire", BackendFault::Unavailable, 0);
            }
            rig.assert_all_free().await;
        }
        assert!(completed > 0, "it is never polled to its end");
    }
}

/// The process was paused between its calls and the replies. A loss is reported a little after the
/// end of the validity time, but no lock is granted in between.
#[tokio::test(start_paused = true)]
async fn grant_past_its_validity_time_is_released() {
    let validity_time = TestQuorum::new(3).acquire().await.unwrap().remaining();
    for (pause, is_granted) in
        [(validity_time - ms(1), true), (validity_time, false), (validity_time + ms(4), false)]
    {
        let rig = TestQuorum::new(3);
        for faults in &rig.faults {
            faults.set("acquire", BackendFault::SlowReply(ms(1)), 1);
        }
        let mut acquire = Box::pin(rig.acquire());
        assert!(!poll_once(&mut acquire).await);
        tokio::time::advance(pause).await;
        let acquired = acquire.await;
        assert_eq!(acquired.is_ok(), is_granted, "{pause:?}: {acquired:?}");
        drop(acquired);
        rig.assert_all_free().await;
    }
}

#[tokio::test(start_paused = true)]
async fn waiter_acquires_once_the_lock_is_free() {
    let rig = TestQuorum::new(3);
    let guard = rig.acquire().await.unwrap();
    let started = Instant::now();
    let request = rig.quorum.lock("x").lease(LEASE);
    let Err(AcquireError::Busy(busy)) = request.clone().wait(ms(500)).acquire().await else {
        panic!("two have it")
    };
    assert!(busy.waited.is_some_and(|waited| waited <= ms(500)), "{busy:?}");
    assert!(started.elapsed() <= ms(500), "{:?}", started.elapsed());
    let waiter = crate::store::spawn(request.wait(LEASE).acquire());
    tokio::time::sleep(ms(100)).await;
    let fence = guard.fence();
    drop(guard);
    let next = waiter.await.unwrap().unwrap();
    assert!(next.fence() > fence);
}

/// The wait continues during an outage of a majority, which may end in time.
#[tokio::test(start_paused = true)]
async fn waiter_outlasts_an_outage() {
    let rig = TestQuorum::new(3);
    rig.fail_nodes(&[0, 1], BackendFault::Unavailable);
    let mut waiter = Box::pin(rig.quorum.lock("x").lease(LEASE).wait(LEASE).acquire());
    assert!(tokio::time::timeout(ms(500), &mut waiter).await.is_err());
    rig.clear_faults();
    assert!(waiter.await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn request_sends_no_call_before_it_is_awaited() {
    let rig = TestQuorum::new(3);
    drop(rig.quorum.lock("x").acquire());
    assert!(rig.faults.iter().all(|faults| faults.call_count("acquire") == 0));
    let mut acquire = Box::pin(rig.quorum.lock("x").acquire());
    assert!(acquire.as_mut().now_or_never().is_some());
}
