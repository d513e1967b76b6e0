//! Readers and writers: who is in together, and who waits for whom.

use std::collections::BTreeSet;

use super::{
    modes::{ask_as, renewal_as, seq_of, wait_as},
    on_every_store,
    rig::{LONG, Rig, SHORT, key, stranger},
};
use crate::store::backend::{
    ACCEPT_WINDOW, Acquire, Acquired, GaveBack,
    Mode::{self, Exclusive, Permits, Shared},
    Node, SPARE_FENCES, Token,
};

on_every_store!(
    readers_are_in_together_and_a_writer_alone,
    each_reader_has_an_end_of_its_own,
    a_reader_that_holds_it_is_told_so_again,
    a_writer_waits_for_the_last_reader,
    a_reader_stands_behind_a_writer_that_waits,
    one_release_lets_in_the_leading_run,
    a_writer_waits_for_one_run_of_readers,
    the_first_reader_at_a_free_lock_brings_in_the_others,
    a_reader_never_confirmed_costs_nobody_anything,
    a_writer_that_leaves_lets_in_those_behind_it,
    a_writer_that_waits_no_more_lets_in_those_behind_it,
    readers_of_a_process_come_in_with_its_sequence,
    old_sequences_pass_a_writer_for_one_window,
    a_slow_reader_comes_back_once_it_is_the_writers_turn,
    there_is_no_upgrade,
);

async fn readers_are_in_together_and_a_writer_alone(rig: &Rig) {
    let key = key();
    let readers = [stranger(), stranger(), stranger()];
    let mut last = 0;
    for me in &readers {
        let fence = rig.hold_as(Shared, &key, me).await;
        assert!(last == 0 || fence > last + SPARE_FENCES, "{fence} after {last}");
        last = fence;
    }
    for mode in [Exclusive, Permits(9)] {
        let left = rig.refused_as(mode, &key, &stranger()).await;
        assert!(left > LONG / 2 && left <= LONG, "{left:?}");
    }
    for me in &readers {
        assert_eq!(rig.release_as(Shared, &key, me).await, GaveBack::Released);
        assert_eq!(rig.release_as(Shared, &key, me).await, GaveBack::Nothing);
    }
    let writer = stranger();
    assert!(rig.hold(&key, &writer).await > last + SPARE_FENCES);
    rig.refused_as(Shared, &key, &stranger()).await;
}

async fn each_reader_has_an_end_of_its_own(rig: &Rig) {
    let (key, short, long, writer) = (key(), stranger(), stranger(), stranger());
    rig.hold_for(Shared, &key, &long, SHORT * 3).await;
    rig.hold_for(Shared, &key, &short, SHORT).await;
    let renewed = rig.renew(vec![renewal_as(Exclusive, &key, &long, LONG)]).await;
    assert_eq!(renewed, [false], "another mode is another hold");
    rig.pass(SHORT).await;
    let items = [&long, &short].map(|me| renewal_as(Shared, &key, me, SHORT * 2));
    assert_eq!(rig.renew(items.into()).await, [true, false], "nobody keeps another one alive");
    assert_eq!(rig.release_as(Shared, &key, &short).await, GaveBack::Lost);
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
    assert_eq!(rig.release_as(Shared, &key, &b).await, GaveBack::Released);
    rig.hold(&key, &stranger()).await;
}

