//! Renewal, loss, release.

use tokio::time::Instant;

use super::*;
use crate::{ReleaseStatus, store::LockLoss};

#[tokio::test(start_paused = true)]
async fn without_a_majority_to_renew_it_it_is_lost_before_its_leases_end() {
    let rig = Rig::new(5);
    let guard = rig.acquire().await.unwrap();
    let started = Instant::now();
    rig.fail(&[0, 2, 3], Fault::Away);
    assert_eq!(guard.lost().await, LockLoss::Lapsed);
    assert!(started.elapsed() < LEASE, "{:?}", started.elapsed());
    assert_eq!(guard.remaining(), Duration::ZERO);
    rig.mend();
    // Nothing un-loses it.
    tokio::time::sleep(LEASE * 2).await;
    assert_eq!(guard.loss(), Some(LockLoss::Lapsed));
    assert_eq!(guard.release().await, ReleaseStatus::AlreadyLost);
    rig.is_clean().await;
}

/// What is left of it is not renewed for a holder that has lost it.
#[tokio::test(start_paused = true)]
async fn a_lost_lock_keeps_nobody_out() {
    let rig = Rig::new(3);
    let guard = rig.acquire().await.unwrap();
    rig.fail(&[0, 1], Fault::Away);
    assert_eq!(guard.lost().await, LockLoss::Lapsed);
    rig.mend();
    rig.is_clean().await;
    drop(guard);
}

/// A node that was restarted empty.
#[tokio::test(start_paused = true)]
async fn nodes_that_have_lost_it_are_asked_again_and_three_of_five_are_the_end() {
    let rig = Rig::new(5);
    let guard = rig.acquire().await.unwrap();
    for round in 0..4 {
        rig.forget(&guard, &[round, (round + 1) % 5]).await;
        tokio::time::sleep(LEASE).await;
        assert_eq!(guard.loss(), None, "round {round}");
        assert_eq!(rig.held_by(&guard), 5, "round {round}");
    }
    let started = Instant::now();
    rig.forget(&guard, &[0, 1, 4]).await;
    assert_eq!(guard.lost().await, LockLoss::Taken);
    assert!(started.elapsed() <= LEASE / 3 + ms(50), "{:?}", started.elapsed());
    rig.is_clean().await;
    drop(guard);
}

/// Paused for longer than its lease, the process finds on waking that it is lost, although every node is
/// there and free.
#[tokio::test(start_paused = true)]
async fn a_holder_that_was_asleep_is_told_and_nothing_mends_it() {
    let rig = Rig::new(3);
    let guard = rig.acquire().await.unwrap();
    // Nobody runs meanwhile.
    tokio::time::advance(LEASE * 2).await;
    assert_eq!(guard.loss(), Some(LockLoss::Lapsed));
    tokio::time::sleep(LEASE).await;
    assert_eq!(guard.loss(), Some(LockLoss::Lapsed));
    rig.is_clean().await;
    drop(guard);
}

#[tokio::test(start_paused = true)]
async fn its_longest_time_is_its_end_on_nodes_that_came_later_too() {
    let rig = Rig::new(5);
    rig.fail(&[0, 1], Fault::Away);
    let request = rig.quorum.lock("x").lease(LEASE).max_hold(LEASE * 4);
    let guard = request.acquire().await.unwrap();
    let started = Instant::now();
    tokio::time::sleep(LEASE / 2).await;
    rig.mend();
    assert_eq!(guard.lost().await, LockLoss::HeldTooLong);
    let took = started.elapsed();
    assert!(took > LEASE * 4 - ms(100) && took <= LEASE * 4 + ms(10), "{took:?}");
    rig.is_clean().await;
    drop(guard);
}

#[tokio::test(start_paused = true)]
async fn a_fixed_lease_is_not_renewed() {
    let rig = Rig::new(3);
    let guard = rig.quorum.lock("x").fixed_lease(LEASE).acquire().await.unwrap();
    let started = Instant::now();
    assert_eq!(guard.lost().await, LockLoss::HeldTooLong);
    assert!(started.elapsed() < LEASE);
    assert!(rig.faults.iter().all(|faults| faults.seen("renew") == 0));
}

#[tokio::test(start_paused = true)]
async fn a_release_says_what_a_majority_says() {
    let rig = Rig::new(3);
    let guard = rig.acquire().await.unwrap();
    // The third one comes in.
    tokio::task::yield_now().await;
    assert_eq!(rig.held_by(&guard), 3);
    rig.fail(&[0], Fault::Silence);
    let started = Instant::now();
    assert_eq!(guard.release().await, ReleaseStatus::Released);
    assert_eq!(started.elapsed(), Duration::ZERO);
    rig.mend();
    let guard = rig.acquire().await.unwrap();
    rig.fail(&[0, 1], Fault::Away);
    assert_eq!(guard.release().await, ReleaseStatus::Unknown);
    rig.mend();
    rig.is_clean().await;
    let guard = rig.acquire().await.unwrap();
    tokio::task::yield_now().await;
    rig.forget(&guard, &[0, 1]).await;
    assert_eq!(guard.release().await, ReleaseStatus::AlreadyLost);
    rig.is_clean().await;
}

#[tokio::test(start_paused = true)]
async fn a_dropped_release_gives_back_all() {
    for polls in 0..4 {
        let rig = Rig::new(3);
        let guard = rig.acquire().await.unwrap();
        rig.faults[0].set("release", Fault::Slow(ms(1)), 1);
        rig.faults[1].set("release", Fault::Slow(ms(2)), 1);
        let mut release = Box::pin(guard.release());
        for _ in 0..polls {
            is_done(&mut release).await;
            tokio::time::advance(ms(1)).await;
        }
        drop(release);
        rig.is_clean().await;
    }
}

/// The guard may be dropped where there is no runtime.
#[test]
fn a_guard_can_be_dropped_anywhere() {
    let runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = { runtime }.enable_all().start_paused(true).build().unwrap();
    let (rig, guard) = runtime.block_on(async {
        let rig = Rig::new(3);
        let guard = rig.acquire().await.unwrap();
        (rig, guard)
    });
    drop(guard);
    runtime.block_on(rig.is_clean());
}

/// It is taken out before it is reckoned who is left, whether or not anybody has looked for that yet.
#[tokio::test(start_paused = true)]
async fn a_node_that_has_said_no_is_not_counted_on() {
    let rig = Rig::new(3);
    let guard = rig.acquire().await.unwrap();
    // All of them have it, not only those who were enough.
    tokio::time::sleep(ms(1)).await;
    rig.fail(&[2], Fault::Away);
    tokio::time::sleep(LEASE / 2).await;
    let held = guard.held();
    let left = |at| {
        let facts = held.facts_of(at).expect("it has it still");
        facts.valid_until().saturating_duration_since(Instant::now())
    };
    let (first, last) = (left(0), left(2));
    assert!(last < first, "{first:?} {last:?}");
    held.facts_of(0).expect("it has it still").lease.mark_lost(LockLoss::Taken);
    assert_eq!(guard.remaining(), last);
    drop(guard);
}
