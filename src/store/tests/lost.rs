//! What operators may do to jobs of which something has vanished: none of it is in the way of others, and nothing of
//! it counts for ever.

use super::{
    rig::{LONG, Rig, SHORT, deferred, key, neighbours, stranger, visit},
    vanished::{called, counted, late, stored, vanishes},
};
use crate::{
    Key,
    store::backend::{Caps, Claimed, Enqueue, Enqueued, JobState},
};

/// Its request is there still, so it may be put back; what else its facts said is nobody's any more.
#[tokio::test]
async fn a_lost_job_that_is_put_back_runs() {
    let rig = Rig::redis().await;
    let (key, run) = (key(), stranger());
    rig.worker().await;
    let lost = stored(&rig, called(deferred(&key))).await;
    vanishes(&rig, &key, &format!("j:{lost}")).await;
    assert_eq!(rig.claim(visit(&key, &lost, &stranger())).await, Claimed::Dead(lost.clone()));
    assert_eq!(counted(&rig, &key).await, ["0", "0"]);
    assert_eq!(rig.redrive(&lost).await, Some(JobState::Queued));
    let next = stored(&rig, deferred(&key)).await;
    assert_eq!(rig.start(&key, &lost, &run).await, 1);
    // The answer was lost on the way.
    assert!(matches!(rig.claim(visit(&key, &lost, &run)).await, Claimed::Claimed(_)));
    assert!(rig.finish(&key, &lost, &run).await);
    let run = stranger();
    assert_eq!(rig.start(&key, &next, &run).await, 1);
    assert!(rig.finish(&key, &next, &run).await);
    assert_eq!(counted(&rig, &key).await, ["0", "0"]);
    // The same, and it is not run any more.
    let lost = stored(&rig, deferred(&key)).await;
    vanishes(&rig, &key, &format!("j:{lost}")).await;
    rig.claim(visit(&key, &lost, &stranger())).await;
    assert_eq!(rig.redrive(&lost).await, Some(JobState::Queued));
    assert_eq!(rig.cancel(&lost).await, Some(JobState::Cancelled));
    assert_eq!(counted(&rig, &key).await, ["0", "0"]);
}

#[tokio::test]
async fn late_jobs_of_a_lock_are_counted_as_they_are_when_one_has_vanished() {
    let rig = Rig::redis().await;
    let [one, two] = neighbours::<2>();
    let caps = Caps { resource_jobs: 2, ..Caps::NONE };
    let call = |key: &Key, delay| Enqueue { caps, ..late(key, delay, None) };
    let lost = stored(&rig, call(&one, SHORT)).await;
    let waits = stored(&rig, call(&one, LONG)).await;
    let other = stored(&rig, call(&two, LONG)).await;
    vanishes(&rig, &one, &format!("j:{lost}")).await;
    rig.pass(SHORT).await;
    rig.due(one.shard(), 10).await;
    stored(&rig, call(&one, LONG)).await;
    assert_eq!(rig.enqueue(call(&one, LONG)).await, Enqueued::Full, "those that are there count");
    stored(&rig, call(&two, LONG)).await;
    assert_eq!(rig.enqueue(call(&two, LONG)).await, Enqueued::Full);
    for id in [waits, other] {
        assert_eq!(rig.cancel(&id).await, Some(JobState::Cancelled));
    }
    stored(&rig, call(&one, LONG)).await;
    stored(&rig, call(&two, LONG)).await;
    assert_eq!(rig.enqueue(call(&one, LONG)).await, Enqueued::Full);
}
