//! A settlement that claims the next job of its queue, and the undo of a claim.

use std::time::Duration;

use super::{
    on_every_store,
    store_harness::{
        SHORT_TIME, StoreHarness, claim_command, done_settlement, enqueue_command, new_token,
        next_claim, retryable_enqueue_command, settle_command, test_key,
    },
};
use crate::{
    Key,
    store::backend::{
        ClaimCommand, ClaimOutcome, ClaimedRun, EnqueueCommand, JobId, JobPolicy, JobState,
        LockToken, NextClaim, OFFER_TIMEOUT, OnFailure, SettleCommand, SettleOutcome, Settlement,
    },
};

on_every_store!(
    long_queue_runs_to_its_end,
    repeated_settle_returns_same_run,
    late_repeated_settle_claims_nothing,
    older_waiter_precedes_next_job,
    settle_without_worker_claims_nothing,
    later_jobs_pass_job_in_retry_delay,
    passed_job_returns_to_its_position,
    expired_job_is_skipped_by_settle,
    crashed_job_is_left_to_a_claim,
    unclaim_needs_the_run_token,
    settle_after_lease_end_reports_run_lost,
);

const RETRY_SETTLEMENT: Settlement = Settlement::Retry { delay: SHORT_TIME, reason: "status 503" };

fn with_next_claim(call: SettleCommand, token: &LockToken) -> SettleCommand {
    SettleCommand { next_claim: Some(next_claim(token)), ..call }
}

/// Settles and claims the next job, which must exist.
async fn settle_and_claim_next(rig: &StoreHarness, call: SettleCommand) -> ClaimedRun {
    match rig.settle_and_claim(call).await {
        SettleOutcome::Settled(Some(run)) => run,
        other => panic!("expected another run, got {other:?}"),
    }
}

async fn assert_no_next_run(rig: &StoreHarness, call: SettleCommand) {
    assert_eq!(rig.settle_and_claim(call).await, SettleOutcome::Settled(None));
}

/// Registers a worker, enqueues jobs of one lock, and starts the first.
async fn enqueue_and_start_first<const N: usize>(
    rig: &StoreHarness,
    key: &Key,
) -> ([JobId; N], LockToken) {
    rig.register_worker().await;
    let mut ids = Vec::new();
    for _ in 0..N {
        ids.push(rig.enqueue_job(key).await);
    }
    let run = new_token();
    rig.start_run(key, &ids[0], &run).await;
    (ids.try_into().unwrap(), run)
}

/// More jobs than the index of ended jobs holds untrimmed. In between, the queue is released to
/// other callers.
async fn long_queue_runs_to_its_end(rig: &StoreHarness) {
    const N: usize = 40;
    let key = test_key();
    let (ids, mut token) = enqueue_and_start_first::<N>(rig, &key).await;
    for (index, pair) in ids.windows(2).enumerate() {
        let call = settle_command(&key, &pair[0], &token, done_settlement());
        token = new_token();
        if index % 4 == 3 {
            assert_no_next_run(rig, call).await;
            assert_eq!(rig.start_run(&key, &pair[1], &token).await, 1);
        } else {
            let run = settle_and_claim_next(rig, with_next_claim(call.clone(), &token)).await;
            assert_eq!((&run.id, run.attempt, run.has_next), (&pair[1], 1, index + 2 < N));
            let repeated = settle_and_claim_next(rig, with_next_claim(call, &token)).await;
            assert!(repeated.id == run.id && repeated.fence > run.fence);
        }
        assert_eq!(rig.job_state(&pair[0]).await, Some(JobState::Done));
        let history = rig.job_history(&pair[0]).await.unwrap();
        assert!(
            history.recent_runs.len() == 1 && history.recent_runs[0].ends_with(" done"),
            "{:?}",
            history.recent_runs
        );
        // A check of all shards takes as long as some hundred operations.
        if index % 8 < 2 {
            let findings: Vec<_> =
                rig.run_check(false).await.faults().map(|finding| finding.kind).collect();
            assert_eq!(findings, [], "after {index}");
        }
    }
    assert!(rig.finish_run(&key, &ids[N - 1], &token).await);
    let stats = rig.shard_stats(key.shard()).await;
    assert_eq!((stats.pending, stats.bytes), (0, 0));
}

