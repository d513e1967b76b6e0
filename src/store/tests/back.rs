//! What is given back, and which run is the one that goes on.

use super::{
    on_every_store,
    rig::{LONG, Rig, SHORT, again, key, settled, stranger, visit},
};
use crate::store::backend::{
    Claimed, Enqueue, JobId, JobPolicy, JobState, OnFailure, Running, Verdict,
};

on_every_store!(
    what_goes_back_is_passed_where_others_may_pass,
    what_is_handed_over_is_passed_by_nobody,
    what_runs_is_told_for_as_long_as_its_lock_is_held,
);

const BACK: Verdict = Verdict::Back { delay: SHORT, reason: "no key" };
const HAND: Verdict = Verdict::Hand { delay: SHORT, reason: "drained" };

async fn put(rig: &Rig, on_failure: OnFailure) -> JobId {
    let call = again(&key());
    let id = call.id.clone();
    let policy = JobPolicy { on_failure, ..call.policy };
    rig.enqueue(Enqueue { policy, ..call }).await;
    id
}

async fn heads(rig: &Rig) -> Option<JobId> {
    rig.heads(&[key()]).await.remove(0)
}

async fn what_goes_back_is_passed_where_others_may_pass(rig: &Rig) {
    rig.worker().await;
    for (on_failure, passed) in [(OnFailure::Skip, true), (OnFailure::Block, false)] {
        let (key, run, other) = (key(), stranger(), stranger());
        let (id, behind) = (put(rig, on_failure).await, rig.put_off(&key).await);
        rig.start(&key, &id, &run).await;
        let back = || settled(&key, &id, &run, BACK);
        assert!(rig.settle(back()).await);
        // Repeated it is the same.
        assert!(rig.settle(back()).await);
        let job = rig.job(&id).await.expect("it is kept");
        assert_eq!(
            (job.state, job.attempts, job.reason.as_deref()),
            (JobState::Queued, 0, Some("no key"))
        );
        if passed {
            assert_eq!((job.position, heads(rig).await), (None, Some(behind.clone())));
            assert_eq!(rig.start(&key, &behind, &other).await, 1);
            assert!(rig.finish(&key, &behind, &other).await);
        } else {
            assert_eq!((job.position, heads(rig).await), (Some(1), Some(id.clone())));
        }
        rig.pass(SHORT).await;
        rig.due(key.shard(), 10).await;
        // At its own place again.
        assert_eq!(heads(rig).await, Some(id.clone()));
        let run = stranger();
        assert_eq!(rig.start(&key, &id, &run).await, 1);
        assert!(rig.finish(&key, &id, &run).await);
        if !passed {
            assert_eq!(rig.start(&key, &behind, &other).await, 1);
            assert!(rig.finish(&key, &behind, &other).await);
        }
    }
}

/// A drain would change the order of every line else.
async fn what_is_handed_over_is_passed_by_nobody(rig: &Rig) {
    let (key, run) = (key(), stranger());
    rig.worker().await;
    let (id, _behind) = (put(rig, OnFailure::Skip).await, rig.put_off(&key).await);
    rig.start(&key, &id, &run).await;
    assert!(rig.settle(settled(&key, &id, &run, HAND)).await);
    let job = rig.job(&id).await.expect("it is kept");
    assert_eq!((job.position, job.attempts), (Some(1), 0));
    rig.pass(SHORT).await;
    assert_eq!(rig.start(&key, &id, &stranger()).await, 1);
}

/// By the store's clock alone: whoever asks may hear of a run that its own worker still believes in.
async fn what_runs_is_told_for_as_long_as_its_lock_is_held(rig: &Rig) {
    let key = key();
    let call = again(&key);
    let id = call.id.clone();
    let running = || async { rig.backend().running(id.clone()).await.unwrap() };
    assert_eq!(running().await, None, "nobody knows it");
    rig.enqueue(call).await;
    assert_eq!(running().await, None, "it waits");
    let mut last = 0;
    for (end, attempt) in [("handed over", 1), ("lapsed", 1), ("done", 2)] {
        let run = stranger();
        let Claimed::Claimed(begun) = rig.claim(visit(&key, &id, &run)).await else {
            panic!("it is free")
        };
        let told = running().await.expect("it runs");
        assert_eq!(told, Running { attempt, fence: begun.fence }, "{end}");
        assert!(told.fence > last, "{end}");
        last = begun.fence;
        let Claimed::Claimed(repeated) = rig.claim(visit(&key, &id, &run)).await else {
            panic!("it is its own")
        };
        assert!(repeated.fence > last, "the same run, by a larger fence");
        assert_eq!(running().await, Some(told), "{end}");
        match end {
            "handed over" => assert!(rig.settle(settled(&key, &id, &run, HAND)).await),
            "lapsed" => {}
            _ => assert!(rig.finish(&key, &id, &run).await),
        }
        let before = if end == "lapsed" { Some(told) } else { None };
        assert_eq!(running().await, before, "{end}");
        rig.pass(LONG).await;
        assert_eq!(running().await, None, "{end}");
    }
}
