//! Late calls: a release after its lease, a renewal after a stall, a partitioned holder. None of
//! them affects the next holder.

use std::{
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use futures_util::future::join_all;

use super::{
    RELEASE_LIMIT, SECOND, acquire_with_retries, lossy_proxy::LossyProxy,
    server_process::ServerProcess, wait_until, wait_until_usable,
};
use crate::{
    lock::{LockGuard, ReleaseStatus},
    store::{LockLoss, Store},
};

const MILLISECOND: Duration = Duration::from_millis(1);

/// Releases a fixed lease of 100 ms just before, at or just after its end. Returns true if the
/// release was too late.
async fn release_near_lease_end(store: &Store, other: &Store, name: &str, after: Duration) -> bool {
    let first = acquire_with_retries(&store.lock(name).fixed_lease(100 * MILLISECOND)).await;
    let granted_at = Instant::now();
    let waiter = crate::store::spawn(other.lock(name).wait(20 * SECOND).acquire());
    tokio::time::sleep_until((granted_at + after).into()).await;
    let (fence, elapsed) = (first.fence(), granted_at.elapsed());
    let released = first.release().await;
    let next = waiter.await.expect("no panic").expect("it is served");
    assert!(next.fence() > fence, "{name}: {released:?}");
    if released == ReleaseStatus::Released {
        // The server's clock has whole milliseconds.
        assert!(elapsed <= 101 * MILLISECOND, "{name}: it was not in time, {elapsed:?}");
    }
    // The late release has not released the lock of the next holder.
    let third = store.as_another_process().lock(name).acquire().await;
    assert!(third.is_err(), "{name}: {released:?}");
    assert_eq!(next.release().await, ReleaseStatus::Released, "{name}: {released:?}");
    released != ReleaseStatus::Released
}

#[tokio::test]
async fn release_racing_lease_end_does_not_release_next_holder() {
    let server = ServerProcess::start().await;
    let (store, other) =
        (server.store_with_long_timeout().await, server.store_with_long_timeout().await);
    let mut late_count = 0;
    for round in 0..5 {
        let races = (0..24).map(|n: u32| {
            let (store, other) = (&store, &other);
            async move {
                let name = format!("{round}-{n}");
                release_near_lease_end(store, other, &name, 88 * MILLISECOND + n * MILLISECOND)
                    .await
            }
        });
        late_count += join_all(races).await.into_iter().filter(|is_late| *is_late).count();
    }
    println!("figure: fewest releases too late, of 120: {late_count}");
    assert!(late_count > 0, "all came in time");
    assert!(store.shutdown(RELEASE_LIMIT).await && other.shutdown(RELEASE_LIMIT).await);
    assert_eq!(server.remaining_keys().await, [""; 0]);
}

/// The renewal is in flight at the release, and the server runs it just before the release.
#[tokio::test]
async fn renewal_in_flight_at_release_does_not_revive_lock() {
    let server = ServerProcess::start().await;
    let proxy = LossyProxy::to(server.port()).await;
    let (store, other) =
        (proxy.store_with_long_timeout().await, server.store_with_long_timeout().await);
    let guard = store.lock("x").lease(5 * SECOND).acquire().await.expect("it is free");
    let (held, lease) = (guard.held_lock(), Arc::clone(guard.lease().expect("its own")));
    proxy.set_partitioned(true);
    let is_renewing = async || lease.renewing.load(Ordering::Acquire);
    wait_until("a renewal to be sent", is_renewing).await;
    let released = crate::store::spawn(guard.release());
    wait_until("the release to be under way", async || lease.is_closed()).await;
    proxy.set_partitioned(false);
    assert_eq!(released.await.expect("no panic"), ReleaseStatus::Released);
    let next = other.lock("x").acquire().await.expect("the lock is released");
    let is_renewed = async || !lease.renewing.load(Ordering::Acquire);
    wait_until("the renewal to be answered", is_renewed).await;
    assert_eq!(held.loss(), None, "a released lock is not lost");
    assert_eq!(next.release().await, ReleaseStatus::Released);
    assert!(store.shutdown(RELEASE_LIMIT).await && other.shutdown(RELEASE_LIMIT).await);
    assert_eq!(server.remaining_keys().await, [""; 0]);
}

/// The server stops answering for longer than a lease. Holders detect the loss during the stall, by
/// their own clocks.
#[tokio::test]
async fn server_stall_past_lease_reports_loss_during_stall() {
    let server = ServerProcess::start().await;
    let store = server.connect_store().await;
    let guard = store.lock("x").lease(SECOND).acquire().await.unwrap();
    let granted_at = Instant::now();
    server.freeze();
    let loss = guard.lost().await;
    let reported_after = granted_at.elapsed();
    assert!(guard.remaining().is_zero());
    server.resume();
    assert_eq!(loss, LockLoss::Lapsed);
    println!(
        "figure: longest until a loss in a stall is reported, lease of a second: {} ms",
        reported_after.as_millis()
    );
    assert!(
        reported_after > 700 * MILLISECOND,
        "it holds for as long as it is sure: {reported_after:?}"
    );
    wait_until_usable(&store).await;
    assert_eq!(guard.release().await, ReleaseStatus::AlreadyLost);
    let next = store.lock("x").wait(5 * SECOND).acquire().await.unwrap();
    assert_eq!(next.release().await, ReleaseStatus::Released);
}

/// A failed case is repeated only if this process paused for longer. The lease outlasts the stall
/// and a shorter pause.
const MAX_PROCESS_PAUSE: Duration = Duration::from_millis(300);

/// Returns the outcome of `case`, and the longest time for which this process did not run
/// meanwhile.
async fn measure_longest_pause<T>(case: impl Future<Output = T>) -> (T, Duration) {
    let mut longest = Duration::ZERO;
    let measure = async {
        loop {
            let before = Instant::now();
            tokio::time::sleep(10 * MILLISECOND).await;
            longest = longest.max(before.elapsed());
        }
    };
    let output = tokio::select! {
        output = case => output,
        () = measure => unreachable!("the measurement has no end"),
    };
    (output, longest)
}

async fn run_short_freeze_case() -> Result<(), String> {
    const LOCKS: usize = 200;
    let server = ServerProcess::start().await;
    // Calls fall into the stall, and anything shorter is no outage.
    let builder = Store::builder(&server.url()).call_timeout(600 * MILLISECOND);
    let store = builder.connect().await.unwrap();
    // Acquired together, so that renewals are batched.
    let names = (0..LOCKS).map(|n| n.to_string());
    let requests: Vec<_> =
        names.map(|name| store.lock(name.as_str()).lease(2400 * MILLISECOND)).collect();
    let held: Vec<LockGuard> = join_all(requests.iter().map(acquire_with_retries)).await;
    // The first renewals fall into the stall, or are due when it ends.
    tokio::time::sleep(600 * MILLISECOND).await;
    server.freeze();
    tokio::time::sleep(700 * MILLISECOND).await;
    server.resume();
    wait_until_usable(&store).await;
    let before = server.count_script_calls().await;
    tokio::time::sleep(1200 * MILLISECOND).await;
    let calls = server.count_script_calls().await - before;
    println!("figure: calls for {LOCKS} locks after the stall {calls}");
    // Two rounds of two batches, and more where batches were split.
    if !(2..=30).contains(&calls) {
        return Err(format!("{calls} calls for {LOCKS} locks"));
    }
    for guard in held {
        if guard.remaining().is_zero() {
            return Err("lost, although the stall was shorter than a lease".to_owned());
        }
        let released = guard.release().await;
        if released != ReleaseStatus::Released {
            return Err(format!("{released:?}"));
        }
    }
    Ok(())
}

/// The server is silent for a part of the lease. No lease is lost, and delayed renewals cause no
/// burst of calls. A case during which the machine paused this process is repeated.
#[tokio::test]
async fn short_freeze_loses_no_locks_and_causes_no_call_storm() {
    for retries_left in (0..5).rev() {
        let (outcome, pause) = measure_longest_pause(run_short_freeze_case()).await;
        match outcome {
            Ok(()) => return,
            Err(failure) => {
                assert!(
                    retries_left > 0 && pause > MAX_PROCESS_PAUSE,
                    "{failure}; paused for {pause:?}"
                );
            }
        }
    }
}

/// No reset and no reply: the holder detects the loss by its own clock, before the lock has another
/// holder.
#[tokio::test]
async fn partitioned_holder_reports_loss_before_next_grant() {
    let server = ServerProcess::start().await;
    let proxy = LossyProxy::to(server.port()).await;
    let store = Store::builder(&proxy.url()).call_timeout(SECOND / 2).connect().await.unwrap();
    let mut other = server.store_with_long_timeout().await;
    for round in 0..2 {
        let guard = store.lock("x").lease(SECOND).wait(5 * SECOND).acquire().await.unwrap();
        let waiter = crate::store::spawn(async move {
            let next = other.lock("x").wait(20 * SECOND).acquire().await.expect("it is served");
            (other, next, Instant::now())
        });
        tokio::time::sleep(400 * MILLISECOND).await;
        proxy.set_partitioned(true);
        let loss = guard.lost().await;
        let reported_at = Instant::now();
        assert_eq!(loss, LockLoss::Lapsed, "round {round}");
        let (returned_store, next, granted_at) = waiter.await.expect("no panic");
        assert!(reported_at < granted_at, "round {round}: {:?} too late", reported_at - granted_at);
        println!(
            "figure: lowest margin to the next holder {} ms",
            (granted_at - reported_at).as_millis()
        );
        assert!(next.fence() > guard.fence());
        // Calls in flight arrive now: renewals, and the release of the lost lease.
        let released = crate::store::spawn(guard.release());
        proxy.set_partitioned(false);
        wait_until_usable(&store).await;
        assert_eq!(released.await.unwrap(), ReleaseStatus::AlreadyLost);
        assert!(store.shutdown(5 * SECOND).await);
        assert!(!next.remaining().is_zero());
        assert_eq!(next.release().await, ReleaseStatus::Released, "round {round}");
        other = returned_store;
    }
}
