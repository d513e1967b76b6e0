//! Waiting for a lock: the line of live places.

use super::{
    on_every_store,
    rig::{LONG, Rig, SHORT, ask, key, stranger, wait},
};
use crate::store::backend::{ACCEPT_WINDOW, Acquire, Acquired, GaveBack, Token};

on_every_store!(
    those_who_wait_come_in_their_order,
    an_offer_is_for_the_head_alone,
    an_offer_that_is_given_back_goes_to_the_next,
    a_dead_place_costs_one_accept_window,
    a_lapsed_offer_comes_back_to_its_old_place,
    the_old_place_of_a_free_lock_is_taken_at_once,
    without_its_old_sequence_it_is_the_last,
    a_place_past_its_deadline_is_passed_over,
    asking_again_keeps_the_place,
    asking_again_moves_the_deadline,
    ones_own_place_past_its_deadline_is_no_place,
    a_visit_to_a_free_lock_moves_its_line_on,
    the_head_takes_a_free_lock_itself,
    a_try_takes_no_place,
    places_vanish_with_the_last_deadline,
    a_live_place_behind_many_dead_ones_is_not_passed,
);

async fn those_who_wait_come_in_their_order(rig: &Rig) {
    let (key, holder) = (key(), stranger());
    rig.hold(&key, &holder).await;
    let waiters = [stranger(), stranger(), stranger(), stranger()];
    let mut seqs = Vec::new();
    for (before, me) in (0_u64..).zip(&waiters) {
        match rig.acquire(wait(&key, me)).await {
            Acquired::Busy { line, seq, .. } => {
                assert_eq!(line, before + 1);
                seqs.push(seq);
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(seqs.is_sorted_by(|a, b| a < b), "{seqs:?}");
    rig.release(&key, &holder).await;
    for (i, me) in waiters.iter().enumerate() {
        for later in &waiters[i + 1..] {
            let asked = rig.acquire(wait(&key, later)).await;
            assert!(matches!(asked, Acquired::Busy { .. }), "{asked:?}");
        }
        match rig.acquire(wait(&key, me)).await {
            Acquired::Held { line, .. } => assert_eq!(line, 3 - i as u64),
            other => panic!("number {i}: {other:?}"),
        }
        assert_eq!(rig.release(&key, me).await, GaveBack::Released);
    }
    rig.hold(&key, &holder).await;
}

async fn an_offer_is_for_the_head_alone(rig: &Rig) {
    let (key, a, b, c) = (key(), stranger(), stranger(), stranger());
    rig.hold(&key, &a).await;
    rig.join(&key, &b).await;
    rig.release(&key, &a).await;
    assert!(rig.refused(&key, &c).await <= ACCEPT_WINDOW);
    match rig.acquire(wait(&key, &c)).await {
        // b has left the line for its offer.
        Acquired::Busy { line: 1, left, .. } => assert!(left <= ACCEPT_WINDOW),
        other => panic!("{other:?}"),
    }
    rig.hold(&key, &b).await;
}

async fn an_offer_that_is_given_back_goes_to_the_next(rig: &Rig) {
    let (key, a, b, c) = (key(), stranger(), stranger(), stranger());
    rig.hold(&key, &a).await;
    rig.join(&key, &b).await;
    rig.join(&key, &c).await;
    rig.release(&key, &a).await;
    assert_eq!(rig.release(&key, &b).await, GaveBack::Left);
    rig.refused(&key, &a).await;
    rig.hold(&key, &c).await;
}

async fn a_dead_place_costs_one_accept_window(rig: &Rig) {
    let (key, a, dead, c) = (key(), stranger(), stranger(), stranger());
    rig.hold(&key, &a).await;
    rig.join(&key, &dead).await;
    rig.join(&key, &c).await;
    rig.release(&key, &a).await;
    assert!(rig.refused(&key, &c).await <= ACCEPT_WINDOW);
    rig.miss_the_window().await;
    match rig.acquire(wait(&key, &c)).await {
        Acquired::Held { line, .. } => assert_eq!(line, 0),
        other => panic!("the dead place still blocks: {other:?}"),
    }
}

/// The lock is held by `a`, and the offer to `b` has lapsed; its old sequence.
async fn lapse(rig: &Rig, a: &Token, b: &Token) -> u64 {
    let key = key();
    rig.hold(&key, a).await;
    let seq = rig.join(&key, b).await;
    rig.release(&key, a).await;
    rig.miss_the_window().await;
    seq
}

async fn a_lapsed_offer_comes_back_to_its_old_place(rig: &Rig) {
    let (key, a, b, c, d) = (key(), stranger(), stranger(), stranger(), stranger());
    let old = lapse(rig, &a, &b).await;
    rig.hold(&key, &c).await;
    let later = rig.join(&key, &d).await;
    assert!(old < later);
    match rig.acquire(Acquire { old_seq: old, ..wait(&key, &b) }).await {
        Acquired::Busy { seq, line: 2, joined: true, .. } => assert_eq!(seq, old),
        other => panic!("{other:?}"),
    }
    rig.release(&key, &c).await;
    rig.refused(&key, &d).await;
    rig.hold(&key, &b).await;
}

async fn the_old_place_of_a_free_lock_is_taken_at_once(rig: &Rig) {
    let (key, a, b, c, d) = (key(), stranger(), stranger(), stranger(), stranger());
    let old = lapse(rig, &a, &b).await;
    rig.acquire(Acquire { lease: SHORT, ..ask(&key, &c) }).await;
    rig.join(&key, &d).await;
    rig.pass(SHORT).await;
    let back = Acquire { old_seq: old, ..wait(&key, &b) };
    assert!(matches!(rig.acquire(back).await, Acquired::Held { line: 1, .. }));
}

async fn without_its_old_sequence_it_is_the_last(rig: &Rig) {
    let (key, a, b, c, d) = (key(), stranger(), stranger(), stranger(), stranger());
    lapse(rig, &a, &b).await;
    rig.hold(&key, &c).await;
    let other = rig.join(&key, &d).await;
    assert!(rig.join(&key, &b).await > other);
    rig.release(&key, &c).await;
    rig.refused(&key, &b).await;
    rig.hold(&key, &d).await;
}

async fn a_place_past_its_deadline_is_passed_over(rig: &Rig) {
    let (key, a, gone, c) = (key(), stranger(), stranger(), stranger());
    rig.hold(&key, &a).await;
    rig.acquire(Acquire { wait: Some(SHORT), ..ask(&key, &gone) }).await;
    rig.join(&key, &c).await;
    rig.pass(SHORT).await;
    rig.release(&key, &a).await;
    // The offer went to c: nobody waits any more, and it is nobody else's.
    match rig.acquire(ask(&key, &gone)).await {
        Acquired::Busy { line: 0, left, .. } => assert!(left <= ACCEPT_WINDOW),
        other => panic!("{other:?}"),
    }
    rig.hold(&key, &c).await;
}

async fn asking_again_keeps_the_place(rig: &Rig) {
    let (key, a, b, c) = (key(), stranger(), stranger(), stranger());
    rig.hold(&key, &a).await;
    let first = rig.join(&key, &b).await;
    rig.join(&key, &c).await;
    match rig.acquire(wait(&key, &b)).await {
        Acquired::Busy { seq, joined: false, .. } => assert_eq!(seq, first),
        other => panic!("it has its place already: {other:?}"),
    }
    match rig.acquire(ask(&key, &b)).await {
        Acquired::Busy { line: 2, seq: 0, joined: false, .. } => {}
        other => panic!("a try of one who waits: {other:?}"),
    }
    rig.release(&key, &a).await;
    rig.hold(&key, &b).await;
}

async fn asking_again_moves_the_deadline(rig: &Rig) {
    let (key, a, b) = (key(), stranger(), stranger());
    rig.hold(&key, &a).await;
    let first = Acquire { wait: Some(SHORT), ..ask(&key, &b) };
    rig.acquire(first).await;
    rig.join(&key, &b).await;
    rig.pass(SHORT).await;
    rig.release(&key, &a).await;
    rig.refused(&key, &a).await;
    rig.hold(&key, &b).await;
}

async fn ones_own_place_past_its_deadline_is_no_place(rig: &Rig) {
    let (key, a, b, c) = (key(), stranger(), stranger(), stranger());
    rig.acquire(Acquire { lease: SHORT, ..ask(&key, &a) }).await;
    let first = Acquire { wait: Some(SHORT), ..ask(&key, &b) };
    rig.acquire(first.clone()).await;
    let waits = rig.join(&key, &c).await;
    rig.pass(SHORT).await;
    match rig.acquire(first).await {
        Acquired::Busy { seq, left, joined: true, .. } => {
            assert!(seq > waits, "{seq} is not behind {waits}");
            assert!(left <= ACCEPT_WINDOW);
        }
        other => panic!("{other:?}"),
    }
    rig.hold(&key, &c).await;
}

async fn a_visit_to_a_free_lock_moves_its_line_on(rig: &Rig) {
    let (key, a, b, c) = (key(), stranger(), stranger(), stranger());
    rig.acquire(Acquire { lease: SHORT, ..ask(&key, &a) }).await;
    rig.join(&key, &b).await;
    rig.pass(SHORT).await;
    // The holder has died; a try of somebody else finds it free, and b stands before it.
    assert!(rig.refused(&key, &c).await <= ACCEPT_WINDOW);
    assert!(rig.refused(&key, &c).await <= ACCEPT_WINDOW);
    match rig.acquire(wait(&key, &b)).await {
        Acquired::Held { line: 0, .. } => {}
        other => panic!("the offer was not made: {other:?}"),
    }
}

async fn the_head_takes_a_free_lock_itself(rig: &Rig) {
    let (key, a, b, c) = (key(), stranger(), stranger(), stranger());
    rig.acquire(Acquire { lease: SHORT, ..ask(&key, &a) }).await;
    rig.join(&key, &b).await;
    rig.join(&key, &c).await;
    rig.pass(SHORT).await;
    match rig.acquire(wait(&key, &b)).await {
        Acquired::Held { line, .. } => assert_eq!(line, 1, "its own place is gone"),
        other => panic!("{other:?}"),
    }
    rig.release(&key, &b).await;
    rig.hold(&key, &c).await;
}

async fn a_try_takes_no_place(rig: &Rig) {
    let (key, a, b) = (key(), stranger(), stranger());
    rig.hold(&key, &a).await;
    rig.refused(&key, &b).await;
    assert_eq!(rig.release(&key, &b).await, GaveBack::Nothing);
    rig.release(&key, &a).await;
    rig.hold(&key, &stranger()).await;
}

async fn places_vanish_with_the_last_deadline(rig: &Rig) {
    let (key, a, b, c) = (key(), stranger(), stranger(), stranger());
    rig.put_off(&key).await;
    rig.hold(&key, &a).await;
    rig.acquire(Acquire { wait: Some(SHORT), ..ask(&key, &b) }).await;
    rig.pass(SHORT).await;
    assert_eq!(rig.release(&key, &b).await, GaveBack::Nothing);
    let asked = rig.acquire(ask(&key, &c)).await;
    assert!(matches!(asked, Acquired::Busy { line: 1, .. }), "{asked:?}");
    assert!(rig.refused(&key, &c).await > LONG / 2);
}

/// More than one step looks at.
async fn a_live_place_behind_many_dead_ones_is_not_passed(rig: &Rig) {
    let (key, holder, me) = (key(), stranger(), stranger());
    rig.acquire(Acquire { lease: SHORT, ..ask(&key, &holder) }).await;
    for _ in 0..130 {
        rig.acquire(Acquire { wait: Some(SHORT), ..ask(&key, &stranger()) }).await;
    }
    rig.join(&key, &me).await;
    rig.pass(SHORT).await;
    rig.refused(&key, &stranger()).await;
    rig.refused(&key, &stranger()).await;
    rig.hold(&key, &me).await;
}
