//! Giving back and asking again for the next of the same process, in one call.

use std::time::Duration;

use super::{
    modes::{fence_of, seq_of, wait_as},
    on_every_store,
    rig::{LONG, Rig, key, stranger, wait},
};
use crate::store::backend::{
    AcquireCommand, AcquireReply, Contenders,
    LockMode::{Exclusive, Permits, Shared},
    LockToken, NodeId, ReleaseOutcome, SPARE_FENCES,
};

on_every_store!(
    who_came_before_all_in_line_has_it_at_once,
    who_came_before_a_job_has_it_at_once,
    what_is_no_holders_is_left_to_nobody,
    it_passes_between_tokens_for_ever,
    a_reader_does_not_pass_a_writer,
    permits_are_passed_too,
    a_job_that_waits_comes_first,
    hidden_jobs_stay_due,
);

fn two() -> [LockToken; 2] {
    let node = NodeId::new();
    [(); 2].map(|()| LockToken::new(&node))
}

/// Its moment is the store's time, as its process knows it.
async fn who_came_before_all_in_line_has_it_at_once(rig: &Rig) {
    let (key, [a, b], c, d) = (key(), two(), stranger(), stranger());
    let last = rig.hold(&key, &a).await;
    let first = rig.join(&key, &c).await;
    rig.join(&key, &d).await;
    // Who joined within a microsecond of another has a sequence that is ahead of the clock.
    rig.pass(Duration::from_millis(5)).await;
    let call = AcquireCommand { resume_seq: first - 1, ..wait(&key, &b) };
    let (gave_back, held) = rig.hand_on(&a, Exclusive, call.clone()).await;
    assert_eq!(gave_back, ReleaseOutcome::Released);
    match held {
        AcquireReply::Granted { fence, queue_length: 2, contenders: others, .. } => {
            assert!(fence > last + SPARE_FENCES, "{fence} after {last}");
            assert_eq!(others, Contenders::from_waiter(first));
        }
        other => panic!("{other:?}"),
    }
    // Twice is once.
    let (gave_back, again) = rig.hand_on(&a, Exclusive, call).await;
    assert_eq!(gave_back, ReleaseOutcome::NotFound);
    assert!(fence_of(&again) > fence_of(&held));
    rig.refused(&key, &c).await;
    rig.release(&key, &b).await;
    rig.hold(&key, &c).await;
    rig.refused(&key, &d).await;
}

async fn who_came_before_a_job_has_it_at_once(rig: &Rig) {
    let (key, [a, b]) = (key(), two());
    rig.worker().await;
    rig.hold(&key, &a).await;
    rig.put_off(&key).await;
    let job = rig.still(&key, &a).await.unwrap().contenders;
    rig.pass(Duration::from_millis(5)).await;
    let earlier = AcquireCommand { resume_seq: job.first - 1, ..wait(&key, &b) };
    let (_, held) = rig.hand_on(&a, Exclusive, earlier).await;
    assert!(
        matches!(held, AcquireReply::Granted { queue_length: 1, contenders: others, .. } if others == job),
        "{held:?}"
    );
    let later = AcquireCommand { resume_seq: job.first + 1, ..wait(&key, &a) };
    let (_, asked) = rig.hand_on(&b, Exclusive, later).await;
    assert!(matches!(asked, AcquireReply::Busy { queue_length: 2, .. }), "{asked:?}");
}

/// A place that is given up, and a lock whose time is over.
async fn what_is_no_holders_is_left_to_nobody(rig: &Rig) {
    let (key, [a, b], c, holder) = (key(), two(), stranger(), stranger());
    rig.hold(&key, &holder).await;
    let mine = rig.join(&key, &a).await;
    rig.join(&key, &c).await;
    let call = AcquireCommand { resume_seq: mine - 1, ..wait(&key, &b) };
    let (gave_back, asked) = rig.hand_on(&a, Exclusive, call).await;
    assert_eq!(gave_back, ReleaseOutcome::Withdrawn);
    assert_eq!(seq_of(&asked), mine - 1, "it stands where it came");
    rig.release(&key, &holder).await;
    rig.hold(&key, &b).await;
    rig.refused(&key, &c).await;
}

