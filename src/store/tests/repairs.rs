//! What a store mends when somebody has meddled with it, and turns that must not be lost.

use super::{
    on_every_store,
    rig::{Rig, key, stranger, visit},
};
use crate::store::backend::{ClaimOutcome, OFFER_TIMEOUT};

on_every_store!(
    traffic_does_not_put_off_a_job_that_was_passed_over,
    those_who_come_later_stand_behind,
);

/// An offer to the job has lapsed, and live requests keep the lock busy: the worker's look stays due,
/// since it ends the passing over.
async fn traffic_does_not_put_off_a_job_that_was_passed_over(rig: &Rig) {
    let (key, first, run) = (key(), stranger(), stranger());
    rig.worker().await;
    rig.hold(&key, &first).await;
    let id = rig.put_off(&key).await;
    rig.release(&key, &first).await;
    rig.miss_the_window().await;
    for turn in 0..5 {
        let live = stranger();
        rig.hold(&key, &live).await;
        let due = rig.due(key.shard(), 10).await.names;
        assert_eq!(due, std::slice::from_ref(&key), "put off by number {turn}");
        rig.release(&key, &live).await;
    }
    let live = stranger();
    rig.hold(&key, &live).await;
    let visited = rig.claim(visit(&key, &id, &run)).await;
    assert!(matches!(visited, ClaimOutcome::Busy(_)), "{visited:?}");
    // The visit has ended the passing over: now it is the job's turn.
    rig.release(&key, &live).await;
    assert!(rig.refused(&key, &stranger()).await <= OFFER_TIMEOUT);
    assert_eq!(rig.start(&key, &id, &run).await, 1);
}

async fn those_who_come_later_stand_behind(rig: &Rig) {
    let (key, a, b, c) = (key(), stranger(), stranger(), stranger());
    rig.hold(&key, &a).await;
    let one = rig.join(&key, &b).await;
    assert!(one < rig.join(&key, &c).await);
    rig.release(&key, &a).await;
    rig.refused(&key, &c).await;
    rig.hold(&key, &b).await;
}

#[cfg(feature = "redis")]
mod by_hand {
    use std::time::SystemTime;

    use super::*;
    use crate::{
        Key,
        store::{
            backend::{AcquireReply, NodeId},
            tests::{
                on_redis,
                rig::{LONG, SHORT, wait},
            },
        },
    };

    on_redis!(
        a_watch_that_says_nothing_is_free,
        newcomers_stand_behind_those_who_are_there_when_the_counters_are_lost,
        a_lost_line_of_jobs_leaves_nothing_behind,
        a_place_of_an_unknown_mode_keeps_its_turn,
    );

    fn of_shard(key: &Key, kind: &str) -> String {
        format!("{{{}}}:{kind}", key.shard())
    }

    fn of_line(key: &Key, kind: &str) -> String {
        format!("{{{}}}:{kind}:{key}", key.shard())
    }

    async fn a_watch_that_says_nothing_is_free(rig: &Rig) {
        let watch = of_shard(&key(), "watch");
        rig.server().raw::<()>("SET", &watch, &["nobody"]).await;
        let id = rig.put_off(&key()).await;
        rig.hold(&key(), &stranger()).await;
        assert!(!rig.job(&id).await.unwrap().is_watched);
        assert_eq!(rig.beat(&NodeId::new(), SHORT).await.own_shards.len(), 64);
        assert!(rig.job(&id).await.unwrap().is_watched);
    }

    async fn newcomers_stand_behind_those_who_are_there_when_the_counters_are_lost(rig: &Rig) {
        let (key, a, b, c) = (key(), stranger(), stranger(), stranger());
        rig.worker().await;
        let fence = rig.hold(&key, &a).await;
        rig.join(&key, &b).await;
        let job = rig.put_off(&key).await;
        let shared = of_shard(&key, "f");
        assert_eq!(rig.server().raw::<i64>("DEL", &shared, &[]).await, 1);
        rig.join(&key, &c).await;
        rig.release(&key, &a).await;
        rig.refused(&key, &c).await;
        assert!(rig.hold(&key, &b).await > fence, "fences grow all the same");
        rig.release(&key, &b).await;
        rig.refused(&key, &c).await;
        let run = stranger();
        assert_eq!(rig.start(&key, &job, &run).await, 1, "b, the job, then c");
        assert!(rig.finish(&key, &job, &run).await);
        rig.hold(&key, &c).await;
    }

    async fn a_lost_line_of_jobs_leaves_nothing_behind(rig: &Rig) {
        let (key, a) = (key(), stranger());
        rig.worker().await;
        rig.hold(&key, &a).await;
        let id = rig.put_off(&key).await;
        let jobs = of_line(&key, "g");
        assert_eq!(rig.server().raw::<i64>("DEL", &jobs, &[]).await, 1);
        rig.release(&key, &a).await;
        rig.pass(LONG).await;
        let due = rig.due(key.shard(), 10).await.names;
        assert_eq!(due, std::slice::from_ref(&key));
        let visited = rig.claim(visit(&key, &id, &stranger())).await;
        assert_eq!(visited, ClaimOutcome::QueueEmpty);
        let due = rig.due(key.shard(), 10).await;
        assert_eq!((due.names.len(), due.next), (0, None));
        rig.pass(LONG).await;
        let left = rig.server().names().await;
        assert!(!left.contains(&of_line(&key, "l")), "{left:?}");
        // The lock itself is none the worse for it.
        rig.hold(&key, &stranger()).await;
    }

    /// As a later version might have put it there: shared, say.
    async fn a_place_of_an_unknown_mode_keeps_its_turn(rig: &Rig) {
        let (key, a, b, c) = (key(), stranger(), stranger(), stranger());
        rig.hold(&key, &a).await;
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let deadline = (since.unwrap() + LONG).as_millis();
        let place = format!("{deadline}:z:{}", stranger().as_str());
        let (line, seq) = (of_line(&key, "q"), "7");
        let added: i64 = rig.server().raw("ZADD", &line, &[seq, &place]).await;
        assert_eq!(added, 1);
        rig.join(&key, &b).await;
        rig.release(&key, &a).await;
        // Free, and still nobody barges in: neither a try nor those in line.
        for _ in 0..3 {
            rig.refused(&key, &c).await;
            let asked = rig.acquire(wait(&key, &b)).await;
            assert!(matches!(asked, AcquireReply::Busy { .. }), "{asked:?}");
            rig.miss_the_window().await;
        }
        let first: Vec<String> = rig.server().raw("ZRANGE", &line, &["0", "0"]).await;
        assert!(first[0].contains(":z:"), "it was dropped: {first:?}");
        // Until its own deadline; then b, who has come back meanwhile, is the first.
        rig.pass(LONG).await;
        rig.hold(&key, &b).await;
    }
}
