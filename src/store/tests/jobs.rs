//! Deferred requests in their line: enqueue, the offer to a job, being passed over, cancel.

use std::time::Duration;

use bytes::Bytes;

use super::{
    on_every_store,
    rig::{LONG, Rig, SHORT, again, deferred, done, key, neighbours, settled, stranger, visit},
};
use crate::store::backend::{
    ClaimOutcome, EnqueueCommand, EnqueueOutcome, JobHistory, JobId, JobState, JobView,
    OFFER_TIMEOUT, Settlement,
};

on_every_store!(
    a_stored_job_can_be_looked_up,
    storing_it_twice_is_once,
    a_known_key_gives_its_job,
    a_visit_clears_the_parking_while_the_lock_is_held,
    only_what_waits_can_be_cancelled,
    a_late_copy_cancels_nothing_that_has_run_since,
    cancelling_the_first_in_backoff_frees_the_next,
    heads_are_told_for_each_line,
);

fn plain(position: u64) -> JobView {
    JobView {
        state: JobState::Queued,
        attempts: 0,
        position: Some(position),
        reason: None,
        owner: String::new(),
        is_watched: false,
        response: None,
        is_tombstone: false,
        history: JobHistory::default(),
    }
}

async fn a_stored_job_can_be_looked_up(rig: &Rig) {
    let key = key();
    let call = EnqueueCommand { owner: "tenant 1".into(), ..deferred(&key) };
    let (id, second) = (call.id.clone(), deferred(&key));
    assert_eq!(rig.job(&id).await, None);
    assert_eq!(rig.enqueue(call).await, EnqueueOutcome::Stored { position: 1 });
    assert_eq!(rig.enqueue(second.clone()).await, EnqueueOutcome::Stored { position: 2 });
    let first = JobView { owner: "tenant 1".into(), ..plain(1) };
    assert_eq!(rig.job(&id).await, Some(first));
    assert_eq!(rig.job(&second.id).await, Some(plain(2)));
    rig.worker().await;
    let seen = JobView { is_watched: true, ..plain(2) };
    assert_eq!(rig.job(&second.id).await, Some(seen));
}

async fn storing_it_twice_is_once(rig: &Rig) {
    let (key, mut call) = (key(), deferred(&key()));
    call.limits.resource_jobs = 1;
    assert_eq!(rig.enqueue(call.clone()).await, EnqueueOutcome::Stored { position: 1 });
    assert_eq!(rig.enqueue(call.clone()).await, EnqueueOutcome::Stored { position: 1 });
    let other = EnqueueCommand { id: JobId::new(&key), ..call.clone() };
    assert_eq!(rig.enqueue(other).await, EnqueueOutcome::Full);
    let run = stranger();
    rig.start(&key, &call.id, &run).await;
    rig.finish(&key, &call.id, &run).await;
    // Stored, and long done: a retry of the first call must not run it again.
    rig.enqueue(call.clone()).await;
    assert_eq!(rig.heads(&[key]).await, [None]);
    assert_eq!(rig.state(&call.id).await, Some(JobState::Done));
}

async fn a_known_key_gives_its_job(rig: &Rig) {
    let key = key();
    let keyed = |print: &str| EnqueueCommand {
        idempotency_record: Some(("idem".into(), print.into(), SHORT)),
        ..deferred(&key)
    };
    let first = keyed("one");
    assert_eq!(rig.enqueue(first.clone()).await, EnqueueOutcome::Stored { position: 1 });
    assert_eq!(rig.enqueue(keyed("one")).await, EnqueueOutcome::Duplicate(first.id.clone()));
    assert_eq!(rig.enqueue(keyed("two")).await, EnqueueOutcome::FingerprintMismatch);
    // The very same call, sent again after a lost reply, is no other request.
    assert_eq!(rig.enqueue(first).await, EnqueueOutcome::Stored { position: 1 });
    rig.pass(SHORT).await;
    assert_eq!(
        rig.enqueue(keyed("two")).await,
        EnqueueOutcome::FingerprintMismatch,
        "as long as it waits"
    );
}

