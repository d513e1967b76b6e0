//! Delayed jobs, and jobs with a deadline.

use std::time::Duration;

use super::{
    on_every_store,
    store_harness::{
        LONG_TIME, SHORT_TIME, StoreHarness, claim_command, enqueue_command, keys_of_one_shard,
        new_token, retryable_enqueue_command, settle_command, test_key, try_acquire_command,
    },
};
use crate::{
    Key,
    durations::saturating_micros,
    store::backend::{
        AcquireCommand, ClaimOutcome, EnqueueCommand, EnqueueOutcome, JobId, JobPolicy, JobState,
        NodeId, OFFER_TIMEOUT, SHARD_VACANCY_GRACE, Settlement, StorageLimits,
    },
};

on_every_store!(
    delayed_job_is_not_queued,
    delayed_job_is_never_due_early,
    due_job_returns_to_its_sequence_position,
    due_job_is_offered_free_lock_at_once,
    due_job_keeps_backoff_of_job_behind_it,
    due_job_with_older_sequence_takes_offer,
    many_due_jobs_return_in_batches,
    delayed_jobs_count_towards_limits,
    uncharged_run_past_deadline_counts_no_attempt,
    next_poll_is_at_earliest_due_time,
    job_that_needs_worker_is_refused_without_one,
    shard_between_workers_counts_as_watched,
);

/// Resolution of due times: a delay is rounded up to the next ms, never down.
const MS: Duration = Duration::from_millis(1);

fn delayed_job(key: &Key, delay: Duration) -> EnqueueCommand {
    let call = enqueue_command(key);
    EnqueueCommand { policy: JobPolicy { delay, ..call.policy }, ..call }
}

fn job_with_deadline(key: &Key, deadline: Duration) -> EnqueueCommand {
    let call = retryable_enqueue_command(key);
    EnqueueCommand { policy: JobPolicy { deadline: Some(deadline), ..call.policy }, ..call }
}

async fn enqueue_stored(rig: &StoreHarness, call: EnqueueCommand) -> JobId {
    let id = call.id.clone();
    let stored = rig.enqueue(call).await;
    assert!(matches!(stored, EnqueueOutcome::Stored { .. }), "{stored:?}");
    id
}

async fn job_position(rig: &StoreHarness, id: &JobId) -> Option<u64> {
    rig.job_view(id).await.expect("it is stored").position
}

async fn job_state_and_reason(rig: &StoreHarness, id: &JobId) -> (JobState, Option<String>) {
    let job = rig.job_view(id).await.expect("it is stored");
    (job.state, job.reason)
}

/// Returns all due locks of a shard, as a worker's poll does.
async fn due_lock_names(rig: &StoreHarness, key: &Key) -> Vec<Key> {
    rig.poll_due(key.shard(), 10).await.locks
}

async fn delayed_job_is_not_queued(rig: &StoreHarness) {
    let (key, a) = (test_key(), new_token());
    rig.register_worker().await;
    let call = delayed_job(&key, LONG_TIME);
    assert_eq!(rig.enqueue(call.clone()).await, EnqueueOutcome::Stored { position: 0 });
    assert_eq!(job_state_and_reason(rig, &call.id).await.0, JobState::Queued);
    assert_eq!(job_position(rig, &call.id).await, None);
    assert_eq!(rig.heads(std::slice::from_ref(&key)).await, [None]);
    // A delayed job is no contender for the lock, and no lock is due.
    rig.acquire_exclusive(&key, &a).await;
    rig.release(&key, &a).await;
    let due = rig.poll_due(key.shard(), 10).await;
    assert_eq!(due.locks, []);
    assert!(
        due.next_due_in.is_some_and(|next| next > LONG_TIME / 2 && next <= LONG_TIME + MS),
        "{due:?}"
    );
}

