//! Permits: a limited number of concurrent holders.

use super::{
    lock_mode_steps::{try_acquire_command_as, wait_command_as},
    on_every_store,
    store_harness::{LONG_TIME, SHORT_TIME, StoreHarness, new_token, test_key},
};
use crate::store::backend::{
    AcquireCommand, AcquireReply,
    LockMode::{Exclusive, Permits, Shared},
    ReleaseOutcome,
};

const TWO_PERMITS: crate::store::backend::LockMode = Permits(2);

on_every_store!(
    holders_are_limited_to_permit_count,
    single_permit_is_exclusive,
    unconfirmed_permit_offer_is_freed,
    permits_exclude_other_modes,
    each_holder_counts_by_its_own_permit_limit,
    queue_entry_keeps_its_own_permit_limit,
    waiter_of_lapsed_permit_offer_keeps_sequence,
);

async fn holders_are_limited_to_permit_count(rig: &StoreHarness) {
    let (key, a, b, c) = (test_key(), new_token(), new_token(), new_token());
    rig.acquire_with_lease(TWO_PERMITS, &key, &a, SHORT_TIME).await;
    let fence = rig.acquire_as(TWO_PERMITS, &key, &b).await;
    // The remaining time is that of the lease that ends first.
    assert!(rig.expect_busy_as(TWO_PERMITS, &key, &c).await <= SHORT_TIME);
    assert!(rig.acquire_as(TWO_PERMITS, &key, &b).await > fence, "held already is not one more");
    assert_eq!(rig.release_as(TWO_PERMITS, &key, &a).await, ReleaseOutcome::Released);
    rig.acquire_as(TWO_PERMITS, &key, &c).await;
    rig.expect_busy_as(TWO_PERMITS, &key, &a).await;
}

async fn single_permit_is_exclusive(rig: &StoreHarness) {
    let (key, a, b) = (test_key(), new_token(), new_token());
    rig.acquire_as(Permits(1), &key, &a).await;
    rig.expect_busy_as(Permits(1), &key, &b).await;
    rig.release_as(Permits(1), &key, &a).await;
    rig.acquire_as(Permits(1), &key, &b).await;
}

async fn unconfirmed_permit_offer_is_freed(rig: &StoreHarness) {
    let (key, a, b, dead, c) = (test_key(), new_token(), new_token(), new_token(), new_token());
    for token in [&a, &b] {
        rig.acquire_as(TWO_PERMITS, &key, token).await;
    }
    rig.join_queue_as(TWO_PERMITS, &key, &dead).await;
    rig.release_as(TWO_PERMITS, &key, &b).await;
    rig.expect_busy_as(TWO_PERMITS, &key, &c).await;
    rig.let_offer_expire().await;
    rig.acquire_as(TWO_PERMITS, &key, &c).await;
    rig.expect_busy_as(TWO_PERMITS, &key, &dead).await;
}

async fn permits_exclude_other_modes(rig: &StoreHarness) {
    let (key, a, b) = (test_key(), new_token(), new_token());
    rig.acquire_as(TWO_PERMITS, &key, &a).await;
    rig.expect_busy_as(Shared, &key, &b).await;
    rig.expect_busy_as(Exclusive, &key, &b).await;
    assert_eq!(rig.release_as(Shared, &key, &a).await, ReleaseOutcome::NotFound, "another mode");
    rig.release_as(TWO_PERMITS, &key, &a).await;
    rig.acquire_as(Shared, &key, &b).await;
    rig.expect_busy_as(TWO_PERMITS, &key, &a).await;
}

/// As in a rolling deploy: each holder counts by its own limit.
async fn each_holder_counts_by_its_own_permit_limit(rig: &StoreHarness) {
    let (key, c) = (test_key(), new_token());
    for (n, lease) in [(2, SHORT_TIME), (2, SHORT_TIME * 2), (3, SHORT_TIME * 3)] {
        rig.acquire_with_lease(Permits(n), &key, &new_token(), lease).await;
    }
    rig.expect_busy_as(Permits(3), &key, &c).await;
    // Two permits are free only after the second lease has ended.
    let lease_remaining = rig.expect_busy_as(TWO_PERMITS, &key, &c).await;
    assert!(
        lease_remaining > SHORT_TIME && lease_remaining <= SHORT_TIME * 2,
        "{lease_remaining:?}"
    );
    rig.advance_past(SHORT_TIME).await;
    rig.expect_busy_as(TWO_PERMITS, &key, &c).await;
    rig.acquire_as(Permits(3), &key, &c).await;
}

async fn queue_entry_keeps_its_own_permit_limit(rig: &StoreHarness) {
    let (key, a, b, single, c) = (test_key(), new_token(), new_token(), new_token(), new_token());
    for token in [&a, &b] {
        rig.acquire_as(Permits(3), &key, token).await;
    }
    rig.join_queue_as(Permits(1), &key, &single).await;
    // The queue head does not fit. The waiters behind it wait, although they would fit.
    rig.join_queue_as(Permits(3), &key, &c).await;
    rig.release_as(Permits(3), &key, &a).await;
    rig.expect_busy_as(Permits(3), &key, &c).await;
    rig.expect_busy_as(Permits(1), &key, &single).await;
    rig.release_as(Permits(3), &key, &b).await;
    // It needs to be the only holder; the others count by their own limit.
    rig.acquire_as(Permits(1), &key, &single).await;
    rig.acquire_as(Permits(3), &key, &c).await;
}

async fn waiter_of_lapsed_permit_offer_keeps_sequence(rig: &StoreHarness) {
    let (key, a, b) = (test_key(), new_token(), new_token());
    let (slow, next, writer) = (new_token(), new_token(), new_token());
    for token in [&a, &b] {
        rig.acquire_as(TWO_PERMITS, &key, token).await;
    }
    let old = rig.join_queue_as(TWO_PERMITS, &key, &slow).await;
    rig.join_queue_as(TWO_PERMITS, &key, &next).await;
    rig.join_queue(&key, &writer).await;
    rig.release_as(TWO_PERMITS, &key, &a).await;
    rig.let_offer_expire().await;
    // The offer has lapsed, and its permit goes to the next waiter.
    rig.expect_busy_as(TWO_PERMITS, &key, &a).await;
    rig.acquire_as(TWO_PERMITS, &key, &next).await;
    let rejoin = AcquireCommand { resume_seq: old, ..wait_command_as(TWO_PERMITS, &key, &slow) };
    match rig.acquire(rejoin).await {
        AcquireReply::Busy { seq, queue_length: 2, lease_remaining, .. } => {
            assert_eq!(seq, old);
            assert!(lease_remaining > SHORT_TIME && lease_remaining <= LONG_TIME);
        }
        other => panic!("{other:?}"),
    }
    rig.release_as(TWO_PERMITS, &key, &b).await;
    rig.acquire_as(TWO_PERMITS, &key, &slow).await;
    rig.expect_busy(&key, &writer).await;
    assert!(matches!(
        rig.acquire(try_acquire_command_as(TWO_PERMITS, &key, &b)).await,
        AcquireReply::Busy { queue_length: 1, .. }
    ));
}