async fn it_passes_between_tokens_for_ever(rig: &Rig) {
    let (key, [a, b]) = (key(), two());
    let mut last = rig.hold(&key, &a).await;
    for round in 0..10 {
        let (me, next) = if round % 2 == 0 { (&a, &b) } else { (&b, &a) };
        let (gave_back, held) = rig.hand_on(me, Exclusive, wait(&key, next)).await;
        assert_eq!(gave_back, ReleaseOutcome::Released);
        assert!(fence_of(&held) > last + SPARE_FENCES);
        last = fence_of(&held);
    }
}

async fn a_reader_does_not_pass_a_writer(rig: &Rig) {
    let (key, [a, b], writer, other) = (key(), two(), stranger(), stranger());
    rig.hold_as(Shared, &key, &a).await;
    rig.hold_as(Shared, &key, &other).await;
    rig.join(&key, &writer).await;
    let (gave_back, asked) = rig.hand_on(&a, Shared, wait_as(Shared, &key, &b)).await;
    assert_eq!(gave_back, ReleaseOutcome::Released);
    assert!(matches!(asked, AcquireReply::Busy { has_joined: true, .. }), "{asked:?}");
    rig.release_as(Shared, &key, &other).await;
    rig.hold(&key, &writer).await;
    // Without one it is as any other: in beside those who are.
    let (_, asked) = rig.hand_on(&writer, Exclusive, wait(&key, &writer)).await;
    assert!(matches!(asked, AcquireReply::Busy { .. }), "b is offered it: {asked:?}");
}

async fn permits_are_passed_too(rig: &Rig) {
    let (key, [a, b], c, d) = (key(), two(), stranger(), stranger());
    for me in [&a, &c] {
        rig.hold_as(Permits(2), &key, me).await;
    }
    let (_, held) = rig.hand_on(&a, Permits(2), wait_as(Permits(2), &key, &b)).await;
    fence_of(&held);
    rig.join_as(Permits(2), &key, &d).await;
    let (gave_back, asked) = rig.hand_on(&b, Permits(2), wait_as(Permits(2), &key, &a)).await;
    assert_eq!(gave_back, ReleaseOutcome::Released);
    assert!(matches!(asked, AcquireReply::Busy { queue_length: 1, .. }), "{asked:?}");
    rig.hold_as(Permits(2), &key, &d).await;
    rig.refused_as(Permits(2), &key, &a).await;
}

async fn a_job_that_waits_comes_first(rig: &Rig) {
    let (key, [a, b], run) = (key(), two(), stranger());
    rig.worker().await;
    rig.hold(&key, &a).await;
    let id = rig.put_off(&key).await;
    let (gave_back, asked) = rig.hand_on(&a, Exclusive, wait(&key, &b)).await;
    assert_eq!(gave_back, ReleaseOutcome::Released);
    assert!(matches!(asked, AcquireReply::Busy { queue_length: 2, .. }), "{asked:?}");
    assert_eq!(rig.start(&key, &id, &run).await, 1);
    rig.finish(&key, &id, &run).await;
    rig.hold(&key, &b).await;
}

async fn hidden_jobs_stay_due(rig: &Rig) {
    let (key, [a, b]) = (key(), two());
    rig.hold(&key, &a).await;
    rig.put_off(&key).await;
    // Nobody watches: live requests go on, and a worker that comes finds it due.
    let (_, asked) = rig.hand_on(&a, Exclusive, wait(&key, &b)).await;
    assert!(
        matches!(
            asked,
            AcquireReply::Granted { queue_length: 1, contenders: Contenders::NONE, .. }
        ),
        "{asked:?}"
    );
    assert_eq!(rig.due(key.shard(), 10).await.names, std::slice::from_ref(&key));
    rig.pass(LONG).await;
    assert_eq!(rig.due(key.shard(), 10).await.names, [key]);
}
