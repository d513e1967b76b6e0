//! Holding a lock: acquire, renew, release, fences.

use super::{
    on_every_store,
    rig::{LONG, Rig, SHORT, ask, deferred, key, neighbours, stranger, wait},
};
use crate::store::backend::{
    AcquireCommand, AcquireReply, EnqueueOutcome, LeaseRenewal, LockMode, LockToken, NodeId,
    ReleaseOutcome, SPARE_FENCES,
};

on_every_store!(
    a_nonce_that_holds_it_is_told_so_again,
    fences_grow_over_all_locks_of_a_shard,
    release_says_what_was_there,
    a_release_that_is_only_sent_comes_before_what_is_called_next,
    a_lease_that_ended_can_be_told_from_one_never_had,
    a_lease_that_was_renewed_ends_with_its_holder,
    renewal_moves_the_end_and_only_of_ones_own,
    a_holder_can_raise_the_next_fence,
    what_comes_late_shortens_no_lease,
    a_known_request_takes_nothing,
    a_holder_is_held_whatever_the_record_says,
);

async fn a_nonce_that_holds_it_is_told_so_again(rig: &Rig) {
    let (key, a) = (key(), stranger());
    let first = rig.hold(&key, &a).await;
    let again = rig.hold(&key, &a).await;
    assert!(again > first + SPARE_FENCES, "{again} after {first}");
    assert_eq!(rig.release(&key, &a).await, ReleaseOutcome::Released);
    rig.hold(&key, &stranger()).await;
}

async fn fences_grow_over_all_locks_of_a_shard(rig: &Rig) {
    let keys = neighbours::<3>();
    let mut last = 0;
    for round in 0..12 {
        let (key, me) = (&keys[round % 3], stranger());
        let fence = rig.hold(key, &me).await;
        assert!(fence > last, "{fence} after {last}");
        // The spare ones are the holder's too.
        last = fence + SPARE_FENCES;
        rig.release(key, &me).await;
    }
}

async fn release_says_what_was_there(rig: &Rig) {
    let (key, a, b, c) = (key(), stranger(), stranger(), stranger());
    assert_eq!(rig.release(&key, &a).await, ReleaseOutcome::NotFound);
    rig.hold(&key, &a).await;
    rig.join(&key, &b).await;
    assert_eq!(rig.release(&key, &c).await, ReleaseOutcome::NotFound);
    assert_eq!(rig.release(&key, &b).await, ReleaseOutcome::Withdrawn, "a place");
    assert_eq!(rig.release(&key, &b).await, ReleaseOutcome::NotFound);
    rig.join(&key, &c).await;
    assert_eq!(rig.release(&key, &a).await, ReleaseOutcome::Released);
    assert_eq!(rig.release(&key, &a).await, ReleaseOutcome::NotFound);
    assert_eq!(rig.release(&key, &c).await, ReleaseOutcome::Withdrawn, "an offer");
    rig.hold(&key, &b).await;
}

async fn a_release_that_is_only_sent_comes_before_what_is_called_next(rig: &Rig) {
    let key = key();
    for round in 0..20 {
        let (a, b) = (stranger(), stranger());
        rig.hold(&key, &a).await;
        let sent = rig.send_release(&key, &a);
        if round % 2 == 0 {
            drop(sent);
            rig.hold(&key, &b).await;
        } else {
            rig.hold(&key, &b).await;
            assert_eq!(sent.await.unwrap(), ReleaseOutcome::Released);
        }
        assert_eq!(rig.send_release(&key, &b).await.unwrap(), ReleaseOutcome::Released);
        assert_eq!(rig.send_release(&key, &b).await.unwrap(), ReleaseOutcome::NotFound);
    }
}

async fn a_lease_that_ended_can_be_told_from_one_never_had(rig: &Rig) {
    let (key, a, b) = (key(), stranger(), stranger());
    let shared = |me, lease| AcquireCommand { mode: LockMode::Shared, lease, ..ask(&key, me) };
    rig.acquire(shared(&a, SHORT)).await;
    rig.acquire(shared(&b, LONG)).await;
    rig.pass(SHORT).await;
    // The other one keeps the key alive.
    let release = |me: &LockToken| rig.backend().release(key.clone(), me.clone(), LockMode::Shared);
    assert_eq!(release(&a).await.unwrap(), ReleaseOutcome::AlreadyExpired);
    assert_eq!(release(&a).await.unwrap(), ReleaseOutcome::NotFound);
    assert_eq!(release(&b).await.unwrap(), ReleaseOutcome::Released);
}

/// The key of one who is alone ends with him: nothing of him is left to be told from a release in time.
async fn a_lease_that_was_renewed_ends_with_its_holder(rig: &Rig) {
    let (key, a, b) = (key(), stranger(), stranger());
    for (me, again) in [(&a, false), (&b, true)] {
        rig.acquire(AcquireCommand { lease: SHORT / 2, ..ask(&key, me) }).await;
        if again {
            rig.acquire(AcquireCommand { lease: SHORT, ..ask(&key, me) }).await;
        } else {
            rig.renew(vec![LeaseRenewal { lease: SHORT, ..renewal(&key, me) }]).await;
        }
        rig.join(&key, &stranger()).await;
        rig.pass(SHORT).await;
        assert_eq!(rig.release(&key, me).await, ReleaseOutcome::NotFound);
        rig.pass(LONG).await;
    }
}

