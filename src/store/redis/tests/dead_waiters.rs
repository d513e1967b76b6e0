//! Queue entries of processes that have died.

use std::time::{Duration, Instant};

use super::{
    RELEASE_LIMIT, SECOND, cluster::acquire_command, server_process::ServerProcess,
    wait_for_queue_length,
};
use crate::{
    Key,
    lock::ReleaseStatus,
    store::{
        AcquireCommand, AcquireReply, LockMode, LockToken, OFFER_TIMEOUT, Store, backend::NodeId,
    },
};

/// Longest interval between two polls of a waiter, with its jitter.
const POLL_INTERVAL: Duration = Duration::from_millis(332);

/// Allowance for a loaded machine: far less than a lease, which no dead waiter may cost.
const LOAD_SLACK: Duration = Duration::from_secs(5);

/// Joins the queue as a process that dies then, and so never confirms an offer.
async fn join_queue_and_die(store: &Store, mode: LockMode) {
    let command = acquire_command(&Key::custom("x"), &LockToken::new(&NodeId::new()));
    let call = AcquireCommand { mode, max_wait: Some(60 * SECOND), ..command };
    let reply = store.backend().acquire(call).await.expect("the store is there");
    assert!(matches!(reply, AcquireReply::Busy { has_joined: true, .. }), "{reply:?}");
}

/// The server's clock has whole milliseconds.
const MILLISECOND: Duration = Duration::from_millis(1);

/// Returns how long a waiter behind `dead` dead ones waits after the release.
async fn wait_behind_dead(dead: u32, mode: LockMode) -> Duration {
    let server = ServerProcess::start().await;
    let (store, other) =
        (server.store_with_long_timeout().await, server.store_with_long_timeout().await);
    let held = other.lock("x").acquire().await.expect("it is free");
    for _ in 0..dead {
        join_queue_and_die(&other, mode).await;
    }
    let waiter = crate::store::spawn(store.lock("x").wait(60 * SECOND).acquire());
    wait_for_queue_length(&other, u64::from(dead) + 1).await;
    let released_at = Instant::now();
    assert_eq!(held.release().await, ReleaseStatus::Released);
    let guard = waiter.await.expect("no panic").expect("it is served");
    let waited = released_at.elapsed();
    assert_eq!(guard.release().await, ReleaseStatus::Released);
    assert!(store.shutdown(RELEASE_LIMIT).await);
    assert_eq!(server.remaining_keys().await, [""; 0]);
    println!("figure: longest wait behind {dead} dead, {mode:?} {} ms", waited.as_millis());
    waited
}

#[tokio::test]
async fn eight_dead_waiters_cost_one_offer_timeout_each() {
    let waited = wait_behind_dead(8, LockMode::Exclusive).await;
    assert!(waited + MILLISECOND >= 8 * OFFER_TIMEOUT, "{waited:?}");
    // Each offer ends between two polls, and the poll that finds it expired makes the next one.
    assert!(waited < 9 * POLL_INTERVAL + LOAD_SLACK, "{waited:?}");
}

/// All readers at the head of the queue get offers at once, which expire together. Separate offers
/// for pairs of them would take four offer timeouts. The minimum of several rounds excludes the
/// delays of a loaded machine.
#[tokio::test]
async fn dead_readers_cost_one_offer_timeout_together() {
    for mode in [LockMode::Shared, LockMode::Permits(8)] {
        let mut least = Duration::MAX;
        for _ in 0..3 {
            least = least.min(wait_behind_dead(8, mode).await);
        }
        assert!(least < 2 * OFFER_TIMEOUT + POLL_INTERVAL, "{mode:?}: {least:?}");
    }
}
