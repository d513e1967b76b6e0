//! An exclusive hold that becomes a shared one.

use super::{
    modes::{renewal_as, wait_as},
    on_every_store,
    rig::{LONG, Rig, key, stranger},
};
use crate::store::backend::{
    AcquireReply,
    LockMode::{Exclusive, Permits, Shared},
    ReleaseOutcome,
};

on_every_store!(
    a_downgraded_hold_is_a_readers,
    it_lets_in_the_readers_at_the_head_alone,
    only_a_holder_can,
    what_a_lost_answer_made_of_it_is_given_back,
);

async fn a_downgraded_hold_is_a_readers(rig: &Rig) {
    let (key, me, reader, writer) = (key(), stranger(), stranger(), stranger());
    rig.hold(&key, &me).await;
    rig.refused_as(Shared, &key, &reader).await;
    assert!(rig.downgrade(&key, &me, LONG).await);
    rig.hold_as(Shared, &key, &reader).await;
    rig.refused_as(Permits(9), &key, &writer).await;
    rig.refused(&key, &writer).await;
    assert_eq!(rig.renew(vec![renewal_as(Exclusive, &key, &me, LONG)]).await, [false]);
    assert_eq!(rig.renew(vec![renewal_as(Shared, &key, &me, LONG)]).await, [true]);
    // There is no way back.
    rig.refused(&key, &me).await;
    assert_eq!(rig.release_as(Shared, &key, &me).await, ReleaseOutcome::Released);
    rig.refused(&key, &writer).await;
    rig.release_as(Shared, &key, &reader).await;
    rig.hold(&key, &writer).await;
}

async fn it_lets_in_the_readers_at_the_head_alone(rig: &Rig) {
    let (key, me, writer) = (key(), stranger(), stranger());
    let [a, b, late] = [stranger(), stranger(), stranger()];
    rig.hold(&key, &me).await;
    rig.join_as(Shared, &key, &a).await;
    rig.join_as(Shared, &key, &b).await;
    rig.join(&key, &writer).await;
    rig.join_as(Shared, &key, &late).await;
    assert!(rig.downgrade(&key, &me, LONG).await);
    match rig.acquire(wait_as(Shared, &key, &late)).await {
        AcquireReply::Busy { queue_length: 2, .. } => {}
        other => panic!("{other:?}"),
    }
    for reader in [&b, &a] {
        rig.hold_as(Shared, &key, reader).await;
    }
    for reader in [&a, &me, &b] {
        rig.refused(&key, &writer).await;
        rig.release_as(Shared, &key, reader).await;
    }
    rig.hold(&key, &writer).await;
}

async fn only_a_holder_can(rig: &Rig) {
    let (key, holder, waits, permit) = (key(), stranger(), stranger(), stranger());
    assert!(!rig.downgrade(&key, &holder, LONG).await, "nobody has it");
    rig.hold(&key, &holder).await;
    rig.join(&key, &waits).await;
    assert!(!rig.downgrade(&key, &waits, LONG).await, "a place");
    rig.release(&key, &holder).await;
    assert!(!rig.downgrade(&key, &waits, LONG).await, "an offer");
    rig.hold(&key, &waits).await;
    assert!(!rig.downgrade(&key, &holder, LONG).await, "another one has it");
    rig.release(&key, &waits).await;
    rig.hold_as(Permits(2), &key, &permit).await;
    assert!(!rig.downgrade(&key, &permit, LONG).await, "a permit");
    rig.refused_as(Shared, &key, &holder).await;
}

async fn what_a_lost_answer_made_of_it_is_given_back(rig: &Rig) {
    let (key, me, writer) = (key(), stranger(), stranger());
    rig.hold(&key, &me).await;
    rig.downgrade(&key, &me, LONG).await;
    rig.join(&key, &writer).await;
    // Who never heard of it undoes what he knows of.
    assert_eq!(rig.release(&key, &me).await, ReleaseOutcome::Released);
    assert_eq!(rig.release(&key, &me).await, ReleaseOutcome::NotFound);
    rig.hold(&key, &writer).await;
    // And it was not another one's.
    rig.release(&key, &writer).await;
    rig.hold_as(Shared, &key, &me).await;
    assert_eq!(rig.release(&key, &writer).await, ReleaseOutcome::NotFound);
    rig.refused(&key, &writer).await;
}