async fn repeated_settle_returns_same_run(rig: &StoreHarness) {
    let key = test_key();
    let ([one, two], first) = enqueue_and_start_first::<2>(rig, &key).await;
    let call = with_next_claim(settle_command(&key, &one, &first, done_settlement()), &new_token());
    let mut fence = 0;
    for _ in 0..3 {
        let run = settle_and_claim_next(rig, call.clone()).await;
        assert_eq!((&run.id, run.attempt), (&two, 1));
        assert!(run.fence > fence);
        fence = run.fence;
    }
    let history = rig.job_history(&one).await.unwrap();
    assert_eq!(history.recent_runs.len(), 1, "{history:?}");
    // A call with another token, or without one, does not return the run.
    assert_no_next_run(
        rig,
        with_next_claim(settle_command(&key, &one, &first, done_settlement()), &new_token()),
    )
    .await;
    assert_no_next_run(rig, settle_command(&key, &one, &first, done_settlement())).await;
    let token = call.next_claim.unwrap().token;
    assert!(rig.finish_run(&key, &two, &token).await);
}

/// The settlement was sent twice, and its first copy arrives when the next run has ended.
async fn late_repeated_settle_claims_nothing(rig: &StoreHarness) {
    let key = test_key();
    let ([one, two, three], first) = enqueue_and_start_first::<3>(rig, &key).await;
    let second = new_token();
    let call = with_next_claim(settle_command(&key, &one, &first, done_settlement()), &second);
    settle_and_claim_next(rig, call.clone()).await;
    assert!(rig.finish_run(&key, &two, &second).await);
    assert_no_next_run(rig, call).await;
    assert_eq!(
        rig.job_state(&three).await,
        Some(JobState::Queued),
        "the unclaimed job stays queued"
    );
    // The same for a settlement that found no next job at first.
    let third = new_token();
    rig.start_run(&key, &three, &third).await;
    let call =
        with_next_claim(settle_command(&key, &three, &third, done_settlement()), &new_token());
    assert_no_next_run(rig, call.clone()).await;
    let four = rig.enqueue_job(&key).await;
    assert_no_next_run(rig, call).await;
    assert_eq!(rig.job_state(&four).await, Some(JobState::Queued));
}

async fn older_waiter_precedes_next_job(rig: &StoreHarness) {
    let (key, waiter, run) = (test_key(), new_token(), new_token());
    rig.register_worker().await;
    let one = rig.enqueue_job(&key).await;
    rig.start_run(&key, &one, &run).await;
    rig.join_queue(&key, &waiter).await;
    let two = rig.enqueue_job(&key).await;
    assert_no_next_run(
        rig,
        with_next_claim(settle_command(&key, &one, &run, done_settlement()), &new_token()),
    )
    .await;
    assert!(rig.expect_busy(&key, &new_token()).await <= OFFER_TIMEOUT, "it was offered it");
    rig.acquire_exclusive(&key, &waiter).await;
    rig.release(&key, &waiter).await;
    rig.start_run(&key, &two, &run).await;
    // A waiter behind the job does not hold it up.
    let three = rig.enqueue_job(&key).await;
    rig.join_queue(&key, &waiter).await;
    let next = settle_and_claim_next(
        rig,
        with_next_claim(settle_command(&key, &two, &run, done_settlement()), &new_token()),
    );
    assert_eq!(next.await.id, three);
}

async fn settle_without_worker_claims_nothing(rig: &StoreHarness) {
    let (key, run) = (test_key(), new_token());
    let (one, two) = (rig.enqueue_job(&key).await, rig.enqueue_job(&key).await);
    rig.start_run(&key, &one, &run).await;
    assert_no_next_run(
        rig,
        with_next_claim(settle_command(&key, &one, &run, done_settlement()), &new_token()),
    )
    .await;
    rig.acquire_exclusive(&key, &run).await;
    assert_eq!(rig.job_state(&two).await, Some(JobState::Queued));
}

/// Returns a job that others may overtake while it waits for its retry.
fn skippable_job(key: &Key) -> EnqueueCommand {
    let call = retryable_enqueue_command(key);
    let policy = JobPolicy { on_failure: OnFailure::Skip, max_attempts: 5, ..call.policy };
    EnqueueCommand { policy, ..call }
}

