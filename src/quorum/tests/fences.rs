//! Fences grow, whichever nodes grant them.

use std::time::Duration;

use super::*;
use crate::ReleaseStatus;

/// Clocks that differ by hours: what a node gives by itself is nothing like what another one does.
fn apart(nodes: u64) -> (Vec<Clock>, Rig) {
    let clocks: Vec<_> = (0..nodes).map(|_| Clock::manual()).collect();
    for (at, clock) in (0..nodes).zip(&clocks) {
        clock.advance(Duration::from_secs(3600 * ((at * 7) % nodes)));
    }
    let rig = Rig::with_clocks(clocks.iter().cloned());
    (clocks, rig)
}

#[tokio::test(start_paused = true)]
async fn they_grow_across_all_majorities_in_any_order() {
    let (_clocks, rig) = apart(5);
    let mut last = 0;
    let mut dice = 7u64;
    for round in 0..200 {
        dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let one = usize::try_from(dice >> 33).unwrap() % 5;
        let two = (one + 1 + usize::try_from(dice >> 40).unwrap() % 4) % 5;
        rig.fail(&[one, two], Fault::Away);
        let guard = rig.acquire().await.unwrap();
        assert!(guard.fence() > last, "round {round} without {one} and {two}: {last}");
        last = guard.fence();
        assert_eq!(guard.release().await, ReleaseStatus::Released);
        rig.mend();
    }
}

/// Who cannot tell a majority of his fence has no lock.
#[tokio::test(start_paused = true)]
async fn without_a_majority_that_knows_it_there_is_no_guard() {
    let (_clocks, rig) = apart(3);
    // The one with the fastest clock need not be told.
    rig.faults[0].set("raise_fence", Fault::Away, ALWAYS);
    rig.faults[1].set("raise_fence", Fault::Away, ALWAYS);
    rig.faults[2].set("raise_fence", Fault::Away, ALWAYS);
    assert!(matches!(rig.acquire().await, Err(AcquireError::Fault(_))));
    rig.mend();
    rig.is_clean().await;
}

/// A node fails between its vote and the writing back: the one that comes late takes its place.
#[tokio::test(start_paused = true)]
async fn a_late_vote_replaces_one_that_fails_meanwhile() {
    let (_clocks, rig) = apart(5);
    rig.faults[0].set("raise_fence", Fault::Away, 1);
    for at in [3, 4] {
        rig.faults[at].set("acquire", Fault::Slow(ms(100)), 1);
    }
    let guard = rig.acquire().await.unwrap();
    let fence = guard.fence();
    assert_eq!(guard.release().await, ReleaseStatus::Released);
    rig.is_clean().await;
    rig.fail(&[1, 2], Fault::Away);
    assert!(rig.acquire().await.unwrap().fence() > fence);
}

/// A node that comes in later is told the fence: so it is known still when others forget it.
#[tokio::test(start_paused = true)]
async fn a_node_that_comes_later_is_told_too() {
    let clocks = [Clock::manual(), Clock::manual(), Clock::manual()];
    clocks[0].advance(Duration::from_secs(3600));
    let rig = Rig::with_clocks(clocks.into_iter());
    rig.fail(&[2], Fault::Away);
    let guard = rig.acquire().await.unwrap();
    rig.mend();
    tokio::time::sleep(LEASE).await;
    assert_eq!(rig.held_by(&guard), 3);
    let fence = guard.fence();
    drop(guard);
    rig.is_clean().await;
    let alone = rig.stores[2].as_another_process().lock("x").acquire().await.unwrap();
    assert!(alone.fence() > fence);
}