/// Times are stored in ms, but the due time must not be early by a fraction of one.
async fn delayed_job_is_never_due_early(rig: &StoreHarness) {
    let key = test_key();
    rig.advance_past(MS * 9 / 10).await;
    let id = enqueue_stored(rig, delayed_job(&key, LONG_TIME)).await;
    let due_in = rig.poll_due(key.shard(), 10).await.next_due_in.expect("it is to come");
    let now_us = rig.backend().server_time_us().await.unwrap();
    let job = rig.backend().job_view(id).await.unwrap();
    let accepted_us = job.expect("it is stored").history.accepted_us;
    assert!(
        now_us + saturating_micros(due_in) >= accepted_us + saturating_micros(LONG_TIME),
        "{now_us} {due_in:?} {accepted_us}"
    );
}

async fn due_job_returns_to_its_sequence_position(rig: &StoreHarness) {
    let (key, a) = (test_key(), new_token());
    rig.register_worker().await;
    rig.acquire_exclusive(&key, &a).await;
    let first = rig.enqueue_job(&key).await;
    let late = enqueue_stored(rig, delayed_job(&key, SHORT_TIME)).await;
    let last = rig.enqueue_job(&key).await;
    assert_eq!(job_position(rig, &last).await, Some(2));
    rig.advance_past(SHORT_TIME).await;
    // A job returns to the queue only with a poll, not at its due time.
    assert_eq!(job_position(rig, &late).await, None);
    due_lock_names(rig, &key).await;
    due_lock_names(rig, &key).await;
    for (position, id) in (1..).zip([first, late, last]) {
        assert_eq!(job_position(rig, &id).await, Some(position));
    }
}

async fn due_job_is_offered_free_lock_at_once(rig: &StoreHarness) {
    let (key, run) = (test_key(), new_token());
    rig.register_worker().await;
    let id = enqueue_stored(rig, delayed_job(&key, SHORT_TIME)).await;
    rig.advance_past(SHORT_TIME).await;
    let due = rig.backend().poll_due(vec![key.shard()], 10).await.unwrap().remove(0);
    assert_eq!(due.locks, [(key.clone(), Some(id.clone()))], "it is named with its first job");
    assert!(rig.expect_busy(&key, &new_token()).await <= OFFER_TIMEOUT, "it was offered it");
    rig.start_run(&key, &id, &run).await;
    assert!(rig.finish_run(&key, &id, &run).await);
    assert_eq!(due_lock_names(rig, &key).await, []);
}

/// The handler's backoff holds even if an older job joins in front, fails there, and ends.
async fn due_job_keeps_backoff_of_job_behind_it(rig: &StoreHarness) {
    let key = test_key();
    rig.register_worker().await;
    let older = enqueue_stored(rig, delayed_job(&key, SHORT_TIME)).await;
    let id = rig.enqueue_job(&key).await;
    let run = new_token();
    rig.start_run(&key, &id, &run).await;
    let retry = Settlement::Retry { delay: LONG_TIME, reason: "status 503" };
    assert!(rig.settle(settle_command(&key, &id, &run, retry)).await);
    rig.advance_past(SHORT_TIME).await;
    due_lock_names(rig, &key).await;
    let run = new_token();
    rig.start_run(&key, &older, &run).await;
    let busy = Settlement::Postpone { delay: SHORT_TIME, reason: "busy" };
    assert!(rig.settle(settle_command(&key, &older, &run, busy)).await);
    let due_in = async |id| rig.job_history(id).await.expect("it waits").due_in;
    assert!(due_in(&older).await.is_some_and(|delay| delay < LONG_TIME / 2));
    assert!(due_in(&id).await.is_some_and(|delay| delay > LONG_TIME / 2));
    rig.advance_past(SHORT_TIME).await;
    let run = new_token();
    rig.start_run(&key, &older, &run).await;
    assert!(rig.finish_run(&key, &older, &run).await);
    match rig.claim(claim_command(&key, &id, &new_token())).await {
        ClaimOutcome::NotDue(delay) => assert!(delay > LONG_TIME / 2, "{delay:?}"),
        other => panic!("{other:?}"),
    }
    rig.advance_past(LONG_TIME).await;
    assert_eq!(rig.start_run(&key, &id, &new_token()).await, 2);
}