async fn later_jobs_pass_job_in_retry_delay(rig: &StoreHarness) {
    let (key, run, second) = (test_key(), new_token(), new_token());
    rig.register_worker().await;
    let call = skippable_job(&key);
    let failing = call.id.clone();
    rig.enqueue(call).await;
    let other = rig.enqueue_job(&key).await;
    rig.start_run(&key, &failing, &run).await;
    let next = settle_and_claim_next(
        rig,
        with_next_claim(settle_command(&key, &failing, &run, RETRY_SETTLEMENT), &second),
    );
    assert_eq!(next.await.id, other);
    let job = rig.job_view(&failing).await.unwrap();
    assert_eq!((job.state, job.position, job.attempts), (JobState::Queued, None, 1));
    assert!(
        rig.job_history(&failing).await.unwrap().due_in.is_some_and(|delay| delay <= SHORT_TIME)
    );
    let stats = rig.shard_stats(key.shard()).await;
    assert_eq!((stats.pending, stats.delayed, stats.bytes), (2, 1, 14));
    // A repeated settlement changes nothing.
    assert_no_next_run(rig, settle_command(&key, &failing, &run, RETRY_SETTLEMENT)).await;
    assert!(rig.finish_run(&key, &other, &second).await);
    // A job in an uncharged delay is overtaken as well.
    rig.advance_past(SHORT_TIME).await;
    rig.poll_due(key.shard(), 10).await;
    rig.start_run(&key, &failing, &second).await;
    let postpone = Settlement::Postpone { delay: SHORT_TIME, reason: "busy" };
    assert!(rig.settle(settle_command(&key, &failing, &second, postpone)).await);
    let job = rig.backend().job_view(failing).await.unwrap().unwrap();
    assert_eq!((job.position, job.attempts, job.history.busy_count), (None, 1, 1));
}

async fn passed_job_returns_to_its_position(rig: &StoreHarness) {
    let (key, run, second) = (test_key(), new_token(), new_token());
    rig.register_worker().await;
    let call = skippable_job(&key);
    let failing = call.id.clone();
    rig.enqueue(call).await;
    let (two, three) = (rig.enqueue_job(&key).await, rig.enqueue_job(&key).await);
    rig.start_run(&key, &failing, &run).await;
    let call = with_next_claim(settle_command(&key, &failing, &run, RETRY_SETTLEMENT), &second);
    assert_eq!(settle_and_claim_next(rig, call.clone()).await.id, two);
    rig.advance_past(SHORT_TIME).await;
    rig.poll_due(key.shard(), 10).await;
    let positions = [(&failing, Some(1)), (&two, Some(2)), (&three, Some(3))];
    for (id, position) in positions {
        assert_eq!(rig.job_view(id).await.unwrap().position, position);
    }
    // The run that began meanwhile is reported, undone and settled, although its job is no longer
    // first.
    assert_eq!(settle_and_claim_next(rig, call).await.id, two);
    assert!(rig.unclaim(&key, &second, None).await);
    assert_eq!(rig.job_state(&two).await, Some(JobState::Queued));
    let retry_token = new_token();
    rig.start_run(&key, &failing, &retry_token).await;
    rig.advance_past(Duration::ZERO).await;
    let call = with_next_claim(
        settle_command(&key, &failing, &retry_token, done_settlement()),
        &new_token(),
    );
    let next = settle_and_claim_next(rig, call);
    assert_eq!(next.await.id, two);
}

async fn expired_job_is_skipped_by_settle(rig: &StoreHarness) {
    let (key, run) = (test_key(), new_token());
    rig.register_worker().await;
    let one = rig.enqueue_job(&key).await;
    rig.start_run(&key, &one, &run).await;
    let call = enqueue_command(&key);
    let policy = JobPolicy { deadline: Some(SHORT_TIME), ..call.policy };
    let expired = call.id.clone();
    rig.enqueue(EnqueueCommand { policy, ..call }).await;
    let next = rig.enqueue_job(&key).await;
    rig.advance_past(SHORT_TIME).await;
    let call = with_next_claim(settle_command(&key, &one, &run, done_settlement()), &new_token());
    assert_eq!(settle_and_claim_next(rig, call.clone()).await.id, next);
    let job = rig.job_view(&expired).await.unwrap();
    assert_eq!((job.state, job.reason.as_deref()), (JobState::Expired, Some("deadline")));
    assert_eq!(rig.shard_stats(key.shard()).await.expired, 1);
    assert_eq!(rig.poll_due(key.shard(), 10).await.locks, []);
}

