//! Runs of jobs: claim, settlement, backoff, crash.

use std::time::Duration;

use super::{
    on_every_store,
    store_harness::{
        LONG_TIME, SHORT_TIME, StoreHarness, claim_command, done_settlement, new_token,
        retryable_enqueue_command, settle_command, test_key, try_acquire_command,
    },
};
use crate::{
    Key,
    store::backend::{
        AcquireCommand, AcquireReply, ActiveRun, ClaimCommand, ClaimOutcome, ClaimedRun,
        EnqueueCommand, JobId, JobPolicy, JobState, LeaseRenewal, LockMode, LockToken,
        OFFER_TIMEOUT, OnFailure, ReleaseOutcome, Settlement,
    },
};

on_every_store!(
    repeated_claim_returns_same_run,
    repeated_claim_behind_older_job_returns_same_run,
    late_claim_starts_no_second_run,
    done_job_keeps_response_until_retention_ends,
    repeated_settle_counts_once,
    settle_requires_run_token,
    settle_requires_held_lock,
    backoff_of_first_job_blocks_its_queue,
    crashed_job_without_retry_becomes_dead,
    crashed_job_ends_after_max_attempts,
    crashed_job_past_deadline_keeps_no_request,
    released_run_leaves_its_job_first,
    renewal_extends_run_and_lock,
    active_run_is_reported_while_lock_is_held,
    claim_reports_a_lock_that_was_not_offered,
    cancelled_run_ends_its_job_once_and_frees_its_lock,
);

const RETRY: Settlement = Settlement::Retry { delay: SHORT_TIME, reason: "status 503" };
const RETURN_TO_QUEUE: Settlement =
    Settlement::ReturnToQueue { delay: SHORT_TIME, reason: "drained" };

