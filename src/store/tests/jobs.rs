//! Deferred jobs in their queue: enqueue, offer, overtaking, cancellation.

use std::time::Duration;

use bytes::Bytes;

use super::{
    on_every_store,
    store_harness::{
        LONG_TIME, SHORT_TIME, StoreHarness, claim_command, done_settlement, enqueue_command,
        keys_of_one_shard, new_token, retryable_enqueue_command, settle_command, test_key,
    },
};
use crate::store::backend::{
    ClaimOutcome, EnqueueCommand, EnqueueOutcome, JobHistory, JobId, JobState, JobView,
    OFFER_TIMEOUT, Settlement,
};

on_every_store!(
    stored_job_can_be_looked_up,
    repeated_enqueue_stores_job_once,
    known_idempotency_key_returns_its_job,
    claim_on_held_lock_restores_job_offer,
    only_queued_job_can_be_cancelled,
    late_cancel_copy_ignores_job_that_ran_since,
    cancelling_first_job_in_backoff_frees_next,
    heads_returns_first_job_of_each_lock,
);

fn queued_job_view(position: u64) -> JobView {
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

async fn stored_job_can_be_looked_up(rig: &StoreHarness) {
    let key = test_key();
    let route = "POST /orders/{id}".to_owned();
    let call = enqueue_command(&key);
    let call = EnqueueCommand { owner: "tenant 1".into(), route: route.clone(), ..call };
    let (id, second) = (call.id.clone(), enqueue_command(&key));
    assert_eq!(rig.job_view(&id).await, None);
    assert_eq!(rig.enqueue(call).await, EnqueueOutcome::Stored { position: 1 });
    assert_eq!(rig.enqueue(second.clone()).await, EnqueueOutcome::Stored { position: 2 });
    let first = JobView { owner: "tenant 1".into(), ..queued_job_view(1) };
    assert_eq!(rig.job_view(&id).await, Some(first));
    assert_eq!(rig.job_view(&second.id).await, Some(queued_job_view(2)));
    rig.register_worker().await;
    let watched = JobView { is_watched: true, ..queued_job_view(2) };
    assert_eq!(rig.job_view(&second.id).await, Some(watched));
    for (id, route) in [(id, Some(route)), (second.id, None)] {
        assert_eq!(rig.job_history(&id).await.expect("it is stored").route, route);
    }
}

async fn repeated_enqueue_stores_job_once(rig: &StoreHarness) {
    let (key, mut call) = (test_key(), enqueue_command(&test_key()));
    call.limits.resource_jobs = 1;
    assert_eq!(rig.enqueue(call.clone()).await, EnqueueOutcome::Stored { position: 1 });
    assert_eq!(rig.enqueue(call.clone()).await, EnqueueOutcome::Stored { position: 1 });
    let other = EnqueueCommand { id: JobId::new(&key), ..call.clone() };
    assert_eq!(rig.enqueue(other).await, EnqueueOutcome::Full);
    let run = new_token();
    rig.start_run(&key, &call.id, &run).await;
    rig.finish_run(&key, &call.id, &run).await;
    // The job has ended: a copy of its enqueue must not run it again.
    rig.enqueue(call.clone()).await;
    assert_eq!(rig.heads(&[key]).await, [None]);
    assert_eq!(rig.job_state(&call.id).await, Some(JobState::Done));
}

async fn known_idempotency_key_returns_its_job(rig: &StoreHarness) {
    let key = test_key();
    let command = |print: &str| EnqueueCommand {
        idempotency_record: Some(("idem".into(), print.into(), SHORT_TIME)),
        ..enqueue_command(&key)
    };
    let first = command("one");
    assert_eq!(rig.enqueue(first.clone()).await, EnqueueOutcome::Stored { position: 1 });
    assert_eq!(rig.enqueue(command("one")).await, EnqueueOutcome::Duplicate(first.id.clone()));
    assert_eq!(rig.enqueue(command("two")).await, EnqueueOutcome::FingerprintMismatch);
    // The same command, repeated after a lost reply, is no other request.
    assert_eq!(rig.enqueue(first).await, EnqueueOutcome::Stored { position: 1 });
    rig.advance_past(SHORT_TIME).await;
    assert_eq!(
        rig.enqueue(command("two")).await,
        EnqueueOutcome::FingerprintMismatch,
        "as long as it waits"
    );
}

async fn claim_on_held_lock_restores_job_offer(rig: &StoreHarness) {
    let (key, a, run) = (test_key(), new_token(), new_token());
    rig.register_worker().await;
    let id = rig.enqueue_job(&key).await;
    rig.let_offer_expire().await;
    rig.acquire_exclusive(&key, &a).await;
    match rig.claim(claim_command(&key, &id, &run)).await {
        ClaimOutcome::Busy(lease_remaining) => {
            assert!(lease_remaining > LONG_TIME / 2 && lease_remaining <= LONG_TIME);
        }
        other => panic!("{other:?}"),
    }
    rig.release(&key, &a).await;
    assert!(rig.expect_busy(&key, &a).await <= OFFER_TIMEOUT);
    rig.start_run(&key, &id, &run).await;
}

async fn only_queued_job_can_be_cancelled(rig: &StoreHarness) {
    let (key, run) = (test_key(), new_token());
    assert_eq!(rig.cancel(&JobId::new(&key)).await, None);
    let id = rig.enqueue_job(&key).await;
    rig.start_run(&key, &id, &run).await;
    assert_eq!(rig.cancel(&id).await, Some(JobState::Running));
    assert!(rig.finish_run(&key, &id, &run).await);
    assert_eq!(rig.cancel(&id).await, Some(JobState::Done));
    assert_eq!(rig.job_view(&id).await.unwrap().response, Some(Bytes::from_static(b"answer")));
}

/// Another copy of the cancel was answered that the job runs.
async fn late_cancel_copy_ignores_job_that_ran_since(rig: &StoreHarness) {
    let (key, run) = (test_key(), new_token());
    rig.register_worker().await;
    let call = retryable_enqueue_command(&key);
    let id = call.id.clone();
    rig.enqueue(call).await;
    let late_cancel = || rig.cancel_started_at(&id, 0);
    rig.start_run(&key, &id, &run).await;
    assert_eq!(late_cancel().await, Some(JobState::Running));
    let retry = Settlement::Retry { delay: SHORT_TIME, reason: "status 500" };
    assert!(rig.settle(settle_command(&key, &id, &run, retry)).await);
    assert_eq!(late_cancel().await, Some(JobState::Queued));
    rig.advance_past(SHORT_TIME).await;
    let run = new_token();
    assert_eq!(rig.start_run(&key, &id, &run).await, 2, "it runs again");
    let dead = Settlement::Dead { reason: "auth", retention: LONG_TIME };
    assert!(rig.settle(settle_command(&key, &id, &run, dead)).await);
    assert_eq!(late_cancel().await, Some(JobState::Dead));
    assert_eq!(rig.redrive(&id).await, Some(JobState::Queued));
    assert_eq!(
        late_cancel().await,
        Some(JobState::Queued),
        "the late cancel leaves the redriven job"
    );
    for _ in 0..2 {
        assert_eq!(rig.cancel(&id).await, Some(JobState::Cancelled), "a new cancel ends the job");
    }
}

async fn cancelling_first_job_in_backoff_frees_next(rig: &StoreHarness) {
    let (key, run) = (test_key(), new_token());
    rig.register_worker().await;
    let (first, second) = (rig.enqueue_job(&key).await, rig.enqueue_job(&key).await);
    rig.start_run(&key, &first, &run).await;
    let retry = Settlement::Retry { delay: LONG_TIME, reason: "status 500" };
    assert!(rig.settle(settle_command(&key, &first, &run, retry)).await);
    rig.cancel(&first).await;
    assert!(rig.expect_busy(&key, &new_token()).await <= OFFER_TIMEOUT);
    assert_eq!(rig.start_run(&key, &second, &new_token()).await, 1);
}

async fn heads_returns_first_job_of_each_lock(rig: &StoreHarness) {
    let [one, two, three] = keys_of_one_shard::<3>();
    let (first, run) = (rig.enqueue_job(&one).await, new_token());
    let second = rig.enqueue_job(&one).await;
    let other = rig.enqueue_job(&three).await;
    let keys = [one.clone(), two, three];
    let heads = rig.heads(&keys).await;
    assert_eq!(heads, [Some(first.clone()), None, Some(other.clone())]);
    rig.start_run(&one, &first, &run).await;
    // A running job stays at the queue head.
    assert_eq!(rig.heads(&keys).await[0], Some(first.clone()));
    rig.settle(settle_command(&one, &first, &run, done_settlement())).await;
    assert_eq!(rig.heads(&keys).await, [Some(second), None, Some(other)]);
    assert_eq!(rig.heads(&[]).await, []);
    assert_eq!(rig.poll_due(one.shard(), 10).await.next_due_in, None::<Duration>);
}
