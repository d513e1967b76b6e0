//! Acquiring: who votes, who is late, who is away.

use futures_util::FutureExt as _;
use tokio::time::Instant;

use super::*;
use crate::ReleaseStatus;

#[tokio::test(start_paused = true)]
async fn one_at_a_time_has_it_on_every_node() {
    let rig = Rig::new(5);
    let guard = rig.acquire().await.unwrap();
    tokio::task::yield_now().await;
    assert_eq!(rig.taken().await, [0, 1, 2, 3, 4]);
    let Err(AcquireError::Busy(busy)) = rig.acquire().await else { panic!("two have it") };
    assert!(
        busy.lease_remaining > LEASE / 2 && busy.lease_remaining <= LEASE && busy.waited.is_none(),
        "{busy:?}"
    );
    assert_eq!(guard.release().await, ReleaseStatus::Released);
    rig.is_clean().await;
    assert!(rig.acquire().await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn those_that_hang_are_not_waited_for_unless_they_decide() {
    let rig = Rig::new(5);
    rig.fail(&[0, 2], Fault::Silence);
    let started = Instant::now();
    let guard = rig.acquire().await.unwrap();
    assert_eq!(started.elapsed(), Duration::ZERO);
    rig.mend();
    assert_eq!(guard.release().await, ReleaseStatus::Released);
    rig.fail(&[0, 2, 4], Fault::Silence);
    let started = Instant::now();
    assert!(matches!(rig.acquire().await, Err(AcquireError::Fault(_))));
    assert_eq!(started.elapsed(), PATIENCE);
    rig.mend();
    rig.is_clean().await;
}

#[tokio::test(start_paused = true)]
async fn whoever_can_win_no_more_is_told_at_once() {
    let rig = Rig::new(5);
    rig.fail(&[0, 1], Fault::Slow(ms(200)));
    let others = Store::quorum(rig.stores[2..].iter().cloned()).unwrap();
    let other = others.lock("x").lease(LEASE).acquire().await.unwrap();
    tokio::task::yield_now().await;
    let started = Instant::now();
    assert!(matches!(rig.acquire().await, Err(AcquireError::Busy(_))));
    assert_eq!(started.elapsed(), Duration::ZERO);
    assert_eq!(other.release().await, ReleaseStatus::Released);
    rig.mend();
    rig.is_clean().await;
}

/// Also before it has answered: the undo comes after what it undoes.
#[tokio::test(start_paused = true)]
async fn a_success_that_comes_after_the_refusal_is_given_back() {
    let rig = Rig::new(3);
    rig.faults[0].set("acquire", Fault::Slow(ms(200)), 1);
    rig.fail(&[1, 2], Fault::Away);
    assert!(matches!(rig.acquire().await, Err(AcquireError::Fault(_))));
    rig.mend();
    rig.is_clean().await;
}

#[tokio::test(start_paused = true)]
async fn a_success_that_comes_after_the_grant_belongs_to_the_guard() {
    let rig = Rig::new(5);
    for at in [3, 4] {
        rig.faults[at].set("acquire", Fault::Slow(ms(200)), 1);
    }
    let guard = rig.acquire().await.unwrap();
    tokio::time::sleep(ms(210)).await;
    // So it can lose two of those that had voted at first.
    rig.fail(&[0, 1], Fault::Away);
    tokio::time::sleep(LEASE * 2).await;
    assert_eq!(guard.loss(), None);
    rig.mend();
    assert_eq!(guard.release().await, ReleaseStatus::Released);
    rig.is_clean().await;
}

#[tokio::test(start_paused = true)]
async fn a_success_that_comes_after_the_release_is_given_back() {
    let rig = Rig::new(5);
    for at in [3, 4] {
        rig.faults[at].set("acquire", Fault::Slow(ms(200)), 1);
    }
    let guard = rig.acquire().await.unwrap();
    assert_eq!(guard.release().await, ReleaseStatus::Released);
    rig.is_clean().await;
}

/// Wherever its future is dropped.
#[tokio::test(start_paused = true)]
async fn a_dropped_acquire_leaves_nothing() {
    let faults = [None, Some(Fault::Slow(ms(1))), Some(Fault::Late(ms(1))), Some(Fault::Silence)];
    for fault in faults {
        let mut ends = 0;
        for polls in 0..40 {
            let rig = Rig::with_clocks((0..5).map(|at| {
                let clock = Clock::manual();
                // So far apart that every fence has to be written back.
                clock.advance(ms(at));
                clock
            }));
            for at in 0..5 {
                let step = if at % 2 == 0 { "acquire" } else { "raise_fence" };
                if let Some(fault) = fault {
                    rig.faults[at].set(step, fault, 1);
                }
            }
            let mut acquire = Box::pin(rig.quorum.lock("x").lease(LEASE).wait(ms(20)).acquire());
            for _ in 0..polls {
                if is_done(&mut acquire).await {
                    ends += 1;
                    break;
                }
                let hangs = matches!(fault, Some(Fault::Silence));
                tokio::time::advance(ms(if hangs { 20 } else { 1 })).await;
            }
            drop(acquire);
            for faults in &rig.faults {
                faults.set("acquire", Fault::Away, 0);
            }
            rig.is_clean().await;
        }
        assert!(ends > 0, "it is never polled to its end");
    }
}

/// A process that stood still between its call and the answers. A loss is told of a little after the end: nobody is
/// granted anything in between.
#[tokio::test(start_paused = true)]
async fn what_is_over_when_it_is_granted_is_given_back() {
    let sure = Rig::new(3).acquire().await.unwrap().remaining();
    for (still, granted) in [(sure - ms(1), true), (sure, false), (sure + ms(4), false)] {
        let rig = Rig::new(3);
        for faults in &rig.faults {
            faults.set("acquire", Fault::Slow(ms(1)), 1);
        }
        let mut acquire = Box::pin(rig.acquire());
        assert!(!is_done(&mut acquire).await);
        tokio::time::advance(still).await;
        let acquired = acquire.await;
        assert_eq!(acquired.is_ok(), granted, "{still:?}: {acquired:?}");
        drop(acquired);
        rig.is_clean().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_waiter_has_it_when_it_is_free() {
    let rig = Rig::new(3);
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

/// While a majority is away too: it may come back within the wait.
#[tokio::test(start_paused = true)]
async fn a_waiter_outlasts_an_outage() {
    let rig = Rig::new(3);
    rig.fail(&[0, 1], Fault::Away);
    let mut waiter = Box::pin(rig.quorum.lock("x").lease(LEASE).wait(LEASE).acquire());
    assert!(tokio::time::timeout(ms(500), &mut waiter).await.is_err());
    rig.mend();
    assert!(waiter.await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn nothing_is_asked_before_it_is_awaited() {
    let rig = Rig::new(3);
    drop(rig.quorum.lock("x").acquire());
    assert!(rig.faults.iter().all(|faults| faults.seen("acquire") == 0));
    let mut acquire = Box::pin(rig.quorum.lock("x").acquire());
    assert!(acquire.as_mut().now_or_never().is_some());
}
