//! Release and reacquire for another token of the same process, in one call.

use std::time::Duration;

use super::{
    lock_mode_steps::{granted_fence, queued_sequence, wait_command_as},
    on_every_store,
    store_harness::{LONG_TIME, StoreHarness, new_token, test_key, wait_command},
};
use crate::store::backend::{
    AcquireCommand, AcquireReply, Contenders,
    LockMode::{Exclusive, Permits, Shared},
    LockToken, NodeId, ReleaseOutcome, SPARE_FENCES,
};

on_every_store!(
    reacquire_with_oldest_sequence_is_granted,
    reacquire_older_than_job_is_granted,
    reacquire_by_waiter_only_replaces_its_entry,
    uncontended_lock_alternates_between_tokens,
    reacquiring_reader_waits_behind_writer,
    permit_is_reacquired_by_sibling_token,
    waiting_job_precedes_reacquire,
    unwatched_job_stays_due_after_reacquire,
);

fn two_sibling_tokens() -> [LockToken; 2] {
    let node = NodeId::new();
    [(); 2].map(|()| LockToken::new(&node))
}

/// The sequence is the estimated server time at which the local waiter arrived.
async fn reacquire_with_oldest_sequence_is_granted(rig: &StoreHarness) {
    let (key, [a, b], c, d) = (test_key(), two_sibling_tokens(), new_token(), new_token());
    let last = rig.acquire_exclusive(&key, &a).await;
    let first = rig.join_queue(&key, &c).await;
    rig.join_queue(&key, &d).await;
    // Sequences within one microsecond are made unique by running ahead of the clock.
    rig.advance_past(Duration::from_millis(5)).await;
    let call = AcquireCommand { resume_seq: first - 1, ..wait_command(&key, &b) };
    let (released, held) = rig.release_and_reacquire(&a, Exclusive, call.clone()).await;
    assert_eq!(released, ReleaseOutcome::Released);
    match held {
        AcquireReply::Granted { fence, queue_length: 2, contenders, .. } => {
            assert!(fence > last + SPARE_FENCES, "{fence} after {last}");
            assert_eq!(contenders, Contenders::from_waiter(first));
        }
        other => panic!("{other:?}"),
    }
    // A repeated call has the same effect.
    let (released, second) = rig.release_and_reacquire(&a, Exclusive, call).await;
    assert_eq!(released, ReleaseOutcome::NotFound);
    assert!(granted_fence(&second) > granted_fence(&held));
    rig.expect_busy(&key, &c).await;
    rig.release(&key, &b).await;
    rig.acquire_exclusive(&key, &c).await;
    rig.expect_busy(&key, &d).await;
}

async fn reacquire_older_than_job_is_granted(rig: &StoreHarness) {
    let (key, [a, b]) = (test_key(), two_sibling_tokens());
    rig.register_worker().await;
    rig.acquire_exclusive(&key, &a).await;
    rig.enqueue_job(&key).await;
    let job = rig.refresh_grant(&key, &a).await.unwrap().contenders;
    rig.advance_past(Duration::from_millis(5)).await;
    let earlier = AcquireCommand { resume_seq: job.first - 1, ..wait_command(&key, &b) };
    let (_, held) = rig.release_and_reacquire(&a, Exclusive, earlier).await;
    assert!(
        matches!(held, AcquireReply::Granted { queue_length: 1, contenders, .. } if contenders == job),
        "{held:?}"
    );
    let later = AcquireCommand { resume_seq: job.first + 1, ..wait_command(&key, &a) };
    let (_, reply) = rig.release_and_reacquire(&b, Exclusive, later).await;
    assert!(matches!(reply, AcquireReply::Busy { queue_length: 2, .. }), "{reply:?}");
}

/// The released token may be a waiter's, or its lease may have expired.
async fn reacquire_by_waiter_only_replaces_its_entry(rig: &StoreHarness) {
    let (key, [a, b], c, holder) = (test_key(), two_sibling_tokens(), new_token(), new_token());
    rig.acquire_exclusive(&key, &holder).await;
    let own_seq = rig.join_queue(&key, &a).await;
    rig.join_queue(&key, &c).await;
    let call = AcquireCommand { resume_seq: own_seq - 1, ..wait_command(&key, &b) };
    let (released, reply) = rig.release_and_reacquire(&a, Exclusive, call).await;
    assert_eq!(released, ReleaseOutcome::Withdrawn);
    assert_eq!(queued_sequence(&reply), own_seq - 1, "the entry keeps its sequence");
    rig.release(&key, &holder).await;
    rig.acquire_exclusive(&key, &b).await;
    rig.expect_busy(&key, &c).await;
}

