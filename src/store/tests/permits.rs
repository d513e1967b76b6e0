//! Permits: at most so many at once.

use super::{
    modes::{ask_as, wait_as},
    on_every_store,
    rig::{LONG, Rig, SHORT, key, stranger},
};
use crate::store::backend::{
    ACCEPT_WINDOW, Acquire, Acquired, GaveBack,
    Mode::{Exclusive, Permits, Shared},
};

const TWO: crate::store::backend::Mode = Permits(2);

on_every_store!(
    as_many_as_there_are_permits,
    one_permit_is_a_lock,
    each_release_lets_one_in,
    one_visit_lets_in_as_many_as_fit,
    an_ended_permit_is_free_again,
    an_unconfirmed_permit_is_free_again,
    other_modes_are_kept_out,
    a_writer_is_not_passed,
    different_numbers_are_told_apart,
    a_place_keeps_its_own_number,
    a_slow_one_comes_back_to_its_place,
);

async fn as_many_as_there_are_permits(rig: &Rig) {
    let (key, a, b, c) = (key(), stranger(), stranger(), stranger());
    rig.hold_for(TWO, &key, &a, SHORT).await;
    let fence = rig.hold_as(TWO, &key, &b).await;
    // The first that ends is the one it waits for.
    assert!(rig.refused_as(TWO, &key, &c).await <= SHORT);
    assert!(rig.hold_as(TWO, &key, &b).await > fence, "held already is not one more");
    assert_eq!(rig.release_as(TWO, &key, &a).await, GaveBack::Released);
    rig.hold_as(TWO, &key, &c).await;
    rig.refused_as(TWO, &key, &a).await;
}

async fn one_permit_is_a_lock(rig: &Rig) {
    let (key, a, b) = (key(), stranger(), stranger());
    rig.hold_as(Permits(1), &key, &a).await;
    rig.refused_as(Permits(1), &key, &b).await;
    rig.release_as(Permits(1), &key, &a).await;
    rig.hold_as(Permits(1), &key, &b).await;
}

async fn each_release_lets_one_in(rig: &Rig) {
    let (key, a, b) = (key(), stranger(), stranger());
    let [c, d] = [stranger(), stranger()];
    for me in [&a, &b] {
        rig.hold_as(TWO, &key, me).await;
    }
    rig.join_as(TWO, &key, &c).await;
    rig.join_as(TWO, &key, &d).await;
    rig.release_as(TWO, &key, &b).await;
    // It is c's, who has not confirmed yet: neither the next nor anybody else.
    for me in [&d, &b] {
        assert!(rig.refused_as(TWO, &key, me).await <= ACCEPT_WINDOW);
    }
    rig.hold_as(TWO, &key, &c).await;
    rig.refused_as(TWO, &key, &d).await;
    rig.release_as(TWO, &key, &a).await;
    rig.hold_as(TWO, &key, &d).await;
}

async fn one_visit_lets_in_as_many_as_fit(rig: &Rig) {
    let (key, writer) = (key(), stranger());
    rig.hold(&key, &writer).await;
    let line = [stranger(), stranger(), stranger()];
    for me in &line {
        rig.join_as(TWO, &key, me).await;
    }
    rig.release(&key, &writer).await;
    match rig.acquire(wait_as(TWO, &key, &line[2])).await {
        Acquired::Busy { line: 1, left, .. } => assert!(left <= ACCEPT_WINDOW),
        other => panic!("{other:?}"),
    }
    for me in &line[..2] {
        rig.hold_as(TWO, &key, me).await;
    }
}

async fn an_ended_permit_is_free_again(rig: &Rig) {
    let (key, a, b, c, d) = (key(), stranger(), stranger(), stranger(), stranger());
    rig.hold_for(TWO, &key, &a, SHORT).await;
    rig.hold_as(TWO, &key, &b).await;
    rig.join_as(TWO, &key, &c).await;
    rig.pass(SHORT).await;
    // A try of somebody else moves the line on, and does not get in before it.
    rig.refused_as(TWO, &key, &d).await;
    rig.hold_as(TWO, &key, &c).await;
    rig.refused_as(TWO, &key, &d).await;
    assert_eq!(rig.release_as(TWO, &key, &a).await, GaveBack::Nothing);
}