async fn many_due_jobs_return_in_batches(rig: &StoreHarness) {
    let key = test_key();
    let caps = StorageLimits {
        resource_jobs: 300,
        resource_bytes: 9999,
        shard_jobs: 400,
        shard_bytes: 9999,
        ..StorageLimits::NONE
    };
    for _ in 0..250 {
        enqueue_stored(rig, EnqueueCommand { limits: caps, ..delayed_job(&key, SHORT_TIME) }).await;
    }
    rig.advance_past(SHORT_TIME).await;
    for remaining in [150, 50, 0] {
        let due = rig.poll_due(key.shard(), 10).await;
        assert_eq!(
            due.next_due_in,
            (remaining > 0).then_some(Duration::ZERO),
            "{remaining} are left"
        );
        assert_eq!(due.locks, std::slice::from_ref(&key));
    }
    let last = enqueue_stored(rig, EnqueueCommand { limits: caps, ..enqueue_command(&key) }).await;
    assert_eq!(job_position(rig, &last).await, Some(251));
}

async fn delayed_jobs_count_towards_limits(rig: &StoreHarness) {
    let [one, two] = keys_of_one_shard::<2>();
    let caps = StorageLimits {
        resource_jobs: 2,
        resource_bytes: 14,
        shard_jobs: 3,
        shard_bytes: 21,
        ..StorageLimits::NONE
    };
    let late = |key: &Key| EnqueueCommand { limits: caps, ..delayed_job(key, LONG_TIME) };
    let first = enqueue_stored(rig, late(&one)).await;
    enqueue_stored(rig, EnqueueCommand { limits: caps, ..enqueue_command(&one) }).await;
    assert_eq!(rig.enqueue(late(&one)).await, EnqueueOutcome::Full);
    assert_eq!(
        rig.enqueue(EnqueueCommand { limits: caps, ..enqueue_command(&one) }).await,
        EnqueueOutcome::Full
    );
    enqueue_stored(rig, late(&two)).await;
    assert_eq!(rig.enqueue(late(&two)).await, EnqueueOutcome::Full);
    rig.cancel(&first).await;
    enqueue_stored(rig, late(&one)).await;
    let bytes = StorageLimits { resource_jobs: 9, shard_jobs: 9, ..caps };
    assert_eq!(
        rig.enqueue(EnqueueCommand { limits: bytes, ..enqueue_command(&one) }).await,
        EnqueueOutcome::Full
    );
}

async fn next_poll_is_at_earliest_due_time(rig: &StoreHarness) {
    let [one, two, three] = keys_of_one_shard::<3>();
    let next = async || rig.poll_due(one.shard(), 10).await.next_due_in.unwrap();
    enqueue_stored(rig, job_with_deadline(&one, LONG_TIME)).await;
    rig.acquire_exclusive(&one, &new_token()).await;
    due_lock_names(rig, &one).await;
    assert!(next().await > LONG_TIME / 2);
    enqueue_stored(rig, delayed_job(&two, LONG_TIME / 3)).await;
    assert!(next().await <= LONG_TIME / 3 + MS);
    rig.acquire(AcquireCommand {
        lease: LONG_TIME / 10,
        ..try_acquire_command(&three, &new_token())
    })
    .await;
    rig.enqueue_job(&three).await;
    assert!(next().await <= LONG_TIME / 10);
    rig.advance_past(LONG_TIME / 10).await;
    assert!(next().await > LONG_TIME / 10, "the due lock is not counted as the next one");
}