async fn uncontended_lock_alternates_between_tokens(rig: &StoreHarness) {
    let (key, [a, b]) = (test_key(), two_sibling_tokens());
    let mut last = rig.acquire_exclusive(&key, &a).await;
    for round in 0..10 {
        let (token, next) = if round % 2 == 0 { (&a, &b) } else { (&b, &a) };
        let (released, held) =
            rig.release_and_reacquire(token, Exclusive, wait_command(&key, next)).await;
        assert_eq!(released, ReleaseOutcome::Released);
        assert!(granted_fence(&held) > last + SPARE_FENCES);
        last = granted_fence(&held);
    }
}

async fn reacquiring_reader_waits_behind_writer(rig: &StoreHarness) {
    let (key, [a, b], writer, other) = (test_key(), two_sibling_tokens(), new_token(), new_token());
    rig.acquire_as(Shared, &key, &a).await;
    rig.acquire_as(Shared, &key, &other).await;
    rig.join_queue(&key, &writer).await;
    let (released, reply) =
        rig.release_and_reacquire(&a, Shared, wait_command_as(Shared, &key, &b)).await;
    assert_eq!(released, ReleaseOutcome::Released);
    assert!(matches!(reply, AcquireReply::Busy { has_joined: true, .. }), "{reply:?}");
    rig.release_as(Shared, &key, &other).await;
    rig.acquire_exclusive(&key, &writer).await;
    // Without a writer, a reader is admitted beside the other readers.
    let (_, reply) =
        rig.release_and_reacquire(&writer, Exclusive, wait_command(&key, &writer)).await;
    assert!(matches!(reply, AcquireReply::Busy { .. }), "b is offered it: {reply:?}");
}

async fn permit_is_reacquired_by_sibling_token(rig: &StoreHarness) {
    let (key, [a, b], c, d) = (test_key(), two_sibling_tokens(), new_token(), new_token());
    for token in [&a, &c] {
        rig.acquire_as(Permits(2), &key, token).await;
    }
    let (_, held) =
        rig.release_and_reacquire(&a, Permits(2), wait_command_as(Permits(2), &key, &b)).await;
    granted_fence(&held);
    rig.join_queue_as(Permits(2), &key, &d).await;
    let (released, reply) =
        rig.release_and_reacquire(&b, Permits(2), wait_command_as(Permits(2), &key, &a)).await;
    assert_eq!(released, ReleaseOutcome::Released);
    assert!(matches!(reply, AcquireReply::Busy { queue_length: 1, .. }), "{reply:?}");
    rig.acquire_as(Permits(2), &key, &d).await;
    rig.expect_busy_as(Permits(2), &key, &a).await;
}

async fn waiting_job_precedes_reacquire(rig: &StoreHarness) {
    let (key, [a, b], run) = (test_key(), two_sibling_tokens(), new_token());
    rig.register_worker().await;
    rig.acquire_exclusive(&key, &a).await;
    let id = rig.enqueue_job(&key).await;
    let (released, reply) = rig.release_and_reacquire(&a, Exclusive, wait_command(&key, &b)).await;
    assert_eq!(released, ReleaseOutcome::Released);
    assert!(matches!(reply, AcquireReply::Busy { queue_length: 2, .. }), "{reply:?}");
    assert_eq!(rig.start_run(&key, &id, &run).await, 1);
    rig.finish_run(&key, &id, &run).await;
    rig.acquire_exclusive(&key, &b).await;
}

async fn unwatched_job_stays_due_after_reacquire(rig: &StoreHarness) {
    let (key, [a, b]) = (test_key(), two_sibling_tokens());
    rig.acquire_exclusive(&key, &a).await;
    rig.enqueue_job(&key).await;
    // No worker watches: live requests overtake the job, and it stays due for a later worker.
    let (_, reply) = rig.release_and_reacquire(&a, Exclusive, wait_command(&key, &b)).await;
    assert!(
        matches!(
            reply,
            AcquireReply::Granted { queue_length: 1, contenders: Contenders::NONE, .. }
        ),
        "{reply:?}"
    );
    assert_eq!(rig.poll_due(key.shard(), 10).await.locks, std::slice::from_ref(&key));
    rig.advance_past(LONG_TIME).await;
    assert_eq!(rig.poll_due(key.shard(), 10).await.locks, [key]);
}
