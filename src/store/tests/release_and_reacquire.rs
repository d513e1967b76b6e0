//! Giving back and asking again for the next of the same process, in one call.

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

/// Its moment is the store's time, as its process knows it.
async fn reacquire_with_oldest_sequence_is_granted(rig: &StoreHarness) {
    let (key, [a, b], c, d) = (test_key(), two_sibling_tokens(), new_token(), new_token());
    let last = rig.acquire_exclusive(&key, &a).await;
    let first = rig.join_queue(&key, &c).await;
    rig.join_queue(&key, &d).await;
    // Who joined within a microsecond of another has a sequence that is ahead of the clock.
    rig.advance_past(Duration::from_millis(5)).await;
    let call = AcquireCommand { resume_seq: first - 1, ..wait_command(&key, &b) };
    let (gave_back, held) = rig.release_and_reacquire(&a, Exclusive, call.clone()).await;
    assert_eq!(gave_back, ReleaseOutcome::Released);
    match held {
        AcquireReply::Granted { fence, queue_length: 2, contenders: others, .. } => {
            assert!(fence > last + SPARE_FENCES, "{fence} after {last}");
            assert_eq!(others, Contenders::from_waiter(first));
        }
        other => panic!("{other:?}"),
    }
    // Twice is once.
    let (gave_back, again) = rig.release_and_reacquire(&a, Exclusive, call).await;
    assert_eq!(gave_back, ReleaseOutcome::NotFound);
    assert!(granted_fence(&again) > granted_fence(&held));
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
        matches!(held, AcquireReply::Granted { queue_length: 1, contenders: others, .. } if others == job),
        "{held:?}"
    );
    let later = AcquireCommand { resume_seq: job.first + 1, ..wait_command(&key, &a) };
    let (_, asked) = rig.release_and_reacquire(&b, Exclusive, later).await;
    assert!(matches!(asked, AcquireReply::Busy { queue_length: 2, .. }), "{asked:?}");
}

/// A place that is given up, and a lock whose time is over.
async fn reacquire_by_waiter_only_replaces_its_entry(rig: &StoreHarness) {
    let (key, [a, b], c, holder) = (test_key(), two_sibling_tokens(), new_token(), new_token());
    rig.acquire_exclusive(&key, &holder).await;
    let mine = rig.join_queue(&key, &a).await;
    rig.join_queue(&key, &c).await;
    let call = AcquireCommand { resume_seq: mine - 1, ..wait_command(&key, &b) };
    let (gave_back, asked) = rig.release_and_reacquire(&a, Exclusive, call).await;
    assert_eq!(gave_back, ReleaseOutcome::Withdrawn);
    assert_eq!(queued_sequence(&asked), mine - 1, "it stands where it came");
    rig.release(&key, &holder).await;
    rig.acquire_exclusive(&key, &b).await;
    rig.expect_busy(&key, &c).await;
}

async fn uncontended_lock_alternates_between_tokens(rig: &StoreHarness) {
    let (key, [a, b]) = (test_key(), two_sibling_tokens());
    let mut last = rig.acquire_exclusive(&key, &a).await;
    for round in 0..10 {
        let (me, next) = if round % 2 == 0 { (&a, &b) } else { (&b, &a) };
        let (gave_back, held) =
            rig.release_and_reacquire(me, Exclusive, wait_command(&key, next)).await;
        assert_eq!(gave_back, ReleaseOutcome::Released);
        assert!(granted_fence(&held) > last + SPARE_FENCES);
        last = granted_fence(&held);
    }
}

async fn reacquiring_reader_waits_behind_writer(rig: &StoreHarness) {
    let (key, [a, b], writer, other) = (test_key(), two_sibling_tokens(), new_token(), new_token());
    rig.acquire_as(Shared, &key, &a).await;
    rig.acquire_as(Shared, &key, &other).await;
    rig.join_queue(&key, &writer).await;
    let (gave_back, asked) =
        rig.release_and_reacquire(&a, Shared, wait_command_as(Shared, &key, &b)).await;
    assert_eq!(gave_back, ReleaseOutcome::Released);
    assert!(matches!(asked, AcquireReply::Busy { has_joined: true, .. }), "{asked:?}");
    rig.release_as(Shared, &key, &other).await;
    rig.acquire_exclusive(&key, &writer).await;
    // Without one it is as any other: in beside those who are.
    let (_, asked) =
        rig.release_and_reacquire(&writer, Exclusive, wait_command(&key, &writer)).await;
    assert!(matches!(asked, AcquireReply::Busy { .. }), "b is offered it: {asked:?}");
}

async fn permit_is_reacquired_by_sibling_token(rig: &StoreHarness) {
    let (key, [a, b], c, d) = (test_key(), two_sibling_tokens(), new_token(), new_token());
    for me in [&a, &c] {
        rig.acquire_as(Permits(2), &key, me).await;
    }
    let (_, held) =
        rig.release_and_reacquire(&a, Permits(2), wait_command_as(Permits(2), &key, &b)).await;
    granted_fence(&held);
    rig.join_queue_as(Permits(2), &key, &d).await;
    let (gave_back, asked) =
        rig.release_and_reacquire(&b, Permits(2), wait_command_as(Permits(2), &key, &a)).await;
    assert_eq!(gave_back, ReleaseOutcome::Released);
    assert!(matches!(asked, AcquireReply::Busy { queue_length: 1, .. }), "{asked:?}");
    rig.acquire_as(Permits(2), &key, &d).await;
    rig.expect_busy_as(Permits(2), &key, &a).await;
}

async fn waiting_job_precedes_reacquire(rig: &StoreHarness) {
    let (key, [a, b], run) = (test_key(), two_sibling_tokens(), new_token());
    rig.register_worker().await;
    rig.acquire_exclusive(&key, &a).await;
    let id = rig.enqueue_job(&key).await;
    let (gave_back, asked) = rig.release_and_reacquire(&a, Exclusive, wait_command(&key, &b)).await;
    assert_eq!(gave_back, ReleaseOutcome::Released);
    assert!(matches!(asked, AcquireReply::Busy { queue_length: 2, .. }), "{asked:?}");
    assert_eq!(rig.start_run(&key, &id, &run).await, 1);
    rig.finish_run(&key, &id, &run).await;
    rig.acquire_exclusive(&key, &b).await;
}

async fn unwatched_job_stays_due_after_reacquire(rig: &StoreHarness) {
    let (key, [a, b]) = (test_key(), two_sibling_tokens());
    rig.acquire_exclusive(&key, &a).await;
    rig.enqueue_job(&key).await;
    // Nobody watches: live requests go on, and a worker that comes finds it due.
    let (_, asked) = rig.release_and_reacquire(&a, Exclusive, wait_command(&key, &b)).await;
    assert!(
        matches!(
            asked,
            AcquireReply::Granted { queue_length: 1, contenders: Contenders::NONE, .. }
        ),
        "{asked:?}"
    );
    assert_eq!(rig.poll_due(key.shard(), 10).await.locks, std::slice::from_ref(&key));
    rig.advance_past(LONG_TIME).await;
    assert_eq!(rig.poll_due(key.shard(), 10).await.locks, [key]);
}
