//! Server that loses its data: holders learn of the loss, and fences still grow.

use std::time::{Duration, Instant};

use futures_util::future::join_all;

use super::{SECOND, server_process::ServerProcess, wait_for_queue_length, wait_until_usable};
use crate::{
    Key,
    lock::{LockGuard, ReleaseStatus},
    store::{LockLoss, Store, key_names::KeyNames},
};

const LEASE: Duration = Duration::from_secs(9);

/// The next renewal is due after a third of a lease. Another third is for a loaded machine.
const RENEWAL_LIMIT: Duration = Duration::from_secs(6);

async fn acquire_x(store: &Store) -> LockGuard {
    store.lock("x").lease(LEASE).acquire().await.expect("it is free")
}

/// Asserts that the loss is reported in time, and that fences do not decrease.
async fn assert_holder_learns_of_loss(store: &Store, guard: LockGuard, lost_at: Instant) {
    let held = guard.held_lock();
    let loss = tokio::time::timeout(LEASE, guard.lost()).await.expect("the loss is reported");
    let reported_after = lost_at.elapsed();
    println!("figure: loss reported after {} ms", reported_after.as_millis());
    assert!(reported_after < RENEWAL_LIMIT, "{loss:?} after {reported_after:?}");
    assert_eq!(loss, LockLoss::Taken);
    assert!(held.remaining().is_zero());
    let next = store.lock("x").wait(5 * SECOND).acquire().await.expect("the lock is free");
    assert!(next.fence() > guard.fence(), "the fence went back");
    assert_eq!(guard.release().await, ReleaseStatus::AlreadyLost);
    assert!(!next.remaining().is_zero());
    assert_eq!(
        next.release().await,
        ReleaseStatus::Released,
        "the late release affected the next holder"
    );
}

#[tokio::test]
async fn holder_of_deleted_lock_learns_of_loss_at_next_renewal() {
    let holders = KeyNames::new("test").holders(&Key::custom("x"));
    let delete = ["DEL", &holders];
    let cases = [&["FLUSHALL"][..], &delete].map(async |command| {
        let server = ServerProcess::start().await;
        let store = server.store_with_long_timeout().await;
        let guard = acquire_x(&store).await;
        server.command(command).await;
        assert_holder_learns_of_loss(&store, guard, Instant::now()).await;
    });
    join_all(cases).await;
}

/// Also if the lock has a new holder meanwhile, whose lock is not affected.
#[tokio::test]
async fn next_holder_of_deleted_lock_keeps_it() {
    let server = ServerProcess::start().await;
    let (store, other) =
        (server.store_with_long_timeout().await, server.store_with_long_timeout().await);
    let guard = acquire_x(&store).await;
    server.command(&["FLUSHALL"]).await;
    let next = other.lock("x").acquire().await.expect("forgotten");
    assert!(next.fence() > guard.fence());
    assert_eq!(guard.lost().await, LockLoss::Taken);
    assert_eq!(guard.release().await, ReleaseStatus::AlreadyLost);
    assert_eq!(next.release().await, ReleaseStatus::Released);
}

/// At the first call to the new server, and not at the next renewal, after a third of a lease.
#[tokio::test]
async fn new_server_triggers_check_of_held_locks_at_once() {
    let mut server = ServerProcess::start().await;
    let store = server.store_with_long_timeout().await;
    let request = store.lock("x").lease(60 * SECOND).max_hold(600 * SECOND);
    let guard = request.acquire().await.expect("it is free");
    server.kill();
    server.restart().await;
    wait_until_usable(&store).await;
    let lost = tokio::time::timeout(10 * SECOND, guard.lost()).await;
    lost.expect("before the renewal after 20 s");
}

/// Queue entries are lost as well. Waiters join the queue again by themselves.
#[tokio::test]
async fn waiters_deleted_by_flush_rejoin_and_are_served() {
    let server = ServerProcess::start().await;
    let (store, other) =
        (server.store_with_long_timeout().await, server.store_with_long_timeout().await);
    let guard = acquire_x(&store).await;
    let waiters: Vec<_> = [&store, &other, &store.as_another_process()]
        .map(|store| crate::store::spawn(store.lock("x").wait(20 * SECOND).lease(LEASE).acquire()))
        .into();
    wait_for_queue_length(&store, 2).await;
    server.command(&["FLUSHALL"]).await;
    let flushed_at = Instant::now();
    drop(guard);
    let served = waiters.into_iter().map(|waiter| async {
        drop(waiter.await.expect("no panic").expect("it is served"));
    });
    join_all(served).await;
    let elapsed = flushed_at.elapsed();
    println!("figure: three forgotten waiters served after {} ms", elapsed.as_millis());
    assert!(elapsed < 10 * SECOND, "{elapsed:?}");
}

/// At the rate of one client on one connection, with as many spare fences as possible, fences do
/// not exceed their initial lead.
#[tokio::test]
async fn fences_stay_within_lead_of_server_clock() {
    let server = ServerProcess::start().await;
    let store = server.store_with_long_timeout().await;
    let request = || store.lock("x").handover_limits(1000, SECOND);
    let mut last = 0;
    for _ in 0..2000 {
        let guard = request().acquire().await.unwrap();
        last = guard.fence();
        guard.release().await;
    }
    let (seconds, us): (u64, u64) = server.query(&["TIME"]).await;
    let (now, lead) = (seconds * 1_000_000 + us, 600_000_000);
    assert!((now..=now + lead).contains(&last), "{last} at {now}");
    server.command(&["FLUSHALL"]).await;
    let next = request().acquire().await.unwrap();
    assert!(next.fence() > last, "{} us behind", last - next.fence());
    assert!(next.fence() >= now + lead, "{} at {now}", next.fence());
}
