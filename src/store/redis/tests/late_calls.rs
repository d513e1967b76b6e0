//! What comes too late: a release after the lease, a renewal after a stall, a holder whose cable was
//! pulled. Nothing that is late touches what is somebody else's by then.

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

/// A fixed lease of 100 ms, and a release at about its end: just before, at, and just after it.
/// Whether it came too late.
async fn release_near_lease_end(store: &Store, other: &Store, name: &str, after: Duration) -> bool {
    let first = acquire_with_retries(&store.lock(name).fixed_lease(100 * MILLISECOND)).await;
    let got = Instant::now();
    let waiter = crate::store::spawn(other.lock(name).wait(20 * SECOND).acquire());
    tokio::time::sleep_until((got + after).into()).await;
    let (fence, asked) = (first.fence(), got.elapsed());
    let released = first.release().await;
    let next = waiter.await.expect("no panic").expect("it is served");
    assert!(next.fence() > fence, "{name}: {released:?}");
    if released == ReleaseStatus::Released {
        // The server counts whole milliseconds.
        assert!(asked <= 101 * MILLISECOND, "{name}: it was not in time, {asked:?}");
    }
    // A stranger sees that the late release has not taken the next one's.
    let stranger = store.as_another_process().lock(name).acquire().await;
    assert!(stranger.is_err(), "{name}: {released:?}");
    assert_eq!(next.release().await, ReleaseStatus::Released, "{name}: {released:?}");
    released != ReleaseStatus::Released
}

#[tokio::test]
async fn release_racing_lease_end_does_not_release_next_holder() {
    let server = ServerProcess::start().await;
    let (store, other) =
        (server.store_with_long_timeout().await, server.store_with_long_timeout().await);
    let mut late = 0;
    for round in 0..5 {
        let races = (0..24).map(|n: u32| {
            let (store, other) = (&store, &other);
            async move {
                let name = format!("{round}-{n}");
                release_near_lease_end(store, other, &name, 88 * MILLISECOND + n * MILLISECOND)
                    .await
            }
        });
        late += join_all(races).await.into_iter().filter(|late| *late).count();
    }
    println!("figure: fewest releases too late, of 120: {late}");
    assert!(late > 0, "all came in time");
    assert!(store.shutdown(RELEASE_LIMIT).await && other.shutdown(RELEASE_LIMIT).await);
    assert_eq!(server.remaining_keys().await, [""; 0]);
}

/// The renewal is on its way when the lock is given back, and the server runs the one just
/// before the other.
#[tokio::test]
async fn renewal_in_flight_at_release_does_not_revive_lock() {
    let server = ServerProcess::start().await;
    let proxy = LossyProxy::to(server.port()).await;
    let (store, other) =
        (proxy.store_with_long_timeout().await, server.store_with_long_timeout().await);
    let guard = store.lock("x").lease(5 * SECOND).acquire().await.expect("it is free");
    let (copy, lease) = (guard.held_lock(), Arc::clone(guard.lease().expect("its own")));
    proxy.set_partitioned(true);
    let sent = async || lease.renewing.load(Ordering::Acquire);
    wait_until("a renewal to be sent", sent).await;
    let released = crate::store::spawn(guard.release());
    wait_until("the release to be under way", async || lease.is_closed()).await;
    proxy.set_partitioned(false);
    assert_eq!(released.await.expect("no panic"), ReleaseStatus::Released);
    let next = other.lock("x").acquire().await.expect("it was given back");
    let answered = async || !lease.renewing.load(Ordering::Acquire);
    wait_until("the renewal to be answered", answered).await;
    assert_eq!(copy.loss(), None, "it was given back, not lost");
    assert_eq!(next.release().await, ReleaseStatus::Released);
    assert!(store.shutdown(RELEASE_LIMIT).await && other.shutdown(RELEASE_LIMIT).await);
    assert_eq!(server.remaining_keys().await, [""; 0]);
}

