//! Places of processes that have died in line.

use std::time::{Duration, Instant};

use super::{GIVEN_BACK, SECOND, cluster::ask, in_line, server::Server};
use crate::{
    Key,
    lock::ReleaseStatus,
    store::{
        AcquireCommand, AcquireReply, LockMode, LockToken, OFFER_TIMEOUT, Store, backend::NodeId,
    },
};

/// Between two looks of one who waits, with its jitter.
const LOOK: Duration = Duration::from_millis(332);

/// What a loaded machine adds: far less than a lease, which each of the dead must not cost.
const SLACK: Duration = Duration::from_secs(5);

/// A process takes a place, and dies: nobody confirms what is offered to it.
async fn dies_in_line(store: &Store, mode: LockMode) {
    let asked = ask(&Key::custom("x"), &LockToken::new(&NodeId::new()));
    let call = AcquireCommand { mode, max_wait: Some(60 * SECOND), ..asked };
    let answer = store.backend().acquire(call).await.expect("the store is there");
    assert!(matches!(answer, AcquireReply::Busy { has_joined: true, .. }), "{answer:?}");
}

/// The server counts whole ones.
const MS: Duration = Duration::from_millis(1);

/// How long a waiter behind so many dead ones stands there after the lock was given back.
async fn waited_behind(dead: u32, mode: LockMode) -> Duration {
    let server = Server::start().await;
    let (store, other) = (server.patient_store().await, server.patient_store().await);
    let held = other.lock("x").acquire().await.expect("it is free");
    for _ in 0..dead {
        dies_in_line(&other, mode).await;
    }
    let waiter = crate::store::spawn(store.lock("x").wait(60 * SECOND).acquire());
    in_line(&other, u64::from(dead) + 1).await;
    let since = Instant::now();
    assert_eq!(held.release().await, ReleaseStatus::Released);
    let guard = waiter.await.expect("no panic").expect("it is served");
    let waited = since.elapsed();
    assert_eq!(guard.release().await, ReleaseStatus::Released);
    assert!(store.shutdown(GIVEN_BACK).await);
    assert_eq!(server.left().await, [""; 0]);
    println!("figure: longest wait behind {dead} dead, {mode:?} {} ms", waited.as_millis());
    waited
}

#[tokio::test]
async fn eight_dead_waiters_cost_a_window_each() {
    let waited = waited_behind(8, LockMode::Exclusive).await;
    assert!(waited + MS >= 8 * OFFER_TIMEOUT, "{waited:?}");
    // Each offer ends between two looks, and the look that finds it ended makes the next.
    assert!(waited < 9 * LOOK + SLACK, "{waited:?}");
}

/// All of the leading run are offered it at once, and lapse together: had each two of them a window of their own it would
/// be four. What a loaded machine adds, it does not add to each of several.
#[tokio::test]
async fn dead_readers_cost_one_window_together() {
    for mode in [LockMode::Shared, LockMode::Permits(8)] {
        let mut least = Duration::MAX;
        for _ in 0..3 {
            least = least.min(waited_behind(8, mode).await);
        }
        assert!(least < 2 * OFFER_TIMEOUT + LOOK, "{mode:?}: {least:?}");
    }
}
