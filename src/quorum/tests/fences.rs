//! Growth of fences across all majorities.

use std::time::Duration;

use super::*;
use crate::ReleaseStatus;

/// Creates a quorum whose clocks differ by hours, and with them the fences that its nodes grant.
fn quorum_with_skewed_clocks(nodes: u64) -> (Vec<Clock>, TestQuorum) {
    let clocks: Vec<_> = (0..nodes).map(|_| Clock::manual()).collect();
    for (index, clock) in (0..nodes).zip(&clocks) {
        clock.advance(Duration::from_secs(3600 * ((index * 7) % nodes)));
    }
    let rig = TestQuorum::with_clocks(clocks.iter().cloned());
    (clocks, rig)
}

#[tokio::test(start_paused = true)]
async fn fences_grow_across_all_majorities() {
    let (_clocks, rig) = quorum_with_skewed_clocks(5);
    let mut last = 0;
    let mut rng_state = 7u64;
    for round in 0..200 {
        rng_state = rng_state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let one = usize::try_from(rng_state >> 33).unwrap() % 5;
        let two = (one + 1 + usize::try_from(rng_state >> 40).unwrap() % 4) % 5;
        rig.fail_nodes(&[one, two], BackendFault::Unavailable);
        let guard = rig.acquire().await.unwrap();
        assert!(guard.fence() > last, "round {round} without {one} and {two}: {last}");
        last = guard.fence();
        assert_eq!(guard.release().await, ReleaseStatus::Released);
        rig.clear_faults();
    }
}

/// An acquire fails if its fence is not stored on a majority.
#[tokio::test(start_paused = true)]
async fn acquire_fails_unless_a_majority_stores_the_fence() {
    let (_clocks, rig) = quorum_with_skewed_clocks(3);
    // The node with the largest fence needs no call.
    rig.faults[0].set("raise_fence", BackendFault::Unavailable, UNLIMITED_FAULTS);
    rig.faults[1].set("raise_fence", BackendFault::Unavailable, UNLIMITED_FAULTS);
    rig.faults[2].set("raise_fence", BackendFault::Unavailable, UNLIMITED_FAULTS);
    assert!(matches!(rig.acquire().await, Err(AcquireError::Fault(_))));
    rig.clear_faults();
    rig.assert_all_free().await;
}

/// A node fails between its vote and the raise of its fence. A late vote replaces it.
#[tokio::test(start_paused = true)]
async fn late_vote_replaces_a_node_that_fails() {
    let (_clocks, rig) = quorum_with_skewed_clocks(5);
    rig.faults[0].set("raise_fence", BackendFault::Unavailable, 1);
    for node in [3, 4] {
        rig.faults[node].set("acquire", BackendFault::SlowReply(ms(100)), 1);
    }
    let guard = rig.acquire().await.unwrap();
    let fence = guard.fence();
    assert_eq!(guard.release().await, ReleaseStatus::Released);
    rig.assert_all_free().await;
    rig.fail_nodes(&[1, 2], BackendFault::Unavailable);
    assert!(rig.acquire().await.unwrap().fence() > fence);
}

/// A late node gets the fence of the grant, so that it survives a loss of data at other nodes.
#[tokio::test(start_paused = true)]
async fn late_node_receives_the_fence() {
    let clocks = [Clock::manual(), Clock::manual(), Clock::manual()];
    clocks[0].advance(Duration::from_secs(3600));
    let rig = TestQuorum::with_clocks(clocks.into_iter());
    rig.fail_nodes(&[2], BackendFault::Unavailable);
    let guard = rig.acquire().await.unwrap();
    rig.clear_faults();
    tokio::time::sleep(LEASE).await;
    assert_eq!(rig.lease_count(&guard), 3);
    let fence = guard.fence();
    drop(guard);
    rig.assert_all_free().await;
    let single = rig.stores[2].as_another_process().lock("x").acquire().await.unwrap();
    assert!(single.fence() > fence);
}