async fn a_writer_waits_for_the_last_reader(rig: &Rig) {
    let (key, writer) = (key(), stranger());
    let readers = [stranger(), stranger(), stranger()];
    for me in &readers {
        rig.hold_as(Shared, &key, me).await;
    }
    let seq = rig.join(&key, &writer).await;
    for me in &readers {
        let asked = rig.acquire(wait_as(Exclusive, &key, &writer)).await;
        assert!(matches!(asked, Acquired::Busy { joined: false, .. }), "{asked:?}");
        assert_eq!(seq_of(&asked), seq);
        rig.release_as(Shared, &key, me).await;
    }
    // It is offered to the writer: nobody comes between.
    assert!(rig.refused_as(Shared, &key, &stranger()).await <= ACCEPT_WINDOW);
    rig.hold(&key, &writer).await;
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
async fn line_up<const N: usize>(rig: &Rig, modes: [Mode; N]) -> [Token; N] {
    let line = [(); N].map(|()| stranger());
    for (mode, me) in modes.into_iter().zip(&line) {
        rig.join_as(mode, &key(), me).await;
    }
    line
}

async fn one_release_lets_in_the_leading_run(rig: &Rig) {
    let (key, holder) = (key(), stranger());
    rig.hold(&key, &holder).await;
    let [a, b, writer, c] = line_up(rig, [Shared, Shared, Exclusive, Shared]).await;
    rig.release(&key, &holder).await;
    // Both were offered it by that one step: the line is shorter by two.
    match rig.acquire(wait_as(Exclusive, &key, &writer)).await {
        Acquired::Busy { line: 2, .. } => {}
        other => panic!("{other:?}"),
    }
    rig.hold_as(Shared, &key, &b).await;
    rig.hold_as(Shared, &key, &a).await;
    rig.refused_as(Shared, &key, &c).await;
    rig.release_as(Shared, &key, &a).await;
    rig.refused(&key, &writer).await;
    rig.release_as(Shared, &key, &b).await;
    rig.refused_as(Shared, &key, &c).await;
    rig.hold(&key, &writer).await;
    rig.release(&key, &writer).await;
    rig.hold_as(Shared, &key, &c).await;
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

async fn the_first_reader_at_a_free_lock_brings_in_the_others(rig: &Rig) {
    let (key, dead) = (key(), stranger());
    rig.hold_for(Exclusive, &key, &dead, SHORT).await;
    let [a, b, writer] = line_up(rig, [Shared, Shared, Exclusive]).await;
    rig.pass(SHORT).await;
    match rig.acquire(wait_as(Shared, &key, &a)).await {
        // b is in as well, for as long as an offer: the writer alone is left.
        Acquired::Held { line: 1, next, .. } => assert!(next > 0),
        other => panic!("{other:?}"),
    }
    rig.hold_as(Shared, &key, &b).await;
    rig.refused(&key, &writer).await;
}

async fn a_reader_never_confirmed_costs_nobody_anything(rig: &Rig) {
    let (key, holder) = (key(), stranger());
    rig.hold(&key, &holder).await;
    let [a, dead, writer] = line_up(rig, [Shared, Shared, Exclusive]).await;
    rig.release(&key, &holder).await;
    rig.hold_as(Shared, &key, &a).await;
    rig.miss_the_window().await;
    rig.release_as(Shared, &key, &a).await;
    // The offer to the dead one ran beside a's turn.
    rig.hold(&key, &writer).await;
    assert_eq!(rig.release_as(Shared, &key, &dead).await, GaveBack::Nothing);
    rig.refused_as(Shared, &key, &dead).await;
}

async fn a_writer_that_leaves_lets_in_those_behind_it(rig: &Rig) {
    let (key, reader) = (key(), stranger());
    rig.hold_as(Shared, &key, &reader).await;
    let [writer, a, b, other] = line_up(rig, [Exclusive, Shared, Shared, Exclusive]).await;
    assert_eq!(rig.release(&key, &writer).await, GaveBack::Left);
    rig.hold_as(Shared, &key, &b).await;
    rig.hold_as(Shared, &key, &a).await;
    rig.refused(&key, &other).await;
}

async fn a_writer_that_waits_no_more_lets_in_those_behind_it(rig: &Rig) {
    let (key, reader, writer) = (key(), stranger(), stranger());
    rig.hold_as(Shared, &key, &reader).await;
    rig.acquire(Acquire { wait: Some(SHORT), ..wait_as(Exclusive, &key, &writer) }).await;
    let [a, b] = line_up(rig, [Shared, Shared]).await;
    rig.pass(SHORT).await;
    // Nobody was told. Whoever looks first is in, also if it is not the first of them.
    match rig.acquire(wait_as(Shared, &key, &b)).await {
        Acquired::Held { line: 0, .. } => {}
        other => panic!("{other:?}"),
    }
    match rig.acquire(ask_as(Exclusive, &key, &writer)).await {
        Acquired::Busy { line: 0, left, .. } => assert!(left > SHORT),
        other => panic!("{other:?}"),
    }
    rig.hold_as(Shared, &key, &a).await;
}

async fn readers_of_a_process_come_in_with_its_sequence(rig: &Rig) {
    let (key, holder, node) = (key(), stranger(), Node::new());
    let mine = [(); 4].map(|()| Token::new(&node));
    rig.hold(&key, &holder).await;
    let seq = rig.join_as(Shared, &key, &mine[0]).await;
    let [writer] = line_up(rig, [Exclusive]).await;
    rig.release(&key, &holder).await;
    let mut fences = BTreeSet::from([rig.hold_as(Shared, &key, &mine[0]).await]);
    for me in &mine[1..] {
        let call = Acquire { old_seq: seq, ..wait_as(Shared, &key, me) };
        match rig.acquire(call).await {
            Acquired::Held { fence, line: 1, next, .. } => {
                assert!(next > seq, "the writer is next");
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
    let (key, holder, node) = (key(), stranger(), Node::new());
    rig.hold(&key, &holder).await;
    let seq = rig.join_as(Shared, &key, &Token::new(&node)).await;
    let [writer] = line_up(rig, [Exclusive]).await;
    rig.release(&key, &holder).await;
    let again = || Acquire { old_seq: seq, ..wait_as(Shared, &key, &Token::new(&node)) };
    let first = again();
    assert!(matches!(rig.acquire(first.clone()).await, Acquired::Held { .. }));
    rig.advance(ACCEPT_WINDOW / 3).await;
    assert!(matches!(rig.acquire(again()).await, Acquired::Held { .. }));
    rig.miss_the_window().await;
    let writers = seq_of(&rig.acquire(wait_as(Exclusive, &key, &writer)).await);
    let late = again();
    let place = seq_of(&rig.acquire(late.clone()).await);
    assert!(place > writers, "{place} is before the writer, {writers}");
    let tried = rig.acquire(Acquire { wait: None, ..again() }).await;
    assert!(matches!(tried, Acquired::Busy { .. }), "{tried:?}");
    // What was let in is not touched by it, and what has its place keeps it.
    assert!(matches!(rig.acquire(first).await, Acquired::Held { .. }));
    assert_eq!(seq_of(&rig.acquire(late).await), place);
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
    match rig.acquire(Acquire { old_seq: old, ..wait_as(Shared, &key, &slow) }).await {
        Acquired::Busy { seq, line: 2, .. } => assert_eq!(seq, old),
        other => panic!("{other:?}"),
    }
    rig.hold(&key, &writer).await;
    rig.release(&key, &writer).await;
    for me in [&behind, &slow] {
        rig.hold_as(Shared, &key, me).await;
    }
}

async fn there_is_no_upgrade(rig: &Rig) {
    let (key, node) = (key(), Node::new());
    let (reader, writer) = (Token::new(&node), Token::new(&node));
    rig.hold_as(Shared, &key, &reader).await;
    assert!(rig.refused(&key, &writer).await > SHORT);
    // Not by its own token either.
    assert!(rig.refused(&key, &reader).await > SHORT);
    assert_eq!(rig.release_as(Shared, &key, &reader).await, GaveBack::Released);
    rig.hold(&key, &writer).await;
}
