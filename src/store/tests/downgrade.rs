//! Downgrade of an exclusive hold to a shared one.

use super::{
    lock_mode_steps::{renewal_command_as, wait_command_as},
    on_every_store,
    store_harness::{LONG_TIME, StoreHarness, new_token, test_key},
};
use crate::store::backend::{
    AcquireReply,
    LockMode::{Exclusive, Permits, Shared},
    ReleaseOutcome,
};

on_every_store!(
    downgraded_hold_admits_readers,
    downgrade_admits_only_readers_at_queue_head,
    downgrade_without_exclusive_hold_fails,
    exclusive_release_ends_downgraded_hold,
);

async fn downgraded_hold_admits_readers(rig: &StoreHarness) {
    let (key, token, reader, writer) = (test_key(), new_token(), new_token(), new_token());
    rig.acquire_exclusive(&key, &token).await;
    rig.expect_busy_as(Shared, &key, &reader).await;
    assert!(rig.downgrade(&key, &token, LONG_TIME).await);
    rig.acquire_as(Shared, &key, &reader).await;
    rig.expect_busy_as(Permits(9), &key, &writer).await;
    rig.expect_busy(&key, &writer).await;
    assert_eq!(
        rig.renew(vec![renewal_command_as(Exclusive, &key, &token, LONG_TIME)]).await,
        [false]
    );
    assert_eq!(rig.renew(vec![renewal_command_as(Shared, &key, &token, LONG_TIME)]).await, [true]);
    // A shared hold cannot be upgraded.
    rig.expect_busy(&key, &token).await;
    assert_eq!(rig.release_as(Shared, &key, &token).await, ReleaseOutcome::Released);
    rig.expect_busy(&key, &writer).await;
    rig.release_as(Shared, &key, &reader).await;
    rig.acquire_exclusive(&key, &writer).await;
}

async fn downgrade_admits_only_readers_at_queue_head(rig: &StoreHarness) {
    let (key, token, writer) = (test_key(), new_token(), new_token());
    let [a, b, late] = [new_token(), new_token(), new_token()];
    rig.acquire_exclusive(&key, &token).await;
    rig.join_queue_as(Shared, &key, &a).await;
    rig.join_queue_as(Shared, &key, &b).await;
    rig.join_queue(&key, &writer).await;
    rig.join_queue_as(Shared, &key, &late).await;
    assert!(rig.downgrade(&key, &token, LONG_TIME).await);
    match rig.acquire(wait_command_as(Shared, &key, &late)).await {
        AcquireReply::Busy { queue_length: 2, .. } => {}
        other => panic!("{other:?}"),
    }
    for reader in [&b, &a] {
        rig.acquire_as(Shared, &key, reader).await;
    }
    for reader in [&a, &token, &b] {
        rig.expect_busy(&key, &writer).await;
        rig.release_as(Shared, &key, reader).await;
    }
    rig.acquire_exclusive(&key, &writer).await;
}

async fn downgrade_without_exclusive_hold_fails(rig: &StoreHarness) {
    let (key, holder, waiter, permit) = (test_key(), new_token(), new_token(), new_token());
    assert!(!rig.downgrade(&key, &holder, LONG_TIME).await, "a free lock can't be downgraded");
    rig.acquire_exclusive(&key, &holder).await;
    rig.join_queue(&key, &waiter).await;
    assert!(!rig.downgrade(&key, &waiter, LONG_TIME).await, "a queue entry can't be downgraded");
    rig.release(&key, &holder).await;
    assert!(!rig.downgrade(&key, &waiter, LONG_TIME).await, "an offer");
    rig.acquire_exclusive(&key, &waiter).await;
    assert!(!rig.downgrade(&key, &holder, LONG_TIME).await, "another one has it");
    rig.release(&key, &waiter).await;
    rig.acquire_as(Permits(2), &key, &permit).await;
    assert!(!rig.downgrade(&key, &permit, LONG_TIME).await, "a permit");
    rig.expect_busy_as(Shared, &key, &holder).await;
}

async fn exclusive_release_ends_downgraded_hold(rig: &StoreHarness) {
    let (key, token, writer) = (test_key(), new_token(), new_token());
    rig.acquire_exclusive(&key, &token).await;
    rig.downgrade(&key, &token, LONG_TIME).await;
    rig.join_queue(&key, &writer).await;
    // A caller that got no reply to its downgrade releases the exclusive hold that it knows of.
    assert_eq!(rig.release(&key, &token).await, ReleaseOutcome::Released);
    assert_eq!(rig.release(&key, &token).await, ReleaseOutcome::NotFound);
    rig.acquire_exclusive(&key, &writer).await;
    // An exclusive release has no effect on another token's hold.
    rig.release(&key, &writer).await;
    rig.acquire_as(Shared, &key, &token).await;
    assert_eq!(rig.release(&key, &writer).await, ReleaseOutcome::NotFound);
    rig.expect_busy(&key, &writer).await;
}
