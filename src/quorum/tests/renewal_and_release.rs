//! Renewal, loss and release of quorum locks.

use tokio::time::Instant;

use super::*;
use crate::{ReleaseStatus, store::LockLoss};

#[tokio::test(start_paused = true)]
async fn lock_without_renewing_majority_is_lost_before_lease_end() {
    let rig = TestQuorum::new(5);
    let guard = rig.acquire().await.unwrap();
    let started = Instant::now();
    rig.fail_nodes(&[0, 2, 3], BackendFault::Unavailable);
    assert_eq!(guard.lost().await, LockLoss::Lapsed);
    assert!(started.elapsed() < LEASE, "{:?}", started.elapsed());
    assert_eq!(guard.remaining(), Duration::ZERO);
    rig.clear_faults();
    // A lost lock stays lost.
    tokio::time::sleep(LEASE * 2).await;
    assert_eq!(guard.loss(), Some(LockLoss::Lapsed));
    assert_eq!(guard.release().await, ReleaseStatus::AlreadyLost);
    rig.assert_all_free().await;
}

/// The remaining leases are not renewed after the loss.
#[tokio::test(start_paused = true)]
async fn lost_lock_blocks_no_other_holder() {
    let rig = TestQuorum::new(3);
    let guard = rig.acquire().await.unwrap();
    rig.fail_nodes(&[0, 1], BackendFault::Unavailable);
    assert_eq!(guard.lost().await, LockLoss::Lapsed);
    rig.clear_faults();
    rig.assert_all_free().await;
    drop(guard);
}

/// A node without leases was restarted without its data.
#[tokio::test(start_paused = true)]
async fn lost_nodes_are_reacquired_until_a_majority_is_lost() {
    let rig = TestQuorum::new(5);
    let guard = rig.acquire().await.unwrap();
    for round in 0..4 {
        rig.delete_leases(&guard, &[round, (round + 1) % 5]).await;
        tokio::time::sleep(LEASE).await;
        assert_eq!(guard.loss(), None, "round {round}");
        assert_eq!(rig.lease_count(&guard), 5, "round {round}");
    }
    let started = Instant::now();
    rig.delete_leases(&guard, &[0, 1, 4]).await;
    assert_eq!(guard.lost().await, LockLoss::Taken);
    assert!(started.elapsed() <= LEASE / 3 + ms(50), "{:?}", started.elapsed());
    rig.assert_all_free().await;
    drop(guard);
}

/// After a pause longer than its lease, the process finds the lock lost, although every node is
/// available and free.
#[tokio::test(start_paused = true)]
async fn paused_holder_finds_its_lock_lost_for_good() {
    let rig = TestQuorum::new(3);
    let guard = rig.acquire().await.unwrap();
    // No task runs during this time.
    tokio::time::advance(LEASE * 2).await;
    assert_eq!(guard.loss(), Some(LockLoss::Lapsed));
    tokio::time::sleep(LEASE).await;
    assert_eq!(guard.loss(), Some(LockLoss::Lapsed));
    rig.assert_all_free().await;
    drop(guard);
}

#[tokio::test(start_paused = true)]
async fn max_hold_also_ends_leases_of_late_nodes() {
    let rig = TestQuorum::new(5);
    rig.fail_nodes(&[0, 1], BackendFault::Unavailable);
    let request = rig.quorum.lock("x").lease(LEASE).max_hold(LEASE * 4);
    let guard = request.acquire().await.unwrap();
    let started = Instant::now();
    tokio::time::sleep(LEASE / 2).await;
    rig.clear_faults();
    assert_eq!(guard.lost().await, LockLoss::HeldTooLong);
    let elapsed = started.elapsed();
    assert!(elapsed > LEASE * 4 - ms(100) && elapsed <= LEASE * 4 + ms(10), "{elapsed:?}");
    rig.assert_all_free().await;
    drop(guard);
}

#[tokio::test(start_paused = true)]
async fn fixed_lease_is_not_renewed() {
    let rig = TestQuorum::new(3);
    let guard = rig.quorum.lock("x").fixed_lease(LEASE).acquire().await.unwrap();
    let started = Instant::now();
    assert_eq!(guard.lost().await, LockLoss::HeldTooLong);
    assert!(started.elapsed() < LEASE);
    assert!(rig.faults.iter().all(|faults| faults.call_count("renew") == 0));
}

#[tokio::test(start_paused = true)]
async fn release_reports_the_result_of_the_majority() {
    let rig = TestQuorum::new(3);
    let guard = rig.acquire().await.unwrap();
    // The third vote arrives.
    tokio::task::yield_now().await;
    assert_eq!(rig.lease_count(&guard), 3);
    rig.fail_nodes(&[0], BackendFault::NeverReplies);
    let started = Instant::now();
    assert_eq!(guard.release().await, ReleaseStatus::Released);
    assert_eq!(started.elapsed(), Duration::ZERO);
    rig.clear_faults();
    let guard = rig.acquire().await.unwrap();
    rig.fail_nodes(&[0, 1], BackendFault::Unavailable);
    assert_eq!(guard.release().await, ReleaseStatus::Unknown);
    rig.clear_faults();
    rig.assert_all_free().await;
    let guard = rig.acquire().await.unwrap();
    tokio::task::yield_now().await;
    rig.delete_leases(&guard, &[0, 1]).await;
    assert_eq!(guard.release().await, ReleaseStatus::AlreadyLost);
    rig.assert_all_free().await;
}

#[tokio::test(start_paused = true)]
async fn dropped_release_frees_all_nodes() {
    for polls in 0..4 {
        let rig = TestQuorum::new(3);
        let guard = rig.acquire().await.unwrap();
        rig.faults[0].set("release", BackendFault::SlowReply(ms(1)), 1);
        rig.faults[1].set("release", BackendFault::SlowReply(ms(2)), 1);
        let mut release = Box::pin(guard.release());
        for _ in 0..polls {
            poll_once(&mut release).await;
            tokio::time::advance(ms(1)).await;
        }
        drop(release);
        rig.assert_all_free().await;
    }
}

/// A guard may be dropped outside of any runtime.
#[test]
fn guard_dropped_without_a_runtime_is_released() {
    let runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = { runtime }.enable_all().start_paused(true).build().unwrap();
    let (rig, guard) = runtime.block_on(async {
        let rig = TestQuorum::new(3);
        let guard = rig.acquire().await.unwrap();
        (rig, guard)
    });
    drop(guard);
    runtime.block_on(rig.assert_all_free());
}

/// A lost lease is excluded from the remaining time at once, even before a task has noticed the
/// loss.
#[tokio::test(start_paused = true)]
async fn node_that_lost_its_lease_does_not_count() {
    let rig = TestQuorum::new(3);
    let guard = rig.acquire().await.unwrap();
    // All nodes have granted a lease, not only the majority.
    tokio::time::sleep(ms(1)).await;
    rig.fail_nodes(&[2], BackendFault::Unavailable);
    tokio::time::sleep(LEASE / 2).await;
    let hold = guard.quorum_hold();
    let remaining = |node| {
        let hold_state = hold.hold_state_of(node).expect("it has it still");
        hold_state.valid_until().saturating_duration_since(Instant::now())
    };
    let (first, last) = (remaining(0), remaining(2));
    assert!(last < first, "{first:?} {last:?}");
    hold.hold_state_of(0).expect("it has it still").lease.mark_lost(LockLoss::Taken);
    assert_eq!(guard.remaining(), last);
    drop(guard);
}
