//! Permits: at most so many at once.

use super::{
    modes::{ask_as, wait_as},
    on_every_store,
    rig::{LONG, Rig, SHORT, key, stranger},
};
use crate::store::backend::{
    AcquireCommand, AcquireReply,
    LockMode::{Exclusive, Permits, Shared},
    ReleaseOutcome,
};

const TWO: crate::store::backend::LockMode = Permits(2);

on_every_store!(
    as_many_as_there_are_permits,
    one_permit_is_a_lock,
    an_unconfirmed_permit_is_free_again,
    other_modes_are_kept_out,
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
    assert_eq!(rig.release_as(TWO, &key, &a).await, ReleaseOutcome::Released);
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
    assert_eq!(rig.release_as(Shared, &key, &a).await, ReleaseOutcome::NotFound, "another mode");
    rig.release_as(TWO, &key, &a).await;
    rig.hold_as(Shared, &key, &b).await;
    rig.refused_as(TWO, &key, &a).await;
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
    let back = AcquireCommand { resume_seq: old, ..wait_as(TWO, &key, &slow) };
    match rig.acquire(back).await {
        AcquireReply::Busy { seq, queue_length: 2, lease_remaining: left, .. } => {
            assert_eq!(seq, old);
            assert!(left > SHORT && left <= LONG);
        }
        other => panic!("{other:?}"),
    }
    rig.release_as(TWO, &key, &b).await;
    rig.hold_as(TWO, &key, &slow).await;
    rig.refused(&key, &writer).await;
    assert!(matches!(
        rig.acquire(ask_as(TWO, &key, &b)).await,
        AcquireReply::Busy { queue_length: 1, .. }
    ));
}