/// The claim that makes a job a dead letter reports it. The worker that settles another job would
/// not.
async fn crashed_job_is_left_to_a_claim(rig: &StoreHarness) {
    let (key, run, dying, second) = (test_key(), new_token(), new_token(), new_token());
    rig.register_worker().await;
    let call = skippable_job(&key);
    let failing = call.id.clone();
    rig.enqueue(call).await;
    let two = rig.enqueue_job(&key).await;
    rig.start_run(&key, &failing, &run).await;
    let next = NextClaim { lease: SHORT_TIME, ..next_claim(&dying) };
    let call = SettleCommand {
        next_claim: Some(next),
        ..settle_command(&key, &failing, &run, RETRY_SETTLEMENT)
    };
    assert_eq!(settle_and_claim_next(rig, call).await.id, two);
    rig.advance_past(SHORT_TIME).await;
    rig.poll_due(key.shard(), 10).await;
    rig.start_run(&key, &failing, &second).await;
    let third = new_token();
    assert_no_next_run(
        rig,
        with_next_claim(settle_command(&key, &failing, &second, done_settlement()), &third),
    )
    .await;
    assert_eq!(rig.poll_due(key.shard(), 10).await.locks, std::slice::from_ref(&key));
    assert_eq!(
        rig.claim(claim_command(&key, &two, &third)).await,
        ClaimOutcome::Ended(two.clone())
    );
    assert_eq!(rig.job_state(&two).await, Some(JobState::Dead));
    assert_eq!(rig.poll_due(key.shard(), 10).await.locks, []);
}

async fn unclaim_needs_the_run_token(rig: &StoreHarness) {
    let key = test_key();
    let ([one, two], first) = enqueue_and_start_first::<2>(rig, &key).await;
    let second = new_token();
    settle_and_claim_next(
        rig,
        with_next_claim(settle_command(&key, &one, &first, done_settlement()), &second),
    )
    .await;
    assert!(!rig.unclaim(&key, &new_token(), None).await);
    assert!(rig.unclaim(&key, &second, None).await);
    assert_eq!(rig.job_state(&two).await, Some(JobState::Queued));
    assert!(!rig.unclaim(&key, &second, Some(&two)).await, "nothing is left of it");
    assert!(!rig.unclaim(&key, &first, None).await, "its run was settled");
    rig.advance_past(OFFER_TIMEOUT).await;
    assert_eq!(rig.start_run(&key, &two, &new_token()).await, 1);
}

async fn settle_after_lease_end_reports_run_lost(rig: &StoreHarness) {
    let (key, paused, other) = (test_key(), new_token(), new_token());
    rig.register_worker().await;
    let call = retryable_enqueue_command(&key);
    let id = call.id.clone();
    rig.enqueue(call).await;
    let next = rig.enqueue_job(&key).await;
    rig.claim(ClaimCommand { lease: SHORT_TIME, ..claim_command(&key, &id, &paused) }).await;
    rig.advance_past(SHORT_TIME).await;
    assert_eq!(rig.start_run(&key, &id, &other).await, 2);
    let command =
        with_next_claim(settle_command(&key, &id, &paused, done_settlement()), &new_token());
    assert_eq!(rig.settle_and_claim(command).await, SettleOutcome::RunLost);
    assert!(!rig.unclaim(&key, &paused, None).await);
    let NextClaim { token, .. } = next_claim(&new_token());
    let run = settle_and_claim_next(
        rig,
        with_next_claim(settle_command(&key, &id, &other, done_settlement()), &token),
    )
    .await;
    assert_eq!(run.id, next);
    let history = rig.job_history(&id).await.unwrap();
    let outcomes = history.recent_runs.iter().map(|run| run.splitn(4, ' ').last().unwrap());
    assert_eq!((history.crash_count, Vec::from_iter(outcomes)), (1, vec!["crashed", "done"]));
}
