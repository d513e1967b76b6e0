//! Readers and permits, where jobs wait too, and where somebody has meddled with the store.

use super::{
    modes::wait_as,
    on_every_store,
    rig::{LONG, Rig, SHORT, key, stranger, visit},
};
use crate::store::backend::{
    AcquireReply, ClaimOutcome,
    LockMode::{Exclusive, Permits, Shared},
    OFFER_TIMEOUT,
};

on_every_store!(
    a_visit_ends_the_passing_over_under_readers_too,
    a_line_that_moves_does_not_put_off_a_job_that_was_passed_over,
    a_visit_for_a_job_behind_a_place_is_not_due_at_once,
    permits_go_round_a_job_as_readers_do,
);

async fn a_visit_ends_the_passing_over_under_readers_too(rig: &Rig) {
    let (key, a, run) = (key(), stranger(), stranger());
    rig.worker().await;
    rig.hold_as(Shared, &key, &a).await;
    let id = rig.put_off(&key).await;
    rig.release_as(Shared, &key, &a).await;
    rig.miss_the_window().await;
    let mut last = stranger();
    rig.hold_as(Shared, &key, &last).await;
    for _ in 0..3 {
        let next = stranger();
        rig.hold_as(Shared, &key, &next).await;
        rig.release_as(Shared, &key, &last).await;
        let due = rig.due(key.shard(), 10).await.names;
        assert_eq!(due, std::slice::from_ref(&key), "readers that overlap put it off");
        last = next;
    }
    let visited = rig.claim(visit(&key, &id, &run)).await;
    assert!(matches!(visited, ClaimOutcome::Busy(_)), "{visited:?}");
    rig.refused_as(Shared, &key, &stranger()).await;
    rig.release_as(Shared, &key, &last).await;
    assert_eq!(rig.start(&key, &id, &run).await, 1);
}

/// As `traffic_does_not_put_off_a_job_that_was_passed_over`, where those who come wait in line: each
/// offer has an end that a worker must look at, but not instead of what is due.
async fn a_line_that_moves_does_not_put_off_a_job_that_was_passed_over(rig: &Rig) {
    let (key, mut holder, run) = (key(), stranger(), stranger());
    rig.worker().await;
    rig.hold(&key, &holder).await;
    let id = rig.put_off(&key).await;
    rig.release(&key, &holder).await;
    rig.miss_the_window().await;
    holder = stranger();
    rig.hold(&key, &holder).await;
    for turn in 0..5 {
        let next = stranger();
        rig.join(&key, &next).await;
        rig.release(&key, &holder).await;
        let due = rig.due(key.shard(), 10).await.names;
        assert_eq!(due, std::slice::from_ref(&key), "put off by offer {turn}");
        rig.hold(&key, &next).await;
        holder = next;
    }
    let visited = rig.claim(visit(&key, &id, &run)).await;
    assert!(matches!(visited, ClaimOutcome::Busy(_)), "{visited:?}");
    rig.release(&key, &holder).await;
    assert_eq!(rig.start(&key, &id, &run).await, 1);
}

async fn a_visit_for_a_job_behind_a_place_is_not_due_at_once(rig: &Rig) {
    let (key, dead, waits, run) = (key(), stranger(), stranger(), stranger());
    rig.worker().await;
    rig.hold_for(Exclusive, &key, &dead, SHORT).await;
    rig.join(&key, &waits).await;
    let id = rig.put_off(&key).await;
    rig.pass(SHORT).await;
    assert_eq!(rig.due(key.shard(), 10).await.names, std::slice::from_ref(&key));
    let visited = rig.claim(visit(&key, &id, &run)).await;
    assert_eq!(visited, ClaimOutcome::Busy(OFFER_TIMEOUT));
    let due = rig.due(key.shard(), 10).await;
    assert!(due.names.is_empty(), "a worker would spin");
    assert!(due.next.is_some_and(|next| next <= OFFER_TIMEOUT), "{due:?}");
    rig.hold(&key, &waits).await;
}