/// It stops answering for longer than a lease: holders stop by themselves, while it is silent.
#[tokio::test]
async fn server_stall_past_lease_reports_loss_during_stall() {
    let server = ServerProcess::start().await;
    let store = server.connect_store().await;
    let guard = store.lock("x").lease(SECOND).acquire().await.unwrap();
    let got = Instant::now();
    server.freeze();
    let loss = guard.lost().await;
    let told = got.elapsed();
    assert!(guard.remaining().is_zero());
    server.resume();
    assert_eq!(loss, LockLoss::Lapsed);
    println!(
        "figure: longest until a loss in a stall is told, of a second's lease: {} ms",
        told.as_millis()
    );
    assert!(told > 700 * MILLISECOND, "it holds for as long as it is sure: {told:?}");
    wait_until_usable(&store).await;
    assert_eq!(guard.release().await, ReleaseStatus::AlreadyLost);
    let next = store.lock("x").wait(5 * SECOND).acquire().await.unwrap();
    assert_eq!(next.release().await, ReleaseStatus::Released);
}

/// So long a pause of this process is a part of the lease that the stall leaves, in which it does not renew.
const MAX_PROCESS_PAUSE: Duration = Duration::from_millis(300);

/// Its outcome, and the longest time for which it was not given a processor meanwhile.
async fn measure_longest_pause<T>(case: impl Future<Output = T>) -> (T, Duration) {
    let mut longest = Duration::ZERO;
    let looks = async {
        loop {
            let before = Instant::now();
            tokio::time::sleep(10 * MILLISECOND).await;
            longest = longest.max(before.elapsed());
        }
    };
    let done = tokio::select! {
        done = case => done,
        () = looks => unreachable!("it looks for ever"),
    };
    (done, longest)
}

async fn run_short_freeze_case() -> Result<(), String> {
    const LOCKS: usize = 200;
    let server = ServerProcess::start().await;
    // Calls fall into the stall, and nothing shorter is an outage.
    let builder = Store::builder(&server.url()).call_timeout(600 * MILLISECOND);
    let store = builder.connect().await.unwrap();
    // Together, and so are their renewals.
    let names = (0..LOCKS).map(|n| n.to_string());
    let requests: Vec<_> =
        names.map(|name| store.lock(name.as_str()).lease(2400 * MILLISECOND)).collect();
    let held: Vec<LockGuard> = join_all(requests.iter().map(acquire_with_retries)).await;
    // The first renewals fall into it, or are due when it ends.
    tokio::time::sleep(600 * MILLISECOND).await;
    server.freeze();
    tokio::time::sleep(700 * MILLISECOND).await;
    server.resume();
    wait_until_usable(&store).await;
    let before = server.count_script_calls().await;
    tokio::time::sleep(1200 * MILLISECOND).await;
    let calls = server.count_script_calls().await - before;
    println!("figure: calls for {LOCKS} locks after the stall {calls}");
    // Two rounds of two batches, more where they were taken apart.
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

/// It is silent for a part of the lease: nothing is lost, and those who could not renew do not storm it. A case in which the
/// machine has made a pause of its own is made again.
#[tokio::test]
async fn short_freeze_loses_no_locks_and_causes_no_call_storm() {
    for left in (0..5).rev() {
        let (lost, pause) = measure_longest_pause(run_short_freeze_case()).await;
        match lost {
            Ok(()) => return,
            Err(wrong) => {
                assert!(left > 0 && pause > MAX_PROCESS_PAUSE, "{wrong}; paused for {pause:?}");
            }
        }
    }
}

/// No reset, no answer: the holder is told by its own clock before anybody else can have the lock.
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
        let told = Instant::now();
        assert_eq!(loss, LockLoss::Lapsed, "round {round}");
        let (back, next, began) = waiter.await.expect("no panic");
        assert!(told < began, "round {round}: {:?} too late", told - began);
        println!("figure: lowest margin to the next holder {} ms", (began - told).as_millis());
        assert!(next.fence() > guard.fence());
        // What was under way arrives now: renewals, and the release of what was lost.
        let released = crate::store::spawn(guard.release());
        proxy.set_partitioned(false);
        wait_until_usable(&store).await;
        assert_eq!(released.await.unwrap(), ReleaseStatus::AlreadyLost);
        assert!(store.shutdown(5 * SECOND).await);
        assert!(!next.remaining().is_zero());
        assert_eq!(next.release().await, ReleaseStatus::Released, "round {round}");
        other = back;
    }
}
