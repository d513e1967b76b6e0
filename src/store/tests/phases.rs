//! How long a writer waits for readers: for one run of them, whatever those who come do.

use std::collections::BTreeSet;

use super::{
    modes::{ask_as, seq_of, wait_as},
    on_every_store,
    rig::{Rig, SHORT, key, stranger},
    shared::line_up,
};
use crate::store::backend::{
    AcquireCommand, AcquireReply,
    LockMode::{Exclusive, Shared},
    LockToken, NodeId, OFFER_TIMEOUT, SPARE_FENCES,
};

on_every_store!(
    readers_of_a_process_come_in_with_its_sequence,
    old_sequences_pass_a_writer_for_one_window,
    nor_do_they_take_a_free_lock_from_it_after_that,
    a_slow_reader_comes_back_once_it_is_the_writers_turn,
    a_writer_waits_for_one_run_of_readers,
);

async fn readers_of_a_process_come_in_with_its_sequence(rig: &Rig) {
    let (key, holder, node) = (key(), stranger(), NodeId::new());
    let mine = [(); 4].map(|()| LockToken::new(&node));
    rig.hold(&key, &holder).await;
    let seq = rig.join_as(Shared, &key, &mine[0]).await;
    let [writer] = line_up(rig, [Exclusive]).await;
    rig.release(&key, &holder).await;
    let mut fences = BTreeSet::from([rig.hold_as(Shared, &key, &mine[0]).await]);
    for me in &mine[1..] {
        let call = AcquireCommand { resume_seq: seq, ..wait_as(Shared, &key, me) };
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
        rig.refused(&key, &writer).await;
        rig.release_as(Shared, &key, me).await;
    }
    rig.hold(&key, &writer).await;
}

async fn old_sequences_pass_a_writer_for_one_window(rig: &Rig) {
    let (key, holder, node) = (key(), stranger(), NodeId::new());
    rig.hold(&key, &holder).await;
    let seq = rig.join_as(Shared, &key, &LockToken::new(&node)).await;
    let [writer] = line_up(rig, [Exclusive]).await;
    rig.release(&key, &holder).await;
    let again =
        || AcquireCommand { resume_seq: seq, ..wait_as(Shared, &key, &LockToken::new(&node)) };
    let first = again();
    assert!(matches!(rig.acquire(first.clone()).await, AcquireReply::Granted { .. }));
    rig.advance(OFFER_TIMEOUT / 10).await;
    assert!(matches!(rig.acquire(again()).await, AcquireReply::Granted { .. }));
    rig.miss_the_window().await;
    let writers = seq_of(&rig.acquire(wait_as(Exclusive, &key, &writer)).await);
    let late = again();
    let place = seq_of(&rig.acquire(late.clone()).await);
    assert!(place > writers, "{place} is before the writer, {writers}");
    let tried = rig.acquire(AcquireCommand { max_wait: None, ..again() }).await;
    assert!(matches!(tried, AcquireReply::Busy { .. }), "{tried:?}");
    // What was let in is not touched by it, and what has its place keeps it.
    assert!(matches!(rig.acquire(first).await, AcquireReply::Granted { .. }));
    assert_eq!(seq_of(&rig.acquire(late).await), place);
}

async fn nor_do_they_take_a_free_lock_from_it_after_that(rig: &Rig) {
    let (key, reader, writer) = (key(), stranger(), stranger());
    rig.hold_for(Shared, &key, &reader, SHORT).await;
    rig.join(&key, &writer).await;
    let old =
        || AcquireCommand { resume_seq: 1, lease: SHORT, ..ask_as(Shared, &key, &stranger()) };
    assert!(matches!(rig.acquire(old()).await, AcquireReply::Granted { .. }));
    rig.pass(SHORT).await;
    let late = rig.acquire(old()).await;
    assert!(
        matches!(late, AcquireReply::Busy { queue_length: 0, .. }),
        "the writer is offered it: {late:?}"
    );
    rig.hold(&key, &writer).await;
}

async fn a_slow_reader_comes_back_once_it_is_the_writers_turn(rig: &Rig) {
    let (key, holder) = (key(), stranger());
    rig.hold(&key, &holder).await;
    let slow = stranger();
    let old = rig.join_as(Shared, &key, &slow).await;
    let [quick, writer, behind] = line_up(rig, [Shared, Exclusive, Shared]).await;
    rig.release(&key, &holder).await;
    rig.hold_as(Shared, &key, &quick).await;
    rig.miss_the_window().await;
    rig.release_as(Shared, &key, &quick).await;
    // The writer has been offered it; the slow one is before all the others once more.
    match rig.acquire(AcquireCommand { resume_seq: old, ..wait_as(Shared, &key, &slow) }).await {
        AcquireReply::Busy { seq, queue_length: 2, .. } => assert_eq!(seq, old),
        other => panic!("{other:?}"),
    }
    rig.hold(&key, &writer).await;
    rig.release(&key, &writer).await;
    for me in [&behind, &slow] {
        rig.hold_as(Shared, &key, me).await;
    }
}

async fn a_writer_waits_for_one_run_of_readers(rig: &Rig) {
    let (key, first) = (key(), stranger());
    rig.hold_as(Shared, &key, &first).await;
    let [writer] = line_up(rig, [Exclusive]).await;
    // However many come, and however often they ask.
    let flood = [(); 20].map(|()| stranger());
    for me in flood.iter().chain(&flood) {
        rig.refused_as(Shared, &key, me).await;
        rig.join_as(Shared, &key, me).await;
    }
    rig.release_as(Shared, &key, &first).await;
    rig.hold(&key, &writer).await;
    let [next] = line_up(rig, [Exclusive]).await;
    rig.release(&key, &writer).await;
    for me in &flood {
        rig.hold_as(Shared, &key, me).await;
    }
    for me in &flood {
        rig.refused(&key, &next).await;
        rig.release_as(Shared, &key, me).await;
    }
    rig.hold(&key, &next).await;
}
