//! Waiting for a lock: the line of live places.

use super::{
    on_every_store,
    rig::{LONG, Rig, SHORT, ask, key, stranger, wait},
};
use crate::store::backend::{
    AcquireCommand, AcquireReply, LockToken, OFFER_TIMEOUT, ReleaseOutcome,
};

on_every_store!(
    a_lapsed_offer_comes_back_to_its_old_place,
    ones_own_place_past_its_deadline_is_no_place,
    places_vanish_with_the_last_deadline,
    a_live_place_behind_many_dead_ones_is_not_passed,
);

/// The lock is held by `a`, and the offer to `b` has lapsed; its old sequence.
async fn lapse(rig: &Rig, a: &LockToken, b: &LockToken) -> u64 {
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
    match rig.acquire(AcquireCommand { resume_seq: old, ..wait(&key, &b) }).await {
        AcquireReply::Busy { seq, queue_length: 2, has_joined: true, .. } => assert_eq!(seq, old),
        other => panic!("{other:?}"),
    }
    rig.release(&key, &c).await;
    rig.refused(&key, &d).await;
    rig.hold(&key, &b).await;
}

async fn ones_own_place_past_its_deadline_is_no_place(rig: &Rig) {
    let (key, a, b, c) = (key(), stranger(), stranger(), stranger());
    rig.acquire(AcquireCommand { lease: SHORT, ..ask(&key, &a) }).await;
    let first = AcquireCommand { max_wait: Some(SHORT), ..ask(&key, &b) };
    rig.acquire(first.clone()).await;
    let waits = rig.join(&key, &c).await;
    rig.pass(SHORT).await;
    match rig.acquire(first).await {
        AcquireReply::Busy { seq, lease_remaining: left, has_joined: true, .. } => {
            assert!(seq > waits, "{seq} is not behind {waits}");
            assert!(left <= OFFER_TIMEOUT);
        }
        other => panic!("{other:?}"),
    }
    rig.hold(&key, &c).await;
}

async fn places_vanish_with_the_last_deadline(rig: &Rig) {
    let (key, a, b, c) = (key(), stranger(), stranger(), stranger());
    rig.put_off(&key).await;
    rig.hold(&key, &a).await;
    rig.acquire(AcquireCommand { max_wait: Some(SHORT), ..ask(&key, &b) }).await;
    rig.pass(SHORT).await;
    assert_eq!(rig.release(&key, &b).await, ReleaseOutcome::NotFound);
    let asked = rig.acquire(ask(&key, &c)).await;
    assert!(matches!(asked, AcquireReply::Busy { queue_length: 1, .. }), "{asked:?}");
    assert!(rig.refused(&key, &c).await > LONG / 2);
}

/// More than one step looks at.
async fn a_live_place_behind_many_dead_ones_is_not_passed(rig: &Rig) {
    let (key, holder, me) = (key(), stranger(), stranger());
    rig.acquire(AcquireCommand { lease: SHORT, ..ask(&key, &holder) }).await;
    for _ in 0..130 {
        rig.acquire(AcquireCommand { max_wait: Some(SHORT), ..ask(&key, &stranger()) }).await;
    }
    rig.join(&key, &me).await;
    rig.pass(SHORT).await;
    rig.refused(&key, &stranger()).await;
    rig.refused(&key, &stranger()).await;
    rig.hold(&key, &me).await;
}
