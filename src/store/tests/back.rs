//! What is given back.

use super::{
    on_every_store,
    rig::{Rig, SHORT, again, key, settled, stranger, visit},
};
use crate::store::backend::{Enqueue, JobId, JobPolicy, JobState, OnFailure, Verdict};

on_every_store!(
    what_goes_back_is_passed_where_others_may_pass,
    what_is_handed_over_is_passed_by_nobody,
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
