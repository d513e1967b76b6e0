//! Readers and writers: who is in together, and who waits for whom.

use super::{
    modes::{ask_as, renewal_as, wait_as},
    on_every_store,
    rig::{LONG, Rig, SHORT, key, stranger},
};
use crate::store::backend::{
    AcquireCommand, AcquireReply,
    LockMode::{self, Exclusive, Permits, Shared},
    LockToken, NodeId, OFFER_TIMEOUT, ReleaseOutcome, SPARE_FENCES,
};

on_every_store!(
    each_reader_has_an_end_of_its_own,
    a_reader_that_holds_it_is_told_so_again,
    a_reader_stands_behind_a_writer_that_waits,
    a_run_of_many_is_let_in_together,
    a_writer_that_waits_no_more_lets_in_those_behind_it,
    there_is_no_upgrade,
);

async fn each_reader_has_an_end_of_its_own(rig: &Rig) {
    let (key, short, long, writer) = (key(), stranger(), stranger(), stranger());
    rig.hold_for(Shared, &key, &long, SHORT * 3).await;
    rig.hold_for(Shared, &key, &short, SHORT).await;
    let renewed = rig.renew(vec![renewal_as(Exclusive, &key, &long, LONG)]).await;
    assert_eq!(renewed, [false], "another mode is another hold");
    rig.pass(SHORT).await;
    let items = [&long, &short].map(|me| renewal_as(Shared, &key, me, SHORT * 2));
    assert_eq!(rig.renew(items.into()).await, [true, false], "nobody keeps another one alive");
    assert_eq!(rig.release_as(Shared, &key, &short).await, ReleaseOutcome::AlreadyExpired);
    assert!(rig.refused(&key, &writer).await <= SHORT * 2);
    rig.pass(SHORT * 2).await;
    rig.hold(&key, &writer).await;
}

async fn a_reader_that_holds_it_is_told_so_again(rig: &Rig) {
    let (key, a, b) = (key(), stranger(), stranger());
    rig.hold_as(Shared, &key, &a).await;
    let first = rig.hold_as(Shared, &key, &b).await;
    let again = rig.hold_as(Shared, &key, &b).await;
    assert!(again > first + SPARE_FENCES, "{again} after {first}");
    rig.release_as(Shared, &key, &a).await;
    assert_eq!(rig.release_as(Shared, &key, &b).await, ReleaseOutcome::Released);
    rig.hold(&key, &stranger()).await;
}

async fn a_reader_stands_behind_a_writer_that_waits(rig: &Rig) {
    let (key, reader, writer, late) = (key(), stranger(), stranger(), stranger());
    rig.hold_as(Shared, &key, &reader).await;
    let first = rig.join(&key, &writer).await;
    assert!(rig.refused_as(Shared, &key, &late).await > SHORT);
    assert!(rig.join_as(Shared, &key, &late).await > first);
    rig.release_as(Shared, &key, &reader).await;
    rig.refused_as(Shared, &key, &late).await;
    rig.hold(&key, &writer).await;
    rig.release(&key, &writer).await;
    rig.hold_as(Shared, &key, &late).await;
}

/// Joins one after the other; the tokens.
pub(super) async fn line_up<const N: usize>(rig: &Rig, modes: [LockMode; N]) -> [LockToken; N] {
    let line = [(); N].map(|()| stranger());
    for (mode, me) in modes.into_iter().zip(&line) {
        rig.join_as(mode, &key(), me).await;
    }
    line
}

/// All of them by the one step that gives it back. Whoever looks moves the line on, too: were a few let in by each step, one
/// look would not be enough for so many.
async fn a_run_of_many_is_let_in_together(rig: &Rig) {
    for mode in [Shared, Permits(7), Permits(9)] {
        let (key, holder) = (key(), stranger());
        rig.hold(&key, &holder).await;
        let run = line_up(rig, [mode; 7]).await;
        let [writer] = line_up(rig, [Exclusive]).await;
        assert_eq!(rig.release(&key, &holder).await, ReleaseOutcome::Released);
        match rig.acquire(wait_as(Exclusive, &key, &writer)).await {
            AcquireReply::Busy { queue_length: 1, lease_remaining: left, .. } => {
                assert!(left <= OFFER_TIMEOUT, "{left:?}");
            }
            other => panic!("{mode:?}: {other:?}"),
        }
        for me in run.iter().rev() {
            rig.hold_as(mode, &key, me).await;
        }
        for me in &run {
            rig.refused(&key, &writer).await;
            assert_eq!(rig.release_as(mode, &key, me).await, ReleaseOutcome::Released);
        }
        rig.hold(&key, &writer).await;
        assert_eq!(rig.release(&key, &writer).await, ReleaseOutcome::Released);
    }
}

async fn a_writer_that_waits_no_more_lets_in_those_behind_it(rig: &Rig) {
    let (key, reader, writer) = (key(), stranger(), stranger());
    rig.hold_as(Shared, &key, &reader).await;
    rig.acquire(AcquireCommand { max_wait: Some(SHORT), ..wait_as(Exclusive, &key, &writer) })
        .await;
    let [a, b] = line_up(rig, [Shared, Shared]).await;
    rig.pass(SHORT).await;
    // Nobody was told. Whoever looks first is in, also if it is not the first of them.
    match rig.acquire(wait_as(Shared, &key, &b)).await {
        AcquireReply::Granted { queue_length: 0, .. } => {}
        other => panic!("{other:?}"),
    }
    match rig.acquire(ask_as(Exclusive, &key, &writer)).await {
        AcquireReply::Busy { queue_length: 0, lease_remaining: left, .. } => assert!(left > SHORT),
        other => panic!("{other:?}"),
    }
    rig.hold_as(Shared, &key, &a).await;
}

async fn there_is_no_upgrade(rig: &Rig) {
    let (key, node) = (key(), NodeId::new());
    let (reader, writer) = (LockToken::new(&node), LockToken::new(&node));
    rig.hold_as(Shared, &key, &reader).await;
    assert!(rig.refused(&key, &writer).await > SHORT);
    // Not by its own token either.
    assert!(rig.refused(&key, &reader).await > SHORT);
    assert_eq!(rig.release_as(Shared, &key, &reader).await, ReleaseOutcome::Released);
    rig.hold(&key, &writer).await;
}
