//! Shared locks: which readers and writers may hold the lock together, and in which order they
//! wait.

use super::{
    lock_mode_steps::{renewal_command_as, try_acquire_command_as, wait_command_as},
    on_every_store,
    store_harness::{LONG_TIME, SHORT_TIME, StoreHarness, new_token, test_key},
};
use crate::store::backend::{
    AcquireCommand, AcquireReply,
    LockMode::{self, Exclusive, Permits, Shared},
    LockToken, NodeId, OFFER_TIMEOUT, ReleaseOutcome, SPARE_FENCES,
};

on_every_store!(
    each_reader_has_its_own_lease,
    repeated_shared_acquire_grants_larger_fence,
    new_reader_queues_behind_waiting_writer,
    consecutive_waiters_of_one_mode_enter_together,
    timed_out_writer_admits_readers_behind_it,
    shared_holder_cannot_upgrade,
);

async fn each_reader_has_its_own_lease(rig: &StoreHarness) {
    let (key, short, long, writer) = (test_key(), new_token(), new_token(), new_token());
    rig.acquire_with_lease(Shared, &key, &long, SHORT_TIME * 3).await;
    rig.acquire_with_lease(Shared, &key, &short, SHORT_TIME).await;
    let renewed = rig.renew(vec![renewal_command_as(Exclusive, &key, &long, LONG_TIME)]).await;
    assert_eq!(renewed, [false], "another mode is another hold");
    rig.advance_past(SHORT_TIME).await;
    let items =
        [&long, &short].map(|token| renewal_command_as(Shared, &key, token, SHORT_TIME * 2));
    assert_eq!(rig.renew(items.into()).await, [true, false], "a renewal extends no other lease");
    assert_eq!(rig.release_as(Shared, &key, &short).await, ReleaseOutcome::AlreadyExpired);
    assert!(rig.expect_busy(&key, &writer).await <= SHORT_TIME * 2);
    rig.advance_past(SHORT_TIME * 2).await;
    rig.acquire_exclusive(&key, &writer).await;
}

async fn repeated_shared_acquire_grants_larger_fence(rig: &StoreHarness) {
    let (key, a, b) = (test_key(), new_token(), new_token());
    rig.acquire_as(Shared, &key, &a).await;
    let first = rig.acquire_as(Shared, &key, &b).await;
    let second = rig.acquire_as(Shared, &key, &b).await;
    assert!(second > first + SPARE_FENCES, "{second} after {first}");
    rig.release_as(Shared, &key, &a).await;
    assert_eq!(rig.release_as(Shared, &key, &b).await, ReleaseOutcome::Released);
    rig.acquire_exclusive(&key, &new_token()).await;
}

async fn new_reader_queues_behind_waiting_writer(rig: &StoreHarness) {
    let (key, reader, writer, late) = (test_key(), new_token(), new_token(), new_token());
    rig.acquire_as(Shared, &key, &reader).await;
    let first = rig.join_queue(&key, &writer).await;
    assert!(rig.expect_busy_as(Shared, &key, &late).await > SHORT_TIME);
    assert!(rig.join_queue_as(Shared, &key, &late).await > first);
    rig.release_as(Shared, &key, &reader).await;
    rig.expect_busy_as(Shared, &key, &late).await;
    rig.acquire_exclusive(&key, &writer).await;
    rig.release(&key, &writer).await;
    rig.acquire_as(Shared, &key, &late).await;
}

/// Joins the queue with these modes in order. Returns the tokens.
pub(super) async fn join_queue_in_order<const N: usize>(
    rig: &StoreHarness,
    modes: [LockMode; N],
) -> [LockToken; N] {
    let tokens = [(); N].map(|()| new_token());
    for (mode, token) in modes.into_iter().zip(&tokens) {
        rig.join_queue_as(mode, &test_key(), token).await;
    }
    tokens
}

/// The release admits all of them. Each later operation also advances the queue; but if each
/// admitted only a few, one would not suffice for this number.
async fn consecutive_waiters_of_one_mode_enter_together(rig: &StoreHarness) {
    for mode in [Shared, Permits(7), Permits(9)] {
        let (key, holder) = (test_key(), new_token());
        rig.acquire_exclusive(&key, &holder).await;
        let waiters = join_queue_in_order(rig, [mode; 7]).await;
        let [writer] = join_queue_in_order(rig, [Exclusive]).await;
        assert_eq!(rig.release(&key, &holder).await, ReleaseOutcome::Released);
        match rig.acquire(wait_command_as(Exclusive, &key, &writer)).await {
            AcquireReply::Busy { queue_length: 1, lease_remaining, .. } => {
                assert!(lease_remaining <= OFFER_TIMEOUT, "{lease_remaining:?}");
            }
            other => panic!("{mode:?}: {other:?}"),
        }
        for token in waiters.iter().rev() {
            rig.acquire_as(mode, &key, token).await;
        }
        for token in &waiters {
            rig.expect_busy(&key, &writer).await;
            assert_eq!(rig.release_as(mode, &key, token).await, ReleaseOutcome::Released);
        }
        rig.acquire_exclusive(&key, &writer).await;
        assert_eq!(rig.release(&key, &writer).await, ReleaseOutcome::Released);
    }
}

async fn timed_out_writer_admits_readers_behind_it(rig: &StoreHarness) {
    let (key, reader, writer) = (test_key(), new_token(), new_token());
    rig.acquire_as(Shared, &key, &reader).await;
    rig.acquire(AcquireCommand {
        max_wait: Some(SHORT_TIME),
        ..wait_command_as(Exclusive, &key, &writer)
    })
    .await;
    let [a, b] = join_queue_in_order(rig, [Shared, Shared]).await;
    rig.advance_past(SHORT_TIME).await;
    // No wake-up was sent. The first reader that polls is admitted, even if it is not the first in
    // the queue.
    match rig.acquire(wait_command_as(Shared, &key, &b)).await {
        AcquireReply::Granted { queue_length: 0, .. } => {}
        other => panic!("{other:?}"),
    }
    match rig.acquire(try_acquire_command_as(Exclusive, &key, &writer)).await {
        AcquireReply::Busy { queue_length: 0, lease_remaining, .. } => {
            assert!(lease_remaining > SHORT_TIME);
        }
        other => panic!("{other:?}"),
    }
    rig.acquire_as(Shared, &key, &a).await;
}

async fn shared_holder_cannot_upgrade(rig: &StoreHarness) {
    let (key, node) = (test_key(), NodeId::new());
    let (reader, writer) = (LockToken::new(&node), LockToken::new(&node));
    rig.acquire_as(Shared, &key, &reader).await;
    assert!(rig.expect_busy(&key, &writer).await > SHORT_TIME);
    // Its own token does not help either.
    assert!(rig.expect_busy(&key, &reader).await > SHORT_TIME);
    assert_eq!(rig.release_as(Shared, &key, &reader).await, ReleaseOutcome::Released);
    rig.acquire_exclusive(&key, &writer).await;
}