async fn an_unconfirmed_permit_is_free_again(rig: &Rig) {
    let (key, a, b, dead, c) = (key(), stranger(), stranger(), stranger(), stranger());
    for me in [&a, &b] {
        rig.hold_as(TWO, &key, me).await;
    }
    rig.join_as(TWO, &key, &dead).await;
    rig.release_as(TWO, &key, &b).await;
    rig.refused_as(TWO, &key, &c).await;
    rig.miss_the_window().await;
    rig.hold_as(TWO, &key, &c).await;
    rig.refused_as(TWO, &key, &dead).await;
}

async fn other_modes_are_kept_out(rig: &Rig) {
    let (key, a, b) = (key(), stranger(), stranger());
    rig.hold_as(TWO, &key, &a).await;
    rig.refused_as(Shared, &key, &b).await;
    rig.refused_as(Exclusive, &key, &b).await;
    assert_eq!(rig.release_as(Shared, &key, &a).await, GaveBack::Nothing, "another mode");
    rig.release_as(TWO, &key, &a).await;
    rig.hold_as(Shared, &key, &b).await;
    rig.refused_as(TWO, &key, &a).await;
}

async fn a_writer_is_not_passed(rig: &Rig) {
    let (key, a, b, writer) = (key(), stranger(), stranger(), stranger());
    rig.hold_for(TWO, &key, &a, SHORT).await;
    rig.join(&key, &writer).await;
    // There is a permit, but the writer came first.
    rig.refused_as(TWO, &key, &b).await;
    rig.join_as(TWO, &key, &b).await;
    rig.release_as(TWO, &key, &a).await;
    rig.refused_as(TWO, &key, &b).await;
    rig.hold(&key, &writer).await;
    rig.release(&key, &writer).await;
    rig.hold_as(TWO, &key, &b).await;
}

/// As in a rolling deploy: each holder counts by its own number.
async fn different_numbers_are_told_apart(rig: &Rig) {
    let (key, c) = (key(), stranger());
    for (n, lease) in [(2, SHORT), (2, SHORT * 2), (3, SHORT * 3)] {
        rig.hold_for(Permits(n), &key, &stranger(), lease).await;
    }
    rig.refused_as(Permits(3), &key, &c).await;
    // One end is not enough for two permits: the second one's is.
    let left = rig.refused_as(TWO, &key, &c).await;
    assert!(left > SHORT && left <= SHORT * 2, "{left:?}");
    rig.pass(SHORT).await;
    rig.refused_as(TWO, &key, &c).await;
    rig.hold_as(Permits(3), &key, &c).await;
}

async fn a_place_keeps_its_own_number(rig: &Rig) {
    let (key, a, b, alone, c) = (key(), stranger(), stranger(), stranger(), stranger());
    for me in [&a, &b] {
        rig.hold_as(Permits(3), &key, me).await;
    }
    rig.join_as(Permits(1), &key, &alone).await;
    // The one at the head does not fit: those behind it wait, though they would.
    rig.join_as(Permits(3), &key, &c).await;
    rig.release_as(Permits(3), &key, &a).await;
    rig.refused_as(Permits(3), &key, &c).await;
    rig.refused_as(Permits(1), &key, &alone).await;
    rig.release_as(Permits(3), &key, &b).await;
    // It is alone when it comes in; the others count by their own number.
    rig.hold_as(Permits(1), &key, &alone).await;
    rig.hold_as(Permits(3), &key, &c).await;
}

async fn a_slow_one_comes_back_to_its_place(rig: &Rig) {
    let (key, a, b) = (key(), stranger(), stranger());
    let (slow, next, writer) = (stranger(), stranger(), stranger());
    for me in [&a, &b] {
        rig.hold_as(TWO, &key, me).await;
    }
    let old = rig.join_as(TWO, &key, &slow).await;
    rig.join_as(TWO, &key, &next).await;
    rig.join(&key, &writer).await;
    rig.release_as(TWO, &key, &a).await;
    rig.miss_the_window().await;
    // Its offer has lapsed, and that permit goes to the next.
    rig.refused_as(TWO, &key, &a).await;
    rig.hold_as(TWO, &key, &next).await;
    let back = Acquire { old_seq: old, ..wait_as(TWO, &key, &slow) };
    match rig.acquire(back).await {
        Acquired::Busy { seq, line: 2, left, .. } => {
            assert_eq!(seq, old);
            assert!(left > SHORT && left <= LONG);
        }
        other => panic!("{other:?}"),
    }
    rig.release_as(TWO, &key, &b).await;
    rig.hold_as(TWO, &key, &slow).await;
    rig.refused(&key, &writer).await;
    assert!(matches!(rig.acquire(ask_as(TWO, &key, &b)).await, Acquired::Busy { line: 1, .. }));
}
