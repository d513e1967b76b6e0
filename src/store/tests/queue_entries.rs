//! The wait queue: order and expiry of queue entries.

use super::{
    on_every_store,
    store_harness::{
        LONG_TIME, SHORT_TIME, StoreHarness, new_token, test_key, try_acquire_command, wait_command,
    },
};
use crate::store::backend::{
    AcquireCommand, AcquireReply, LockToken, OFFER_TIMEOUT, ReleaseOutcome,
};

on_every_store!(
    waiter_of_lapsed_offer_resumes_its_sequence,
    expired_queue_entry_rejoins_at_tail,
    queue_entries_vanish_after_last_deadline,
    live_waiter_behind_expired_entries_is_not_passed,
);

/// Lets an offer to `b` lapse after `a` has released the lock. Returns the sequence of `b`.
async fn let_offer_lapse(rig: &StoreHarness, a: &LockToken, b: &LockToken) -> u64 {
    let key = test_key();
    rig.acquire_exclusive(&key, a).await;
    let seq = rig.join_queue(&key, b).await;
    rig.release(&key, a).await;
    rig.let_offer_expire().await;
    seq
}

async fn waiter_of_lapsed_offer_resumes_its_sequence(rig: &StoreHarness) {
    let (key, a, b, c, d) = (test_key(), new_token(), new_token(), new_token(), new_token());
    let old = let_offer_lapse(rig, &a, &b).await;
    rig.acquire_exclusive(&key, &c).await;
    let later = rig.join_queue(&key, &d).await;
    assert!(old < later);
    match rig.acquire(AcquireCommand { resume_seq: old, ..wait_command(&key, &b) }).await {
        AcquireReply::Busy { seq, queue_length: 2, has_joined: true, .. } => assert_eq!(seq, old),
        other => panic!("{other:?}"),
    }
    rig.release(&key, &c).await;
    rig.expect_busy(&key, &d).await;
    rig.acquire_exclusive(&key, &b).await;
}

async fn expired_queue_entry_rejoins_at_tail(rig: &StoreHarness) {
    let (key, a, b, c) = (test_key(), new_token(), new_token(), new_token());
    rig.acquire(AcquireCommand { lease: SHORT_TIME, ..try_acquire_command(&key, &a) }).await;
    let first = AcquireCommand { max_wait: Some(SHORT_TIME), ..try_acquire_command(&key, &b) };
    rig.acquire(first.clone()).await;
    let waiter_seq = rig.join_queue(&key, &c).await;
    rig.advance_past(SHORT_TIME).await;
    match rig.acquire(first).await {
        AcquireReply::Busy { seq, lease_remaining, has_joined: true, .. } => {
            assert!(seq > waiter_seq, "{seq} is not behind {waiter_seq}");
            assert!(lease_remaining <= OFFER_TIMEOUT);
        }
        other => panic!("{other:?}"),
    }
    rig.acquire_exclusive(&key, &c).await;
}

async fn queue_entries_vanish_after_last_deadline(rig: &StoreHarness) {
    let (key, a, b, c) = (test_key(), new_token(), new_token(), new_token());
    rig.enqueue_job(&key).await;
    rig.acquire_exclusive(&key, &a).await;
    rig.acquire(AcquireCommand { max_wait: Some(SHORT_TIME), ..try_acquire_command(&key, &b) })
        .await;
    rig.advance_past(SHORT_TIME).await;
    assert_eq!(rig.release(&key, &b).await, ReleaseOutcome::NotFound);
    let reply = rig.acquire(try_acquire_command(&key, &c)).await;
    assert!(matches!(reply, AcquireReply::Busy { queue_length: 1, .. }), "{reply:?}");
    assert!(rig.expect_busy(&key, &c).await > LONG_TIME / 2);
}

/// More expired entries than one operation removes.
async fn live_waiter_behind_expired_entries_is_not_passed(rig: &StoreHarness) {
    let (key, holder, token) = (test_key(), new_token(), new_token());
    rig.acquire(AcquireCommand { lease: SHORT_TIME, ..try_acquire_command(&key, &holder) }).await;
    for _ in 0..130 {
        rig.acquire(AcquireCommand {
            max_wait: Some(SHORT_TIME),
            ..try_acquire_command(&key, &new_token())
        })
        .await;
    }
    rig.join_queue(&key, &token).await;
    rig.advance_past(SHORT_TIME).await;
    rig.expect_busy(&key, &new_token()).await;
    rig.expect_busy(&key, &new_token()).await;
    rig.acquire_exclusive(&key, &token).await;
}