async fn job_that_needs_worker_is_refused_without_one(rig: &StoreHarness) {
    let key = test_key();
    let mut call = enqueue_command(&key);
    call.policy.needs_worker = true;
    call.idempotency_record = Some(("idem".into(), "print".into(), LONG_TIME));
    assert_eq!(rig.enqueue(call.clone()).await, EnqueueOutcome::NoWorker);
    assert_eq!(rig.job_view(&call.id).await, None);
    // The expired lease of a dead worker does not count.
    rig.register_worker().await;
    rig.advance(LONG_TIME).await;
    assert_eq!(rig.enqueue(call.clone()).await, EnqueueOutcome::NoWorker);
    rig.register_worker().await;
    assert_eq!(rig.enqueue(call.clone()).await, EnqueueOutcome::Stored { position: 1 });
}

async fn shard_between_workers_counts_as_watched(rig: &StoreHarness) {
    let (a, b) = (NodeId::new(), NodeId::new());
    let id = rig.enqueue_job(&test_key()).await;
    rig.heartbeat(&a, LONG_TIME).await;
    rig.heartbeat(&b, LONG_TIME).await;
    let command_with_worker = || {
        let mut call = enqueue_command(&test_key());
        call.policy.needs_worker = true;
        call
    };
    // The node leaves its shards to its peer, which is live but has not taken them yet.
    rig.heartbeat(&a, Duration::ZERO).await;
    assert!(rig.job_view(&id).await.unwrap().is_watched);
    assert!(matches!(rig.enqueue(command_with_worker()).await, EnqueueOutcome::Stored { .. }));
    // A peer that does not take a shard within the grace period does not count.
    rig.advance_past(SHARD_VACANCY_GRACE).await;
    assert!(!rig.job_view(&id).await.unwrap().is_watched);
    assert_eq!(rig.enqueue(command_with_worker()).await, EnqueueOutcome::NoWorker);
    assert_eq!(rig.heartbeat(&b, LONG_TIME).await.own_shards.len(), 64);
    assert!(rig.job_view(&id).await.unwrap().is_watched);
    // The last worker has no peer that could take its shards.
    rig.heartbeat(&b, Duration::ZERO).await;
    assert!(!rig.job_view(&id).await.unwrap().is_watched);
}

async fn due_job_with_older_sequence_takes_offer(rig: &StoreHarness) {
    let (key, run) = (test_key(), new_token());
    rig.register_worker().await;
    let late = enqueue_stored(rig, delayed_job(&key, SHORT_TIME)).await;
    rig.advance_past(SHORT_TIME).await;
    // The free lock is offered to this job, the queue head until the delayed job is due.
    let other = rig.enqueue_job(&key).await;
    assert!(rig.expect_busy(&key, &new_token()).await <= OFFER_TIMEOUT);
    due_lock_names(rig, &key).await;
    assert_eq!(
        rig.claim(claim_command(&key, &other, &run)).await,
        ClaimOutcome::NotFirst(late.clone())
    );
    assert_eq!(rig.start_run(&key, &late, &run).await, 1, "at once");
    assert!(rig.finish_run(&key, &late, &run).await);
    assert_eq!(rig.start_run(&key, &other, &new_token()).await, 1);
}

async fn uncharged_run_past_deadline_counts_no_attempt(rig: &StoreHarness) {
    let delay = SHORT_TIME;
    let (busy, reason) = ("busy", "drained");
    for settlement in [
        Settlement::Postpone { delay, reason: busy },
        Settlement::ReturnToQueue { delay, reason },
        Settlement::Retry { delay, reason: "status 503" },
    ] {
        let (key, run) = (test_key(), new_token());
        let id = enqueue_stored(rig, job_with_deadline(&key, SHORT_TIME)).await;
        assert_eq!(rig.start_run(&key, &id, &run).await, 1);
        rig.advance_past(SHORT_TIME).await;
        let charged = matches!(settlement, Settlement::Retry { .. });
        assert!(rig.settle(settle_command(&key, &id, &run, settlement)).await);
        let job = rig.job_view(&id).await.expect("it is stored");
        assert_eq!((job.state, job.attempts), (JobState::Expired, u32::from(charged)));
    }
}
