//! How long a writer waits for readers: for one run of them, whatever those who come do.

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
    let mine = [(); 4].map(|()| LockToken::new(&node));
    rig.acquire_exclusive(&key, &holder).await;
    let seq = rig.join_queue_as(Shared, &key, &mine[0]).await;
    let [writer] = join_queue_in_order(rig, [Exclusive]).await;
    rig.release(&key, &holder).await;
    let mut fences = BTreeSet::from([rig.acquire_as(Shared, &key, &mine[0]).await]);
    for me in &mine[1..] {
        let call = AcquireCommand { resume_seq: seq, ..wait_command_as(Shared, &key, me) };
        match rig.acquire(call).await {
            AcquireReply::Granted { fence, queue_length: 1, contenders: others, .. } => {
                assert!(others.first > seq, "the writer is next");
                assert!(fences.iter().all(|other| *other + SPARE_FENCES < fence));
                fences.insert(fence);
            }
            other => panic!("{other:?}"),
        }
    }
    for me in &mine {
        rig.expect_busy(&key, &writer).await;
        rig.release_as(Shared, &key, me).await;
    }
    rig.acquire_exclusive(&key, &writer).await;
}

async fn older_sequence_passes_writer_for_one_offer_timeout(rig: &StoreHarness) {
    let (key, holder, node) = (test_key(), new_token(), NodeId::new());
    rig.acquire_exclusive(&key, &holder).await;
    let seq = rig.join_queue_as(Shared, &key, &LockToken::new(&node)).await;
    let [writer] = join_queue_in_order(rig, [Exclusive]).await;
    rig.release(&key, &holder).await;
    let again = || AcquireCommand {
        resume_seq: seq,
        ..wait_command_as(Shared, &key, &LockToken::new(&node))
    };
    let first = again();
    assert!(matches!(rig.acquire(first.clone()).await, AcquireReply::Granted { .. }));
    rig.advance(OFFER_TIMEOUT / 10).await;
    assert!(matches!(rig.acquire(again()).await, AcquireReply::Granted { .. }));
    rig.let_offer_expire().await;
    let writers = queued_sequence(&rig.acquire(wait_command_as(Exclusive, &key, &writer)).await);
    let late = again();
    let place = queued_sequence(&rig.acquire(late.clone()).await);
    assert!(place > writers, "{place} is before the writer, {writers}");
    let tried = rig.acquire(AcquireCommand { max_wait: None, ..again() }).await;
    assert!(matches!(tried, AcquireReply::Busy { .. }), "{tried:?}");
    // What was let in is not touched by it, and what has its place keeps it.
    assert!(matches!(rig.acquire(first).await, AcquireReply::Granted { .. }));
    assert_eq!(queued_sequence(&rig.acquire(late).await), place);
}

async fn older_sequence_cannot_take_lock_offered_to_writer(rig: &StoreHarness) {
    let (key, reader, writer) = (test_key(), new_token(), new_token());
    rig.acquire_with_lease(Shared, &key, &reader, SHORT_TIME).await;
    rig.join_queue(&key, &writer).await;
    let old = || AcquireCommand {
        resume_seq: 1,
        lease: SHORT_TIME,
        ..try_acquire_command_as(Shared, &key, &new_token())
    };
    assert!(matches!(rig.acquire(old()).await, AcquireReply::Granted { .. }));
    rig.advance_past(SHORT_TIME).await;
    let late = rig.acquire(old()).await;
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
    let old = rig.join_queue_as(Shared, &key, &slow).await;
    let [quick, writer, behind] = join_queue_in_order(rig, [Shared, Exclusive, Shared]).await;
    rig.release(&key, &holder).await;
    rig.acquire_as(Shared, &key, &quick).await;
    rig.let_offer_expire().await;
    rig.release_as(Shared, &key, &quick).await;
    // The writer has been offered it; the slow one is before all the others once more.
    match rig
        .acquire(AcquireCommand { resume_seq: old, ..wait_command_as(Shared, &key, &slow) })
        .await
    {
        AcquireReply::Busy { seq, queue_length: 2, .. } => assert_eq!(seq, old),
        other => panic!("{other:?}"),
    }
    rig.acquire_exclusive(&key, &writer).await;
    rig.release(&key, &writer).await;
    for me in [&behind, &slow] {
        rig.acquire_as(Shared, &key, me).await;
    }
}

async fn writer_waits_for_one_group_of_readers(rig: &StoreHarness) {
    let (key, first) = (test_key(), new_token());
    rig.acquire_as(Shared, &key, &first).await;
    let [writer] = join_queue_in_order(rig, [Exclusive]).await;
    // However many come, and however often they ask.
    let flood = [(); 20].map(|()| new_token());
    for me in flood.iter().chain(&flood) {
        rig.expect_busy_as(Shared, &key, me).await;
        rig.join_queue_as(Shared, &key, me).await;
    }
    rig.release_as(Shared, &key, &first).await;
    rig.acquire_exclusive(&key, &writer).await;
    let [next] = join_queue_in_order(rig, [Exclusive]).await;
    rig.release(&key, &writer).await;
    for me in &flood {
        rig.acquire_as(Shared, &key, me).await;
    }
    for me in &flood {
        rig.expect_busy(&key, &next).await;
        rig.release_as(Shared, &key, me).await;
    }
    rig.acquire_exclusive(&key, &next).await;
}