async fn permits_go_round_a_job_as_readers_do(rig: &Rig) {
    let (key, run) = (key(), stranger());
    let [a, b, c] = [stranger(), stranger(), stranger()];
    rig.worker().await;
    for me in [&a, &b] {
        rig.hold_as(Permits(3), &key, me).await;
    }
    let id = rig.put_off(&key).await;
    rig.refused_as(Permits(3), &key, &c).await;
    for me in [&a, &b] {
        rig.release_as(Permits(3), &key, me).await;
    }
    rig.miss_the_window().await;
    // Nobody took it: live ones go on, the first of them at once.
    rig.hold_as(Permits(3), &key, &c).await;
    rig.hold_as(Permits(3), &key, &a).await;
    rig.pass(LONG).await;
    assert_eq!(rig.start(&key, &id, &run).await, 1);
}

#[cfg(feature = "redis")]
mod by_hand {
    use super::*;
    use crate::{
        Key,
        store::{
            backend::{AcquireCommand, ReleaseOutcome},
            tests::{modes::renewal_as, on_redis, redis_only::lasting},
        },
    };

    on_redis!(
        readers_whose_holds_vanished_are_told_so,
        a_line_that_vanished_is_made_anew,
        places_without_their_fields_are_served_and_go,
    );

    fn of_line(key: &Key, kind: &str) -> String {
        format!("{{{}}}:{kind}:{key}", key.shard())
    }

    async fn delete(rig: &Rig, name: &str) {
        assert_eq!(rig.server().raw::<i64>("DEL", name, &[]).await, 1);
    }

    async fn readers_whose_holds_vanished_are_told_so(rig: &Rig) {
        let (key, a, b, writer) = (key(), stranger(), stranger(), stranger());
        rig.hold_as(Shared, &key, &a).await;
        let fence = rig.hold_as(Shared, &key, &b).await;
        rig.join(&key, &writer).await;
        delete(rig, &of_line(&key, "h")).await;
        let items = [&a, &b].map(|me| renewal_as(Shared, &key, me, LONG));
        assert_eq!(rig.renew(items.into()).await, [false, false]);
        rig.refused_as(Shared, &key, &a).await;
        assert!(rig.hold(&key, &writer).await > fence);
        assert_eq!(rig.release_as(Shared, &key, &b).await, ReleaseOutcome::NotFound);
    }

    async fn a_line_that_vanished_is_made_anew(rig: &Rig) {
        let (key, reader, writer, late) = (key(), stranger(), stranger(), stranger());
        rig.hold_as(Shared, &key, &reader).await;
        let seq = rig.join(&key, &writer).await;
        delete(rig, &of_line(&key, "q")).await;
        // The writer knows of its old place; without it a reader would be in.
        let back = AcquireCommand { resume_seq: seq, ..wait_as(Exclusive, &key, &writer) };
        match rig.acquire(back).await {
            AcquireReply::Busy { seq: again, has_joined: true, queue_length: 1, .. } => {
                assert_eq!(again, seq);
            }
            other => panic!("{other:?}"),
        }
        rig.refused_as(Shared, &key, &late).await;
        rig.release_as(Shared, &key, &reader).await;
        rig.hold(&key, &writer).await;
    }

    async fn places_without_their_fields_are_served_and_go(rig: &Rig) {
        let (key, holder, writer) = (key(), stranger(), stranger());
        let readers = [stranger(), stranger()];
        rig.hold(&key, &holder).await;
        for me in &readers {
            rig.join_as(Shared, &key, me).await;
        }
        rig.join(&key, &writer).await;
        delete(rig, &of_line(&key, "l")).await;
        rig.release(&key, &holder).await;
        for me in &readers {
            rig.hold_as(Shared, &key, me).await;
        }
        // One with an old sequence passes the writer: that is noted in a key which has an end.
        let slow = stranger();
        let past = AcquireCommand { resume_seq: 1, ..wait_as(Shared, &key, &slow) };
        assert!(matches!(rig.acquire(past).await, AcquireReply::Granted { .. }));
        for me in readers.iter().chain([&slow]) {
            rig.release_as(Shared, &key, me).await;
        }
        rig.hold(&key, &writer).await;
        rig.release(&key, &writer).await;
        rig.pass(LONG).await;
        let left = rig.server().names().await;
        let left: Vec<_> = left.iter().filter(|name| !lasting(name)).collect();
        assert!(left.is_empty(), "{left:?}");
    }
}