async fn a_visit_clears_the_parking_while_the_lock_is_held(rig: &Rig) {
    let (key, a, run) = (key(), stranger(), stranger());
    rig.worker().await;
    let id = rig.put_off(&key).await;
    rig.miss_the_window().await;
    rig.hold(&key, &a).await;
    match rig.claim(visit(&key, &id, &run)).await {
        ClaimOutcome::Busy(left) => assert!(left > LONG / 2 && left <= LONG),
        other => panic!("{other:?}"),
    }
    rig.release(&key, &a).await;
    assert!(rig.refused(&key, &a).await <= OFFER_TIMEOUT);
    rig.start(&key, &id, &run).await;
}

async fn only_what_waits_can_be_cancelled(rig: &Rig) {
    let (key, run) = (key(), stranger());
    assert_eq!(rig.cancel(&JobId::new(&key)).await, None);
    let id = rig.put_off(&key).await;
    rig.start(&key, &id, &run).await;
    assert_eq!(rig.cancel(&id).await, Some(JobState::Running));
    assert!(rig.finish(&key, &id, &run).await);
    assert_eq!(rig.cancel(&id).await, Some(JobState::Done));
    assert_eq!(rig.job(&id).await.unwrap().response, Some(Bytes::from_static(b"answer")));
}

/// Whoever sent it was told by its other copy that the job runs.
async fn a_late_copy_cancels_nothing_that_has_run_since(rig: &Rig) {
    let (key, run) = (key(), stranger());
    rig.worker().await;
    let call = again(&key);
    let id = call.id.clone();
    rig.enqueue(call).await;
    let copy = || rig.cancel_as(&id, 0);
    rig.start(&key, &id, &run).await;
    assert_eq!(copy().await, Some(JobState::Running));
    let retry = Settlement::Retry { delay: SHORT, reason: "status 500" };
    assert!(rig.settle(settled(&key, &id, &run, retry)).await);
    assert_eq!(copy().await, Some(JobState::Queued));
    rig.pass(SHORT).await;
    let run = stranger();
    assert_eq!(rig.start(&key, &id, &run).await, 2, "it runs again");
    let dead = Settlement::Dead { reason: "auth", retention: LONG };
    assert!(rig.settle(settled(&key, &id, &run, dead)).await);
    assert_eq!(copy().await, Some(JobState::Dead));
    assert_eq!(rig.redrive(&id).await, Some(JobState::Queued));
    assert_eq!(copy().await, Some(JobState::Queued), "nor what was put back");
    for _ in 0..2 {
        assert_eq!(rig.cancel(&id).await, Some(JobState::Cancelled), "as it is seen now");
    }
}

async fn cancelling_the_first_in_backoff_frees_the_next(rig: &Rig) {
    let (key, run) = (key(), stranger());
    rig.worker().await;
    let (first, second) = (rig.put_off(&key).await, rig.put_off(&key).await);
    rig.start(&key, &first, &run).await;
    let later = Settlement::Retry { delay: LONG, reason: "status 500" };
    assert!(rig.settle(settled(&key, &first, &run, later)).await);
    rig.cancel(&first).await;
    assert!(rig.refused(&key, &stranger()).await <= OFFER_TIMEOUT);
    assert_eq!(rig.start(&key, &second, &stranger()).await, 1);
}

async fn heads_are_told_for_each_line(rig: &Rig) {
    let [one, two, three] = neighbours::<3>();
    let (first, run) = (rig.put_off(&one).await, stranger());
    let second = rig.put_off(&one).await;
    let other = rig.put_off(&three).await;
    let keys = [one.clone(), two, three];
    let heads = rig.heads(&keys).await;
    assert_eq!(heads, [Some(first.clone()), None, Some(other.clone())]);
    rig.start(&one, &first, &run).await;
    // It stays at its place while it runs.
    assert_eq!(rig.heads(&keys).await[0], Some(first.clone()));
    rig.settle(settled(&one, &first, &run, done())).await;
    assert_eq!(rig.heads(&keys).await, [Some(second), None, Some(other)]);
    assert_eq!(rig.heads(&[]).await, []);
    assert_eq!(rig.due(one.shard(), 10).await.next, None::<Duration>);
}
