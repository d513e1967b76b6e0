//! Grants answered after their validity time: they admit no holder and are released.

use std::{fmt::Debug, time::Duration};

use tokio::time::Instant;

use super::{
    SECOND, acquire_after_shutdown,
    handover::MS,
    lock_gate::{enter_gate, new_gate},
};
use crate::{
    error::ErrorKind,
    gate::{Verdict, fake_request::FakeGateRequest},
    lock::{AcquireError, LockRequest, ReleaseStatus},
    store::{BackendFault, Store, faulty_store},
};

const LEASE: Duration = Duration::from_millis(100);

/// Shorter than the timeout of a call and longer than the lease.
const SLOWER_THAN_LEASE: BackendFault = BackendFault::SlowReply(Duration::from_millis(150));

fn short_lease_request(store: &Store) -> LockRequest {
    store.lock("x").lease(LEASE)
}

#[track_caller]
fn assert_timed_out<T: Debug>(outcome: Result<T, AcquireError>) {
    let Err(AcquireError::Fault(error)) = outcome else { panic!("{outcome:?}") };
    assert_eq!(error.kind(), ErrorKind::Timeout);
}

/// SAFETY: another process holds the lock by then.
#[tokio::test(start_paused = true)]
async fn late_grant_does_not_admit_a_second_holder() {
    let (store, faults) = faulty_store();
    faults.set("acquire", SLOWER_THAN_LEASE, 1);
    let acquiring = crate::store::spawn(short_lease_request(&store).acquire());
    tokio::time::sleep(LEASE + 10 * MS).await;
    let next = store.as_another_process().lock("x").acquire().await.expect("the lease has ended");
    assert_timed_out(acquiring.await.unwrap());
    assert_eq!(
        next.release().await,
        ReleaseStatus::Released,
        "the late undo affected the next holder"
    );
}

#[tokio::test(start_paused = true)]
async fn late_grant_is_released() {
    let (store, faults) = faulty_store();
    faults.set("acquire", SLOWER_THAN_LEASE, 1);
    assert_timed_out(short_lease_request(&store).acquire().await);
    drop(acquire_after_shutdown(&store).await);
    assert!(faults.call_count("release") >= 1, "the undo was not sent");
}

#[tokio::test(start_paused = true)]
async fn waiter_retries_after_a_late_grant() {
    let (store, faults) = faulty_store();
    faults.set("acquire", SLOWER_THAN_LEASE, 1);
    let guard = short_lease_request(&store).wait(SECOND).acquire().await.expect("it is free");
    assert!(!guard.remaining().is_zero());
    assert_eq!(guard.release().await, ReleaseStatus::Released);
    drop(acquire_after_shutdown(&store).await);
}

/// The late call confirms an offer, or it releases the lock and acquires it for the next waiter.
#[tokio::test(start_paused = true)]
async fn queued_waiter_keeps_its_entry_after_a_late_grant() {
    for step in ["acquire", "pass"] {
        let (store, faults) = faulty_store();
        let holder = if step == "pass" { store.clone() } else { store.as_another_process() };
        let held = short_lease_request(&holder).strict_order().acquire().await.expect("it is free");
        let waiting = short_lease_request(&store).strict_order().wait(SECOND);
        let waiting = crate::store::spawn(async move {
            let guard = waiting.acquire().await.expect("in time");
            (guard.remaining(), guard.release().await)
        });
        tokio::time::sleep(MS).await;
        faults.set(step, SLOWER_THAN_LEASE, 1);
        assert_eq!(held.release().await, ReleaseStatus::Released);
        let (remaining, released) = waiting.await.unwrap();
        assert!(!remaining.is_zero(), "{step}");
        assert_eq!((faults.remaining(step), released), (0, ReleaseStatus::Released), "{step}");
        drop(acquire_after_shutdown(&store).await);
    }
}

#[tokio::test(start_paused = true)]
async fn always_late_store_is_unavailable() {
    let (store, faults) = faulty_store();
    faults.set("acquire", SLOWER_THAN_LEASE, usize::MAX);
    let started = Instant::now();
    assert_timed_out(short_lease_request(&store).wait(60 * SECOND).acquire().await);
    assert!(started.elapsed() < 2 * SECOND, "{:?}", started.elapsed());
    assert_timed_out(short_lease_request(&store).wait(60 * SECOND).shared().acquire().await);
}