fn renewal(key: &crate::Key, me: &LockToken) -> LeaseRenewal {
    let (key, me) = (key.clone(), me.clone());
    LeaseRenewal { key, token: me, mode: LockMode::Exclusive, lease: LONG, job: None }
}

async fn renewal_moves_the_end_and_only_of_ones_own(rig: &Rig) {
    let [one, two, three] = neighbours::<3>();
    let (a, b) = (stranger(), stranger());
    for key in [&one, &two] {
        rig.acquire(AcquireCommand { lease: SHORT, ..ask(key, &a) }).await;
    }
    rig.join(&one, &b).await;
    let items = vec![renewal(&one, &b), renewal(&one, &a), renewal(&three, &a), renewal(&two, &b)];
    assert_eq!(rig.renew(items).await, [false, true, false, false]);
    rig.pass(SHORT).await;
    assert_eq!(rig.renew(vec![renewal(&two, &a)]).await, [false], "its lease had ended");
    assert!(rig.refused(&one, &stranger()).await > SHORT);
    rig.hold(&two, &b).await;
    assert_eq!(rig.renew(Vec::new()).await, [false; 0]);
}

async fn a_holder_can_raise_the_next_fence(rig: &Rig) {
    let (key, a, b) = (key(), stranger(), stranger());
    let far = rig.hold(&key, &a).await + 50_000_000;
    let raise = async |me: &LockToken, fence| {
        rig.backend().advance_fence(key.clone(), me.clone(), fence).await
    };
    assert!(!raise(&b, far * 2).await.unwrap(), "nothing is its own");
    for _ in 0..2 {
        assert!(raise(&a, far).await.unwrap());
    }
    assert!(raise(&a, 7).await.unwrap(), "a mark never goes back");
    rig.release(&key, &a).await;
    assert!(!raise(&a, far * 2).await.unwrap(), "not its own any more");
    let next = rig.hold(&key, &b).await;
    assert!((far + 1..far + 50_000_000).contains(&next), "{next} after {far}");
    rig.pass(LONG).await;
    assert!(!raise(&b, far * 2).await.unwrap(), "its lease has ended");
}

/// A renewal, or a copy of the call that took it, may lie in a silent connection while its holder extends it by another.
async fn what_comes_late_shortens_no_lease(rig: &Rig) {
    for (key, mode) in
        neighbours::<3>().iter().zip([LockMode::Exclusive, LockMode::Shared, LockMode::Permits(2)])
    {
        let (a, long) = (stranger(), LONG - SHORT);
        let asked = || AcquireCommand { mode, lease: SHORT, ..ask(key, &a) };
        let renewed = |lease| rig.renew(vec![LeaseRenewal { mode, lease, ..renewal(key, &a) }]);
        assert!(matches!(rig.acquire(asked()).await, AcquireReply::Granted { .. }));
        assert_eq!(renewed(LONG).await, [true]);
        assert_eq!(renewed(SHORT).await, [true]);
        assert!(rig.refused(key, &stranger()).await > long, "{mode:?}, renewed");
        assert!(matches!(rig.acquire(asked()).await, AcquireReply::Granted { .. }));
        assert!(rig.refused(key, &stranger()).await > long, "{mode:?}, asked again");
        rig.pass(SHORT).await;
        assert_eq!(renewed(SHORT).await, [true], "{mode:?}");
        rig.pass(LONG - SHORT).await;
        rig.hold(key, &stranger()).await;
    }
}

async fn a_known_request_takes_nothing(rig: &Rig) {
    let (key, a) = (key(), stranger());
    let mut call = deferred(&key);
    call.idempotency_record = Some(("idem".into(), "print".into(), SHORT));
    assert_eq!(rig.enqueue(call).await, EnqueueOutcome::Stored { position: 1 });
    let asked =
        |me: &LockToken| AcquireCommand { record_name: Some("idem".into()), ..wait(&key, me) };
    // The lock is free, and nobody watches: without the record it would be held.
    assert_eq!(rig.acquire(asked(&a)).await, AcquireReply::AlreadyAccepted);
    let other = AcquireCommand { record_name: Some("other".into()), ..ask(&key, &stranger()) };
    let AcquireReply::Granted { queue_length: line, .. } = rig.acquire(other).await else {
        panic!("the lock was taken by a known request")
    };
    assert_eq!(line, 1, "the job alone: no place either");
    rig.pass(SHORT).await;
    assert_eq!(
        rig.acquire(asked(&a)).await,
        AcquireReply::AlreadyAccepted,
        "however short its life: the job waits"
    );
}

async fn a_holder_is_held_whatever_the_record_says(rig: &Rig) {
    let (key, a) = (key(), LockToken::new(&NodeId::new()));
    rig.hold(&key, &a).await;
    let mut call = deferred(&key);
    call.idempotency_record = Some(("idem".into(), "print".into(), LONG));
    rig.enqueue(call).await;
    let again = AcquireCommand { record_name: Some("idem".into()), ..ask(&key, &a) };
    assert!(matches!(rig.acquire(again).await, AcquireReply::Granted { queue_length: 1, .. }));
}
