//! Fairness to writers: a waiting writer waits for one group of readers, independent of later
//! arrivals.

use std::collections::BTreeSet;

use super::{
    lock_mode_steps::{queued_sequence, try_acquire_command_as, wait_command_as},
    on_every_store,
    shared_locks::join_queue_in_order,
    store_harness::{SHORT_TIME, StoreHarness, new_token, test_key},
};
use crate::store::backend::{
    AcquireCommand, AcquireReply,
    LockMode::{Exclusive, Shared},
    LockToken, NodeId, OFFER_TIMEOUT, SPARE_FENCES,
};

on_every_store!(
    readers_of_a_process_share_its_sequence,
    older_sequence_passes_writer_for_one_offer_timeout,
    older_sequence_cannot_take_lock_offered_to_writer,
    slow_reader_rejoins_right_after_offered_writer,
    writer_waits_for_one_group_of_readers,
);

async fn readers_of_a_process_share_its_sequence(rig: &StoreHarness) {
    let (key, holder, node) = (test_key(), new_token(), NodeId::new());
    let siblings = [(); 4].map(|()| LockToken::new(&node));
    rig.acquire_exclusive(&key, &holder).await;
    let seq = rig.join_queue_as(Shared, &key, &siblings[0]).await;
    let [writer] = join_queue_in_order(rig, [Exclusive]).await;
    rig.release(&key, &holder).await;
    let mut fences = BTreeSet::from([rig.acquire_as(Shared, &key, &siblings[0]).await]);
    for token in &siblings[1..] {
        let call = AcquireCommand { resume_seq: seq, ..wait_command_as(Shared, &key, token) };
        match rig.acquire(call).await {
            AcquireReply::Granted { fence, queue_length: 1, contenders, .. } => {
                assert!(contenders.first > seq, "the writer is next");
                assert!(fences.iter().all(|other| *other + SPARE_FENCES < fence));
                fences.insert(fence);
            }
            other => panic!("{other:?}"),
        }
    }
    for token in &siblings {
        rig.expect_busy(&key, &writer).await;
        rig.release_as(Shared, &key, token).await;
    }
    rig.acquire_exclusive(&key, &writer).await;
}

async fn older_sequence_passes_writer_for_one_offer_timeout(rig: &StoreHarness) {
    let (key, holder, node) = (test_key(), new_token(), NodeId::new());
    rig.acquire_exclusive(&key, &holder).await;
    let seq = rig.join_queue_as(Shared, &key, &LockToken::new(&node)).await;
    let [writer] = join_queue_in_order(rig, [Exclusive]).await;
    rig.release(&key, &holder).await;
    let command = || AcquireCommand {
        resume_seq: seq,
        ..wait_command_as(Shared, &key, &LockToken::new(&node))
    };
    let first = command();
    assert!(matches!(rig.acquire(first.clone()).await, AcquireReply::Granted { .. }));
    rig.advance(OFFER_TIMEOUT / 10).await;
    assert!(matches!(rig.acquire(command()).await, AcquireReply::Granted { .. }));
    rig.let_offer_expire().await;
    let writer_seq = queued_sequence(&rig.acquire(wait_command_as(Exclusive, &key, &writer)).await);
    let late = command();
    let reader_seq = queued_sequence(&rig.acquire(late.clone()).await);
    assert!(reader_seq > writer_seq, "{reader_seq} is before the writer, {writer_seq}");
    let try_reply = rig.acquire(AcquireCommand { max_wait: None, ..command() }).await;
    assert!(matches!(try_reply, AcquireReply::Busy { .. }), "{try_reply:?}");
    // Existing holds and queue entries are not affected.
    assert!(matches!(rig.acquire(first).await, AcquireReply::Granted { .. }));
    assert_eq!(queued_sequence(&rig.acquire(late).await), reader_seq);
}

async fn older_sequence_cannot_take_lock_offered_to_writer(rig: &StoreHarness) {
    let (key, reader, writer) = (test_key(), new_token(), new_token());
    rig.acquire_with_lease(Shared, &key, &reader, SHORT_TIME).await;
    rig.join_queue(&key, &writer).await;
    let command = || AcquireCommand {
        resume_seq: 1,
        lease: SHORT_TIME,
        ..try_acquire_command_as(Shared, &key, &new_token())
    };
    assert!(matches!(rig.acquire(command()).await, AcquireReply::Granted { .. }));
    rig.advance_past(SHORT_TIME).await;
    let late = rig.acquire(command()).await;
    assert!(
        matches!(late, AcquireReply::Busy { queue_length: 0, .. }),
        "the writer is offered it: {late:?}"
    );
    rig.acquire_exclusive(&key, &writer).await;
}

async fn slow_reader_rejoins_right_after_offered_writer(rig: &StoreHarness) {
    let (key, holder) = (test_key(), new_token());
    rig.acquire_exclusive(&key, &holder).await;
    let slow = new_token();
    let slow_seq = rig.join_queue_as(Shared, &key, &slow).await;
    let [fast, writer, last_reader] = join_queue_in_order(rig, [Shared, Exclusive, Shared]).await;
    rig.release(&key, &holder).await;
    rig.acquire_as(Shared, &key, &fast).await;
    rig.let_offer_expire().await;
    rig.release_as(Shared, &key, &fast).await;
    // The lock is offered to the writer. The slow reader resumes a position ahead of all other
    // waiters.
    match rig
        .acquire(AcquireCommand { resume_seq: slow_seq, ..wait_command_as(Shared, &key, &slow) })
        .await
    {
        AcquireReply::Busy { seq, queue_length: 2, .. } => assert_eq!(seq, slow_seq),
        other => panic!("{other:?}"),
    }
    rig.acquire_exclusive(&key, &writer).await;
    rig.release(&key, &writer).await;
    for token in [&last_reader, &slow] {
        rig.acquire_as(Shared, &key, token).await;
    }
}

async fn writer_waits_for_one_group_of_readers(rig: &StoreHarness) {
    let (key, first) = (test_key(), new_token());
    rig.acquire_as(Shared, &key, &first).await;
    let [writer] = join_queue_in_order(rig, [Exclusive]).await;
    // Holds for any number of readers and of repeated calls.
    let readers = [(); 20].map(|()| new_token());
    for token in readers.iter().chain(&readers) {
        rig.expect_busy_as(Shared, &key, token).await;
        rig.join_queue_as(Shared, &key, token).await;
    }
    rig.release_as(Shared, &key, &first).await;
    rig.acquire_exclusive(&key, &writer).await;
    let [next] = join_queue_in_order(rig, [Exclusive]).await;
    rig.release(&key, &writer).await;
    for token in &readers {
        rig.acquire_as(Shared, &key, token).await;
    }
    for token in &readers {
        rig.expect_busy(&key, &next).await;
        rig.release_as(Shared, &key, token).await;
    }
    rig.acquire_exclusive(&key, &next).await;
}