/// The late grant is that of the first reader, or that of the readers behind it.
#[tokio::test(start_paused = true)]
async fn readers_are_admitted_only_within_the_validity_time() {
    for (first, behind) in [(SLOWER_THAN_LEASE, 0), (BackendFault::SlowReply(MS), 4)] {
        let (store, faults) = faulty_store();
        let held = store.as_another_process().lock("x").acquire().await.unwrap();
        let readers = (0..5).map(|_| {
            let reader = short_lease_request(&store).shared().wait(2 * SECOND);
            crate::store::spawn(async move { reader.acquire().await.expect("in time").remaining() })
        });
        let readers = Vec::from_iter(readers);
        tokio::time::sleep(MS).await;
        faults.set("acquire", first, 1);
        held.release().await;
        while faults.remaining("acquire") > 0 {
            tokio::time::sleep(MS / 4).await;
        }
        faults.set("acquire", SLOWER_THAN_LEASE, behind);
        for reader in readers {
            assert!(!reader.await.unwrap().is_zero(), "{first:?}");
        }
        assert_eq!(faults.remaining("acquire"), 0);
        drop(acquire_after_shutdown(&store).await);
    }
}

/// By one call for both locks, or by one call for each.
#[tokio::test(start_paused = true)]
async fn lock_set_is_granted_only_within_the_validity_time() {
    for step in ["acquire_all", "acquire"] {
        let (store, faults) = faulty_store();
        faults.set(step, SLOWER_THAN_LEASE, 1);
        assert_timed_out(store.locks(["x", "y"]).lease(LEASE).acquire().await);
        assert_eq!(faults.remaining(step), 0);
        assert!(store.shutdown(SECOND).await);
        let both = store.as_another_process().locks(["x", "y"]).acquire().await;
        both.expect("the late grants are undone").release().await;
    }
}

/// Like a waiter for a single lock.
#[tokio::test(start_paused = true)]
async fn lock_set_waiter_retries_after_a_late_grant() {
    let (store, faults) = faulty_store();
    faults.set("acquire_all", SLOWER_THAN_LEASE, 1);
    let both = store.locks(["x", "y"]).lease(LEASE).wait(60 * SECOND).acquire().await;
    assert_eq!(both.expect("they are free").release().await, ReleaseStatus::Released);
    assert_eq!(faults.remaining("acquire_all"), 0);
}

/// The grant is in time, but the reply about its replicas is late.
#[tokio::test(start_paused = true)]
async fn late_replica_reply_does_not_admit_a_second_holder() {
    let (store, faults) = faulty_store();
    faults.set("replicated", SLOWER_THAN_LEASE, 1);
    // A fixed lease is not renewed meanwhile.
    let acquiring =
        crate::store::spawn(store.lock("x").fixed_lease(LEASE).min_replicas(1).acquire());
    tokio::time::sleep(LEASE + 10 * MS).await;
    let next = store.as_another_process().lock("x").acquire().await.expect("the lease has ended");
    assert_eq!(next.release().await, ReleaseStatus::Released);
    assert_timed_out(acquiring.await.unwrap());
    assert_eq!(faults.remaining("replicated"), 0);
    drop(acquire_after_shutdown(&store).await);
}

#[tokio::test(start_paused = true)]
async fn late_downgrade_does_not_keep_the_lock() {
    let (store, faults) = faulty_store();
    let guard = short_lease_request(&store).acquire().await.expect("it is free");
    faults.set("downgrade", SLOWER_THAN_LEASE, 1);
    assert_timed_out(guard.downgrade().await);
    drop(acquire_after_shutdown(&store).await);
}

#[tokio::test(start_paused = true)]
async fn late_grant_answers_the_request_with_503() {
    let (store, faults) = faulty_store();
    faults.set("acquire", SLOWER_THAN_LEASE, 1);
    let entered =
        enter_gate(&new_gate(&store).lease(LEASE), &mut FakeGateRequest::new("POST")).await;
    assert!(matches!(entered, Verdict::Answer(reply) if reply.status == 503));
    drop(acquire_after_shutdown(&store).await);
}
