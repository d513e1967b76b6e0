//! Grants that are answered when the lease may be over already: nobody is let in by them, and they are given back.

use std::{fmt::Debug, time::Duration};

use tokio::time::Instant;

use super::{
    SECOND, free,
    handover::MS,
    seam::{enter, gate},
};
use crate::{
    error::ErrorKind,
    gate::{Verdict, fake::FakeView},
    lock::{AcquireError, LockRequest, ReleaseStatus},
    store::{Fault, Store, faulty},
};

const LEASE: Duration = Duration::from_millis(100);

/// Within the deadline of a call, and beyond the lease.
const SLOW: Fault = Fault::Slow(Duration::from_millis(150));

fn short(store: &Store) -> LockRequest {
    store.lock("x").lease(LEASE)
}

#[track_caller]
fn came_too_late<T: Debug>(outcome: Result<T, AcquireError>) {
    let Err(AcquireError::Fault(error)) = outcome else { panic!("{outcome:?}") };
    assert_eq!(error.kind(), ErrorKind::Timeout);
}

/// SAFETY: somebody else has it by then.
#[tokio::test(start_paused = true)]
async fn who_asks_once_is_not_let_in_beside_another() {
    let (store, faults) = faulty();
    faults.set("acquire", SLOW, 1);
    let asked = crate::store::spawn(short(&store).acquire());
    tokio::time::sleep(LEASE + 10 * MS).await;
    let next = store.as_another_process().lock("x").acquire().await.expect("the lease has ended");
    came_too_late(asked.await.unwrap());
    assert_eq!(next.release().await, ReleaseStatus::Released, "the late undo has taken nothing");
}

#[tokio::test(start_paused = true)]
async fn it_is_given_back() {
    let (store, faults) = faulty();
    faults.set("acquire", SLOW, 1);
    came_too_late(short(&store).acquire().await);
    drop(free(&store).await);
    assert!(faults.seen("release") >= 1, "nobody knows that there is nothing left");
}

#[tokio::test(start_paused = true)]
async fn who_waits_asks_again() {
    let (store, faults) = faulty();
    faults.set("acquire", SLOW, 1);
    let guard = short(&store).wait(SECOND).acquire().await.expect("it is free");
    assert!(!guard.remaining().is_zero());
    assert_eq!(guard.release().await, ReleaseStatus::Released);
    drop(free(&store).await);
}

/// The confirmation of an offer is late, and so is the call that gives back and asks for the next.
#[tokio::test(start_paused = true)]
async fn who_stands_in_line_stays_there() {
    for step in ["acquire", "pass"] {
        let (store, faults) = faulty();
        let holder = if step == "pass" { store.clone() } else { store.as_another_process() };
        let held = short(&holder).strict_order().acquire().await.expect("it is free");
        let waiting = short(&store).strict_order().wait(SECOND);
        let waiting = crate::store::spawn(async move {
            let guard = waiting.acquire().await.expect("in time");
            (guard.remaining(), guard.release().await)
        });
        tokio::time::sleep(MS).await;
        faults.set(step, SLOW, 1);
        assert_eq!(held.release().await, ReleaseStatus::Released);
        let (remaining, released) = waiting.await.unwrap();
        assert!(!remaining.is_zero(), "{step}");
        assert_eq!((faults.left(step), released), (0, ReleaseStatus::Released), "{step}");
        drop(free(&store).await);
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_always_late_is_away() {
    let (store, faults) = faulty();
    faults.set("acquire", SLOW, usize::MAX);
    let started = Instant::now();
    came_too_late(short(&store).wait(60 * SECOND).acquire().await);
    assert!(started.elapsed() < 2 * SECOND, "{:?}", started.elapsed());
    came_too_late(short(&store).wait(60 * SECOND).shared().acquire().await);
}

/// The first of them, and those that come in behind it.
#[tokio::test(start_paused = true)]
async fn readers_are_let_in_while_it_is_sure() {
    for (first, behind) in [(SLOW, 0), (Fault::Slow(MS), 4)] {
        let (store, faults) = faulty();
        let held = store.as_another_process().lock("x").acquire().await.unwrap();
        let readers = (0..5).map(|_| {
            let reader = short(&store).shared().wait(2 * SECOND);
            crate::store::spawn(async move { reader.acquire().await.expect("in time").remaining() })
        });
        let readers = Vec::from_iter(readers);
        tokio::time::sleep(MS).await;
        faults.set("acquire", first, 1);
        held.release().await;
        while faults.left("acquire") > 0 {
            tokio::time::sleep(MS / 4).await;
        }
        faults.set("acquire", SLOW, behind);
        for reader in readers {
            assert!(!reader.await.unwrap().is_zero(), "{first:?}");
        }
        assert_eq!(faults.left("acquire"), 0);
        drop(free(&store).await);
    }
}

/// By one call, and one after the other.
#[tokio::test(start_paused = true)]
async fn several_are_had_while_all_are_sure() {
    for step in ["acquire_all", "acquire"] {
        let (store, faults) = faulty();
        faults.set(step, SLOW, 1);
        came_too_late(store.locks(["x", "y"]).lease(LEASE).acquire().await);
        assert_eq!(faults.left(step), 0);
        assert!(store.shutdown(SECOND).await);
        let both = store.as_another_process().locks(["x", "y"]).acquire().await;
        both.expect("nothing was kept").release().await;
    }
}

/// As who waits for one lock does.
#[tokio::test(start_paused = true)]
async fn who_waits_for_several_asks_again() {
    let (store, faults) = faulty();
    faults.set("acquire_all", SLOW, 1);
    let both = store.locks(["x", "y"]).lease(LEASE).wait(60 * SECOND).acquire().await;
    assert_eq!(both.expect("they are free").release().await, ReleaseStatus::Released);
    assert_eq!(faults.left("acquire_all"), 0);
}

/// The grant was in time, and the answer about its replicas is not.
#[tokio::test(start_paused = true)]
async fn who_waits_for_replicas_is_not_let_in_beside_another() {
    let (store, faults) = faulty();
    faults.set("replicated", SLOW, 1);
    // Nobody prolongs it meanwhile.
    let asked = crate::store::spawn(store.lock("x").fixed_lease(LEASE).min_replicas(1).acquire());
    tokio::time::sleep(LEASE + 10 * MS).await;
    let next = store.as_another_process().lock("x").acquire().await.expect("the lease has ended");
    assert_eq!(next.release().await, ReleaseStatus::Released);
    came_too_late(asked.await.unwrap());
    assert_eq!(faults.left("replicated"), 0);
    drop(free(&store).await);
}

#[tokio::test(start_paused = true)]
async fn a_writer_that_steps_down_too_late_is_no_reader() {
    let (store, faults) = faulty();
    let guard = short(&store).acquire().await.expect("it is free");
    faults.set("downgrade", SLOW, 1);
    came_too_late(guard.downgrade().await);
    drop(free(&store).await);
}

#[tokio::test(start_paused = true)]
async fn a_request_is_told_that_the_store_is_away() {
    let (store, faults) = faulty();
    faults.set("acquire", SLOW, 1);
    let entered = enter(&gate(&store).lease(LEASE), &mut FakeView::new("POST")).await;
    assert!(matches!(entered, Verdict::Answer(reply) if reply.status == 503));
    drop(free(&store).await);
}