async fn repeated_claim_returns_same_run(rig: &StoreHarness) {
    let (key, run) = (test_key(), new_token());
    let id = rig.enqueue_job(&key).await;
    let mut fences = Vec::new();
    for _ in 0..3 {
        match rig.claim(claim_command(&key, &id, &run)).await {
            ClaimOutcome::Claimed(ClaimedRun { fence, attempt: 1, envelope, .. }) => {
                assert_eq!(envelope, "request");
                fences.push(fence);
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(fences.is_sorted_by(|a, b| a < b), "{fences:?}");
    assert!(rig.finish_run(&key, &id, &run).await);
}

/// The older job has returned to its queue position since the first claim.
async fn repeated_claim_behind_older_job_returns_same_run(rig: &StoreHarness) {
    let (key, first, run) = (test_key(), new_token(), new_token());
    rig.register_worker().await;
    let call = retryable_enqueue_command(&key);
    let older = call.id.clone();
    let policy = JobPolicy { on_failure: OnFailure::Skip, ..call.policy };
    rig.enqueue(EnqueueCommand { policy, ..call }).await;
    let id = rig.enqueue_job(&key).await;
    rig.start_run(&key, &older, &first).await;
    assert!(rig.settle(settle_command(&key, &older, &first, RETRY)).await);
    rig.start_run(&key, &id, &run).await;
    rig.advance_past(SHORT_TIME).await;
    rig.poll_due(key.shard(), 10).await;
    assert_eq!(rig.heads(std::slice::from_ref(&key)).await, [Some(older.clone())]);
    match rig.claim(claim_command(&key, &id, &run)).await {
        ClaimOutcome::Claimed(repeated) => {
            assert_eq!((repeated.id, repeated.attempt), (id.clone(), 1));
        }
        other => panic!("{other:?}"),
    }
    let other = rig.claim(claim_command(&key, &id, &new_token())).await;
    assert_eq!(other, ClaimOutcome::NotFirst(older.clone()));
    assert!(rig.finish_run(&key, &id, &run).await);
    let late_claim = rig.claim(claim_command(&key, &id, &run)).await;
    assert_eq!(late_claim, ClaimOutcome::NotFirst(older), "its run is over");
}

/// A claim was sent twice because its connection broke. The first copy arrives when its run has
/// ended.
async fn late_claim_starts_no_second_run(rig: &StoreHarness) {
    let key = test_key();
    let call = retryable_enqueue_command(&key);
    let id = call.id.clone();
    rig.enqueue(call).await;
    for ending in ["settled", "released", "lost"] {
        let run = new_token();
        claim_with_short_lease(rig, &key, &id, &run).await;
        match ending {
            "settled" => {
                assert!(rig.settle(settle_command(&key, &id, &run, RETURN_TO_QUEUE)).await);
            }
            "released" => assert_eq!(rig.release(&key, &run).await, ReleaseOutcome::Released),
            _ => {}
        }
        rig.advance_past(SHORT_TIME).await;
        let view_before = rig.job_view(&id).await;
        let late = rig.claim(claim_command(&key, &id, &run)).await;
        assert_eq!(late, ClaimOutcome::Busy(OFFER_TIMEOUT), "{ending}");
        assert_eq!(rig.job_view(&id).await, view_before, "{ending}");
    }
    assert_eq!(rig.start_run(&key, &id, &new_token()).await, 3);
}

async fn done_job_keeps_response_until_retention_ends(rig: &StoreHarness) {
    let (key, run) = (test_key(), new_token());
    let id = rig.enqueue_job(&key).await;
    rig.start_run(&key, &id, &run).await;
    let settlement =
        Settlement::Done { response: "made".into(), status: 200, retention: SHORT_TIME };
    assert!(rig.settle(settle_command(&key, &id, &run, settlement)).await);
    let job = rig.job_view(&id).await.unwrap();
    assert_eq!((job.state, job.attempts, job.position), (JobState::Done, 1, None));
    assert_eq!((job.reason, job.response), (None, Some("made".into())));
    rig.advance_past(SHORT_TIME / 2).await;
    assert!(rig.job_view(&id).await.is_some());
    rig.advance_past(SHORT_TIME / 2).await;
    assert_eq!(rig.job_view(&id).await, None);
    assert_eq!(rig.release(&key, &run).await, ReleaseOutcome::NotFound, "settling gave it back");
}

async fn repeated_settle_counts_once(rig: &StoreHarness) {
    let (key, run) = (test_key(), new_token());
    let (first, second) = (rig.enqueue_job(&key).await, rig.enqueue_job(&key).await);
    rig.start_run(&key, &first, &run).await;
    assert!(rig.settle(settle_command(&key, &first, &run, RETRY)).await);
    assert!(
        rig.settle(settle_command(&key, &first, &run, done_settlement())).await,
        "a repeated call"
    );
    assert_eq!(rig.job_state(&first).await, Some(JobState::Queued));
    rig.advance_past(SHORT_TIME).await;
    let run = new_token();
    assert_eq!(rig.start_run(&key, &first, &run).await, 2);
    assert!(rig.finish_run(&key, &first, &run).await);
    assert!(rig.finish_run(&key, &first, &run).await);
    assert_eq!(rig.job_view(&second).await.unwrap().position, Some(1), "ended once");
}

async fn settle_requires_run_token(rig: &StoreHarness) {
    let (key, run) = (test_key(), new_token());
    let id = rig.enqueue_job(&key).await;
    assert!(!rig.finish_run(&key, &id, &run).await, "not claimed");
    rig.start_run(&key, &id, &run).await;
    assert!(!rig.finish_run(&key, &id, &new_token()).await);
    assert!(!rig.finish_run(&key, &JobId::new(&key), &run).await);
    assert_eq!(rig.job_state(&id).await, Some(JobState::Running));
    assert!(rig.finish_run(&key, &id, &run).await);
}

/// Claims a job with a short lease.
async fn claim_with_short_lease(
    rig: &StoreHarness,
    key: &Key,
    id: &JobId,
    run: &LockToken,
) -> ClaimOutcome {
    rig.claim(ClaimCommand { lease: SHORT_TIME, ..claim_command(key, id, run) }).await
}

async fn settle_requires_held_lock(rig: &StoreHarness) {
    let (key, run) = (test_key(), new_token());
    let id = rig.enqueue_job(&key).await;
    claim_with_short_lease(rig, &key, &id, &run).await;
    rig.advance_past(SHORT_TIME).await;
    assert!(!rig.finish_run(&key, &id, &run).await, "its lease had ended");
    assert_eq!(rig.job_state(&id).await, Some(JobState::Running));
    let id = rig.enqueue_job(&Key::path_param("id", "8")).await;
    let key = Key::path_param("id", "8");
    rig.start_run(&key, &id, &run).await;
    rig.release(&key, &run).await;
    assert!(!rig.finish_run(&key, &id, &run).await, "a returned run can't be settled");
    // A repeated claim with a shorter lease does not shorten the lease.
    let run = new_token();
    let id = rig.enqueue_job(&Key::path_param("id", "9")).await;
    let key = Key::path_param("id", "9");
    rig.start_run(&key, &id, &run).await;
    claim_with_short_lease(rig, &key, &id, &run).await;
    rig.advance_past(SHORT_TIME).await;
    assert!(rig.finish_run(&key, &id, &run).await, "it had the longer one");
}

async fn backoff_of_first_job_blocks_its_queue(rig: &StoreHarness) {
    let (key, run, a) = (test_key(), new_token(), new_token());
    rig.register_worker().await;
    let (first, second) = (rig.enqueue_job(&key).await, rig.enqueue_job(&key).await);
    rig.start_run(&key, &first, &run).await;
    rig.settle(settle_command(&key, &first, &run, RETRY)).await;
    let later_claim = rig.claim(claim_command(&key, &second, &new_token())).await;
    assert_eq!(later_claim, ClaimOutcome::NotFirst(first.clone()), "no later job starts before it");
    rig.acquire_exclusive(&key, &a).await;
    rig.release(&key, &a).await;
    rig.acquire_exclusive(&key, &a).await;
    rig.advance_past(SHORT_TIME).await;
    rig.release(&key, &a).await;
    assert!(rig.expect_busy(&key, &a).await <= OFFER_TIMEOUT, "the backoff is over");
    assert_eq!(rig.start_run(&key, &first, &new_token()).await, 2);
}

async fn crashed_job_without_retry_becomes_dead(rig: &StoreHarness) {
    let (key, paused, b) = (test_key(), new_token(), new_token());
    rig.register_worker().await;
    let (first, second) = (rig.enqueue_job(&key).await, rig.enqueue_job(&key).await);
    claim_with_short_lease(rig, &key, &first, &paused).await;
    rig.advance_past(SHORT_TIME).await;
    assert_eq!(rig.poll_due(key.shard(), 10).await.locks, vec![key.clone()]);
    let outcome = rig.claim(claim_command(&key, &first, &b)).await;
    assert_eq!(outcome, ClaimOutcome::Ended(first.clone()));
    let job = rig.job_view(&first).await.unwrap();
    assert_eq!((job.state, job.position), (JobState::Dead, None));
    assert_eq!(job.reason.as_deref(), Some("crashed, may have run"));
    // The worker was only slow. It must learn that its settlement is void.
    assert!(!rig.finish_run(&key, &first, &paused).await);
    assert_eq!(rig.job_state(&first).await, Some(JobState::Dead));
    assert!(rig.expect_busy(&key, &new_token()).await <= OFFER_TIMEOUT);
    assert_eq!(rig.start_run(&key, &second, &b).await, 1);
    rig.advance_past(LONG_TIME).await;
    assert_eq!(rig.job_view(&first).await, None);
}

async fn crashed_job_past_deadline_keeps_no_request(rig: &StoreHarness) {
    let key = test_key();
    let call = retryable_enqueue_command(&key);
    let policy = JobPolicy { max_attempts: 5, deadline: Some(2 * SHORT_TIME), ..call.policy };
    let (id, call) = (call.id.clone(), EnqueueCommand { policy, ..call });
    rig.enqueue(call).await;
    let run = ClaimCommand { lease: SHORT_TIME, ..claim_command(&key, &id, &new_token()) };
    assert!(matches!(rig.claim(run).await, ClaimOutcome::Claimed(_)));
    rig.advance_past(3 * SHORT_TIME).await;
    assert_eq!(
        rig.claim(claim_command(&key, &id, &new_token())).await,
        ClaimOutcome::Ended(id.clone())
    );
    assert_eq!(rig.job_state(&id).await, Some(JobState::Expired));
    assert_eq!(rig.backend().job_envelope(id).await.unwrap(), None);
}

async fn crashed_job_ends_after_max_attempts(rig: &StoreHarness) {
    let key = test_key();
    let call = EnqueueCommand {
        policy: JobPolicy { max_attempts: 2, ..retryable_enqueue_command(&key).policy },
        ..retryable_enqueue_command(&key)
    };
    let id = call.id.clone();
    rig.enqueue(call).await;
    for attempt in 1..=2 {
        match claim_with_short_lease(rig, &key, &id, &new_token()).await {
            ClaimOutcome::Claimed(ClaimedRun { attempt: got, crashed_run_age, .. }) => {
                assert_eq!(got, attempt);
                // The first run has begun a lease ago.
                let is_aged = crashed_run_age.is_some_and(|age| age >= SHORT_TIME);
                assert_eq!(is_aged, attempt == 2, "{crashed_run_age:?}");
            }
            other => panic!("{other:?}"),
        }
        rig.advance_past(SHORT_TIME).await;
    }
    let outcome = rig.claim(claim_command(&key, &id, &new_token())).await;
    assert_eq!(outcome, ClaimOutcome::Ended(id.clone()));
    assert_eq!(rig.job_view(&id).await.unwrap().attempts, 2);
}

/// The holder of the lock has gone, and its lease has ended.
async fn claim_reports_a_lock_that_was_not_offered(rig: &StoreHarness) {
    let (key, gone) = (test_key(), new_token());
    rig.register_worker().await;
    let claim_and_finish = async |id: &JobId| {
        let run = new_token();
        match rig.claim(claim_command(&key, id, &run)).await {
            ClaimOutcome::Claimed(claimed) => {
                assert!(rig.finish_run(&key, id, &run).await);
                claimed.was_not_offered
            }
            other => panic!("{other:?}"),
        }
    };
    let first = rig.enqueue_job(&key).await;
    assert!(!claim_and_finish(&first).await, "it was enqueued on a free lock");
    rig.acquire_exclusive(&key, &gone).await;
    let second = rig.enqueue_job(&key).await;
    rig.release(&key, &gone).await;
    assert!(!claim_and_finish(&second).await, "the lock was released");
    let short = AcquireCommand { lease: SHORT_TIME, ..try_acquire_command(&key, &gone) };
    assert!(matches!(rig.acquire(short).await, AcquireReply::Granted { .. }));
    let third = rig.enqueue_job(&key).await;
    rig.advance_past(SHORT_TIME).await;
    assert!(claim_and_finish(&third).await, "nobody has released the lock");
}

async fn released_run_leaves_its_job_first(rig: &StoreHarness) {
    let (key, run) = (test_key(), new_token());
    rig.register_worker().await;
    let call = retryable_enqueue_command(&key);
    let id = call.id.clone();
    rig.enqueue(call).await;
    rig.start_run(&key, &id, &run).await;
    assert_eq!(rig.release(&key, &run).await, ReleaseOutcome::Released);
    assert!(rig.expect_busy(&key, &new_token()).await <= OFFER_TIMEOUT);
    assert_eq!(rig.start_run(&key, &id, &new_token()).await, 2);
}

async fn renewal_extends_run_and_lock(rig: &StoreHarness) {
    let (key, run) = (test_key(), new_token());
    let id = rig.enqueue_job(&key).await;
    claim_with_short_lease(rig, &key, &id, &run).await;
    let renewal = LeaseRenewal {
        key: key.clone(),
        token: run.clone(),
        mode: LockMode::Exclusive,
        lease: LONG_TIME,
        job: Some(id.clone()),
    };
    assert_eq!(rig.renew(vec![renewal.clone()]).await, [true]);
    // Late calls shorten no lease: an older renewal, and a copy of the claim.
    assert_eq!(rig.renew(vec![LeaseRenewal { lease: SHORT_TIME, ..renewal }]).await, [true]);
    claim_with_short_lease(rig, &key, &id, &run).await;
    rig.advance_past(SHORT_TIME).await;
    let due = rig.poll_due(key.shard(), 10).await;
    assert_eq!(due.locks, [], "no lock is due");
    assert!(
        due.next_due_in.is_some_and(|next| next > LONG_TIME - SHORT_TIME - Duration::from_secs(5))
    );
    assert!(
        rig.acquire(try_acquire_command(&key, &new_token())).await != AcquireReply::AlreadyAccepted
    );
    assert!(rig.finish_run(&key, &id, &run).await);
}

/// Only the store's clock counts: a run may be reported as ended while its worker still believes in
/// it.
async fn active_run_is_reported_while_lock_is_held(rig: &StoreHarness) {
    let key = test_key();
    let call = retryable_enqueue_command(&key);
    let id = call.id.clone();
    let active_run = || async { rig.backend().active_run(id.clone()).await.unwrap() };
    assert_eq!(active_run().await, None, "the job is unknown");
    rig.enqueue(call).await;
    assert_eq!(active_run().await, None, "it waits");
    let mut last = 0;
    for (ending, attempt) in [("handed over", 1), ("lapsed", 1), ("done", 2)] {
        let run = new_token();
        let ClaimOutcome::Claimed(claimed) = rig.claim(claim_command(&key, &id, &run)).await else {
            panic!("it is free")
        };
        let active = active_run().await.expect("it runs");
        assert_eq!(active, ActiveRun { attempt, first_fence: claimed.fence }, "{ending}");
        assert!(active.first_fence > last, "{ending}");
        last = claimed.fence;
        let ClaimOutcome::Claimed(repeated) = rig.claim(claim_command(&key, &id, &run)).await
        else {
            panic!("it is its own")
        };
        assert!(repeated.fence > last, "the same run, by a larger fence");
        assert_eq!(active_run().await, Some(active), "{ending}");
        match ending {
            "handed over" => {
                assert!(rig.settle(settle_command(&key, &id, &run, RETURN_TO_QUEUE)).await);
            }
            "lapsed" => {}
            _ => assert!(rig.finish_run(&key, &id, &run).await),
        }
        let expected = if ending == "lapsed" { Some(active) } else { None };
        assert_eq!(active_run().await, expected, "{ending}");
        rig.advance_past(LONG_TIME).await;
        assert_eq!(active_run().await, None, "{ending}");
    }
}

/// The settlement is repeated, as after a lost reply, and a claim that comes with it starts no run.
async fn cancelled_run_ends_its_job_once_and_frees_its_lock(rig: &StoreHarness) {
    let (key, run) = (test_key(), new_token());
    rig.register_worker().await;
    let call = retryable_enqueue_command(&key);
    let id = call.id.clone();
    rig.enqueue(call).await;
    let next = rig.enqueue_job(&key).await;
    rig.start_run(&key, &id, &run).await;
    let cancelled = Settlement::Cancelled { retention: LONG_TIME };
    for _ in 0..2 {
        assert!(rig.settle(settle_command(&key, &id, &run, cancelled.clone())).await);
        let job = rig.job_view(&id).await.expect("it is kept");
        assert_eq!((job.state, job.reason, job.attempts), (JobState::Cancelled, None, 1));
        let outcome = rig.job_history(&id).await.and_then(|job| job.recent_runs.last().cloned());
        assert!(outcome.is_some_and(|run| run.ends_with(" cancelled")));
        let stats = rig.shard_stats(key.shard()).await;
        assert_eq!((stats.cancelled, stats.pending), (1, 1));
    }
    assert!(rig.settle(settle_command(&key, &id, &run, RETRY)).await, "it has ended");
    assert_eq!(rig.job_state(&id).await, Some(JobState::Cancelled));
    assert_eq!(rig.backend().job_envelope(id.clone()).await.expect("it answers"), None);
    assert_eq!(rig.cancel(&id).await, Some(JobState::Cancelled));

    // A run that has lost its lock cancels nothing.
    let lost = new_token();
    claim_with_short_lease(rig, &key, &next, &lost).await;
    assert_eq!(rig.job_state(&next).await, Some(JobState::Running), "the lock is free");
    rig.advance_past(SHORT_TIME).await;
    assert!(!rig.settle(settle_command(&key, &next, &lost, cancelled)).await);
    assert_eq!(rig.job_state(&next).await, Some(JobState::Running));
}
