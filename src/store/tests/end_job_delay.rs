//! Ends of delays and backoffs before their time.

use super::{
    on_every_store,
    store_harness::{
        LONG_TIME, SHORT_TIME, StoreHarness, enqueue_command, new_token, retryable_enqueue_command,
        settle_command, test_key, try_acquire_command,
    },
};
use crate::{
    Key,
    store::backend::{
        AcquireCommand, EnqueueCommand, JobId, JobPolicy, JobState, OFFER_TIMEOUT, Settlement,
    },
};

on_every_store!(
    delayed_job_returns_to_its_place_with_the_next_poll,
    ended_backoff_offers_the_free_lock,
    ended_backoff_is_polled_after_a_crashed_holder,
    late_copy_leaves_a_later_backoff,
    job_that_does_not_wait_is_left_alone,
);

/// Ends the delay of a job, twice, as its caller repeats a call without a reply.
async fn end_delay(rig: &StoreHarness, id: &JobId) {
    let began_us = rig.job_history(id).await.expect("it is stored").started_us;
    for _ in 0..2 {
        let state = rig.backend().end_job_delay(id.clone(), began_us).await;
        assert_eq!(state.expect("the store is there"), Some(JobState::Queued));
    }
}

/// Runs a job once, and leaves it in backoff.
async fn fail_first_run(rig: &StoreHarness, key: &Key) -> JobId {
    let call = retryable_enqueue_command(key);
    let (id, run) = (call.id.clone(), new_token());
    rig.enqueue(call).await;
    rig.start_run(key, &id, &run).await;
    let retry = Settlement::Retry { delay: LONG_TIME, reason: "status 503" };
    assert!(rig.settle(settle_command(key, &id, &run, retry)).await);
    id
}

async fn delayed_job_returns_to_its_place_with_the_next_poll(rig: &StoreHarness) {
    let key = test_key();
    rig.register_worker().await;
    let call = enqueue_command(&key);
    let policy = JobPolicy { delay: LONG_TIME, ..call.policy };
    let late = call.id.clone();
    rig.enqueue(EnqueueCommand { policy, ..call }).await;
    let next = rig.enqueue_job(&key).await;
    end_delay(rig, &late).await;
    assert_eq!(rig.job_history(&late).await.expect("it is stored").due_in, None);
    rig.poll_due(key.shard(), 10).await;
    end_delay(rig, &late).await;
    for (position, id) in (1..).zip([&late, &next]) {
        assert_eq!(rig.job_view(id).await.expect("it is stored").position, Some(position));
    }
    assert_eq!(rig.start_run(&key, &late, &new_token()).await, 1);
}

async fn ended_backoff_offers_the_free_lock(rig: &StoreHarness) {
    let key = test_key();
    rig.register_worker().await;
    let id = fail_first_run(rig, &key).await;
    end_delay(rig, &id).await;
    assert!(rig.expect_busy(&key, &new_token()).await <= OFFER_TIMEOUT, "it is offered");
    assert_eq!(rig.start_run(&key, &id, &new_token()).await, 2);
}

async fn ended_backoff_is_polled_after_a_crashed_holder(rig: &StoreHarness) {
    let key = test_key();
    rig.register_worker().await;
    let id = fail_first_run(rig, &key).await;
    let crashed = try_acquire_command(&key, &new_token());
    rig.acquire(AcquireCommand { lease: SHORT_TIME, ..crashed }).await;
    end_delay(rig, &id).await;
    rig.advance_past(SHORT_TIME).await;
    assert_eq!(rig.poll_due(key.shard(), 10).await.locks, std::slice::from_ref(&key));
    assert_eq!(rig.start_run(&key, &id, &new_token()).await, 2);
}

async fn late_copy_leaves_a_later_backoff(rig: &StoreHarness) {
    let key = test_key();
    rig.register_worker().await;
    let id = fail_first_run(rig, &key).await;
    let state = rig.backend().end_job_delay(id.clone(), 0).await;
    assert_eq!(state.expect("the store is there"), Some(JobState::Queued));
    let due_in = rig.job_history(&id).await.expect("it is stored").due_in;
    assert!(due_in.is_some_and(|delay| delay > LONG_TIME / 2), "{due_in:?}");
}

async fn job_that_does_not_wait_is_left_alone(rig: &StoreHarness) {
    let (key, run) = (test_key(), new_token());
    let end = async |id: &JobId| rig.backend().end_job_delay(id.clone(), 0).await.ok().flatten();
    assert_eq!(end(&JobId::new(&key)).await, None);
    let id = rig.enqueue_job(&key).await;
    rig.start_run(&key, &id, &run).await;
    assert_eq!(end(&id).await, Some(JobState::Running));
    assert!(rig.finish_run(&key, &id, &run).await);
    assert_eq!(end(&id).await, Some(JobState::Done));
}
