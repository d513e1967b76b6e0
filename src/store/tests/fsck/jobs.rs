//! Store check of jobs and their indexes.

use std::time::Duration;

use super::*;
use crate::store::{
    FindingKind::{
        DeadlineNotIndexed, EndedJobInIndex, EndedJobNotIndexed, EnvelopeWithoutJob,
        IdempotencyRecordWithoutJob, IndexEntryWithoutJob, InvalidValue, JobIndexedTwice,
        JobNotQueued, JobWithoutEnvelope, LockNotScheduled, LockScheduledTooLate, MissingExpiry,
        OrphanedRun, ScheduledLockWithoutJobs, UnexpectedExpiry, WrongCount, WrongKeyType,
    },
    backend::{EnqueueCommand, JobId, JobPolicy, JobState, Settlement, StorageLimits},
};

/// Enqueues two jobs behind a holder, and releases the lock.
async fn enqueue_two_jobs(rig: &StoreHarness) -> (Key, [JobId; 2]) {
    let (key, holder) = (test_key(), new_token());
    rig.register_worker().await;
    rig.acquire_exclusive(&key, &holder).await;
    let ids = [rig.enqueue_job(&key).await, rig.enqueue_job(&key).await];
    rig.release(&key, &holder).await;
    (key, ids)
}

async fn raw_command<T: redis::FromRedisValue>(
    rig: &StoreHarness,
    verb: &str,
    name: &str,
    args: &[&str],
) -> T {
    rig.server().key_command(verb, name, args).await
}

#[tokio::test]
async fn dead_letters_are_counted() {
    let rig = StoreHarness::redis().await;
    let (key, run) = (test_key(), new_token());
    let id = rig.enqueue_job(&key).await;
    rig.start_run(&key, &id, &run).await;
    let dead = Settlement::Dead { reason: "failed", retention: LONG_TIME };
    rig.settle(settle_command(&key, &id, &run, dead)).await;
    let report = rig.run_check(false).await;
    assert_eq!((report.dead_jobs, report.dead_letters), (1, 0), "{report}");
    assert!(report.to_string().contains("1 dead jobs, 0 dead letters of queues"), "{report}");
}

#[tokio::test]
async fn consistent_store_has_no_findings() {
    let rig = StoreHarness::redis().await;
    let (key, ids) = enqueue_two_jobs(&rig).await;
    assert_findings_and_repair(&rig, &[], &[]).await;
    let policy = JobPolicy { delay: LONG_TIME, deadline: Some(LONG_TIME), ..JobPolicy::default() };
    rig.enqueue(EnqueueCommand { policy, ..enqueue_command(&key) }).await;
    let caps = StorageLimits { ended_bytes: 0, ..StorageLimits::NONE };
    for key in keys_of_one_shard::<3>().into_iter().skip(1) {
        let (call, run) = (EnqueueCommand { limits: caps, ..enqueue_command(&key) }, new_token());
        rig.enqueue(call.clone()).await;
        rig.start_run(&key, &call.id, &run).await;
        rig.settle(settle_command(&key, &call.id, &run, done_settlement())).await;
    }
    let run = new_token();
    rig.start_run(&key, &ids[0], &run).await;
    let waiter = new_token();
    rig.join_queue(&key, &waiter).await;
    let [_, other] = keys_of_one_shard::<2>();
    rig.acquire_exclusive(&other, &new_token()).await;
    let examined = assert_findings_and_repair(&rig, &[], &[]).await.examined;
    assert!(examined > 64 * 7, "{examined}");
    rig.settle(settle_command(
        &key,
        &ids[0],
        &run,
        Settlement::Dead { reason: "auth", retention: LONG_TIME },
    ))
    .await;
    assert_findings_and_repair(&rig, &[], &[]).await;
    rig.release(&key, &waiter).await;
    assert_eq!(run_all_jobs(&rig, &key).await, 1);
    assert_findings_and_repair(&rig, &[], &[]).await;
}

#[tokio::test]
async fn deleted_job_queue_is_rebuilt_in_order() {
    let rig = StoreHarness::redis().await;
    let (key, ids) = enqueue_two_jobs(&rig).await;
    assert_eq!(raw_command::<i64>(&rig, "DEL", &lock_key_name(&key, "g"), &[]).await, 1);
    // Two jobs are in no index, a due entry has no jobs, the shard counts two missing jobs, and
    // their bytes in `l` have no expiry.
    let expected = [
        JobNotQueued,
        JobNotQueued,
        ScheduledLockWithoutJobs,
        WrongCount,
        WrongCount,
        MissingExpiry,
    ];
    assert_findings_and_repair(&rig, &expected, &[]).await;
    assert_eq!(rig.heads(std::slice::from_ref(&key)).await, [Some(ids[0].clone())], "their order");
    assert_eq!(run_all_jobs(&rig, &key).await, 2);
}

#[tokio::test]
async fn lock_missing_from_due_index_is_rescheduled() {
    let rig = StoreHarness::redis().await;
    let (key, _) = enqueue_two_jobs(&rig).await;
    assert_eq!(raw_command::<i64>(&rig, "DEL", &shard_key_name(&key, "due"), &[]).await, 1);
    assert_findings_and_repair(&rig, &[LockNotScheduled], &[]).await;
    assert_eq!(run_all_jobs(&rig, &key).await, 2);
}

#[tokio::test]
async fn free_lock_scheduled_too_late_becomes_due() {
    let rig = StoreHarness::redis().await;
    let (key, _) = enqueue_two_jobs(&rig).await;
    rig.let_offer_expire().await;
    let far = "9000000000000";
    assert_eq!(
        raw_command::<i64>(&rig, "ZADD", &shard_key_name(&key, "due"), &[far, key.as_str()]).await,
        0
    );
    assert_findings_and_repair(&rig, &[LockScheduledTooLate], &[]).await;
    assert_eq!(run_all_jobs(&rig, &key).await, 2);
}

#[tokio::test]
async fn scheduled_lock_without_jobs_is_unscheduled() {
    let rig = StoreHarness::redis().await;
    let key = test_key();
    raw_command::<i64>(&rig, "ZADD", &shard_key_name(&key, "due"), &["1", key.as_str()]).await;
    assert_findings_and_repair(&rig, &[ScheduledLockWithoutJobs], &[]).await;
    assert_eq!(rig.poll_due(key.shard(), 10).await.locks, []);
}

#[tokio::test]
async fn job_without_record_becomes_dead_letter() {
    let rig = StoreHarness::redis().await;
    let (key, ids) = enqueue_two_jobs(&rig).await;
    assert_eq!(
        raw_command::<i64>(&rig, "DEL", &shard_key_name(&key, &format!("j:{}", ids[0])), &[]).await,
        1
    );
    assert_findings_and_repair(&rig, &[IndexEntryWithoutJob, EnvelopeWithoutJob], &[]).await;
    let job = rig.job_view(&ids[0]).await.unwrap();
    assert_eq!((job.state, job.reason.as_deref()), (JobState::Dead, Some("lost")));
    assert_eq!(run_all_jobs(&rig, &key).await, 1);
}

#[tokio::test]
async fn job_without_envelope_becomes_dead_letter() {
    let rig = StoreHarness::redis().await;
    let (key, ids) = enqueue_two_jobs(&rig).await;
    assert_eq!(
        raw_command::<i64>(&rig, "DEL", &shard_key_name(&key, &format!("b:{}", ids[1])), &[]).await,
        1
    );
    assert_findings_and_repair(&rig, &[JobWithoutEnvelope], &[]).await;
    assert_eq!(rig.job_state(&ids[1]).await, Some(JobState::Dead));
    assert_eq!(run_all_jobs(&rig, &key).await, 1);
}

#[tokio::test]
async fn orphaned_run_becomes_dead_letter_and_late_finish_fails() {
    let rig = StoreHarness::redis().await;
    let (key, ids) = enqueue_two_jobs(&rig).await;
    let run = new_token();
    rig.start_run(&key, &ids[0], &run).await;
    assert_eq!(raw_command::<i64>(&rig, "DEL", &lock_key_name(&key, "h"), &[]).await, 1);
    // The due time is the end of a lease that no longer exists.
    assert_findings_and_repair(&rig, &[OrphanedRun, LockScheduledTooLate], &[]).await;
    let job = rig.job_view(&ids[0]).await.unwrap();
    assert_eq!(job.reason.as_deref(), Some("crashed, may have run"));
    assert!(!rig.finish_run(&key, &ids[0], &run).await);
    assert_eq!(run_all_jobs(&rig, &key).await, 1);
}

#[tokio::test]
async fn orphaned_retryable_run_is_retried() {
    let rig = StoreHarness::redis().await;
    let key = test_key();
    rig.register_worker().await;
    let call = store_harness::retryable_enqueue_command(&key);
    let id = call.id.clone();
    rig.enqueue(call).await;
    rig.start_run(&key, &id, &new_token()).await;
    rig.advance_past(LONG_TIME).await;
    // A worker is scheduled to poll in time, which handles the crash. This is no finding.
    assert_findings_and_repair(&rig, &[], &[]).await;
    rig.advance_past(Duration::from_secs(60)).await;
    let report = rig.run_check(true).await;
    assert_eq!(report.count(OrphanedRun), 1, "{report}");
    assert_eq!(run_all_jobs(&rig, &key).await, 1);
    assert_eq!(rig.job_state(&id).await, Some(JobState::Done));
}

#[tokio::test]
async fn job_indexed_twice_stays_in_its_queue_only() {
    let rig = StoreHarness::redis().await;
    let (key, ids) = enqueue_two_jobs(&rig).await;
    raw_command::<i64>(
        &rig,
        "ZADD",
        &shard_key_name(&key, "late"),
        &["9000000000000", ids[1].as_str()],
    )
    .await;
    // Counted twice, and missing in `lates`.
    let wrong_counts = [WrongCount; 4];
    assert_findings_and_repair(&rig, &[&[JobIndexedTwice], &wrong_counts[..]].concat(), &[]).await;
    assert_eq!(run_all_jobs(&rig, &key).await, 2);
}

#[tokio::test]
async fn unindexed_delayed_jobs_are_requeued() {
    let rig = StoreHarness::redis().await;
    let key = test_key();
    rig.register_worker().await;
    let policy = JobPolicy { delay: LONG_TIME, deadline: Some(LONG_TIME), ..JobPolicy::default() };
    for _ in 0..2 {
        rig.enqueue(EnqueueCommand { policy, ..enqueue_command(&key) }).await;
    }
    for index in ["late", "exp"] {
        assert_eq!(raw_command::<i64>(&rig, "DEL", &shard_key_name(&key, index), &[]).await, 1);
    }
    let not_queued = [JobNotQueued; 2];
    assert_findings_and_repair(
        &rig,
        &[&not_queued[..], &[WrongCount; 4]].concat(),
        &[DeadlineNotIndexed; 0],
    )
    .await;
    assert_eq!(run_all_jobs(&rig, &key).await, 2);
}

/// A job that cannot return to its queue must stay delayed; otherwise it would be in no index.
#[tokio::test]
async fn unqueueable_delayed_job_stays_delayed() {
    let rig = StoreHarness::redis().await;
    let key = test_key();
    rig.register_worker().await;
    let policy = JobPolicy { delay: LONG_TIME, ..JobPolicy::default() };
    let call = EnqueueCommand { policy, ..enqueue_command(&key) };
    let id = call.id.clone();
    rig.enqueue(call).await;
    assert_eq!(
        raw_command::<i64>(&rig, "DEL", &shard_key_name(&key, &format!("b:{id}")), &[]).await,
        1
    );
    let job_record = shard_key_name(&key, &format!("j:{id}"));
    let seq: String = raw_command(&rig, "HGET", &job_record, &["seq"]).await;
    assert_eq!(raw_command::<i64>(&rig, "HDEL", &job_record, &["seq"]).await, 1);
    assert_findings_and_repair(&rig, &[InvalidValue], &[InvalidValue]).await;
    raw_command::<i64>(&rig, "HSET", &job_record, &["seq", &seq]).await;
    raw_command::<()>(&rig, "SET", &lock_key_name(&key, "g"), &["by hand"]).await;
    assert_findings_and_repair(&rig, &[WrongKeyType], &[WrongKeyType]).await;
    raw_command::<i64>(&rig, "DEL", &lock_key_name(&key, "g"), &[]).await;
    // The job returns to its queue, and leaves it as a dead letter.
    assert_findings_and_repair(&rig, &[JobWithoutEnvelope], &[JobWithoutEnvelope]).await;
    rig.run_check(true).await;
    assert_findings_and_repair(&rig, &[], &[]).await;
    assert_eq!(rig.job_state(&id).await, Some(JobState::Dead));
}

#[tokio::test]
async fn unindexed_deadline_is_indexed() {
    let rig = StoreHarness::redis().await;
    let (key, holder) = (test_key(), new_token());
    rig.acquire_exclusive(&key, &holder).await;
    let policy = JobPolicy { deadline: Some(LONG_TIME / 2), ..JobPolicy::default() };
    let call = EnqueueCommand { policy, ..enqueue_command(&key) };
    let id = call.id.clone();
    rig.enqueue(call).await;
    assert_eq!(raw_command::<i64>(&rig, "DEL", &shard_key_name(&key, "exp"), &[]).await, 1);
    assert_findings_and_repair(&rig, &[DeadlineNotIndexed], &[]).await;
    rig.advance_past(LONG_TIME / 2).await;
    rig.poll_due(key.shard(), 10).await;
    assert_eq!(rig.job_state(&id).await, Some(JobState::Expired));
}

#[tokio::test]
async fn wrong_counters_are_recounted() {
    let rig = StoreHarness::redis().await;
    let (key, _) = enqueue_two_jobs(&rig).await;
    let shard_fields = shard_key_name(&key, "f");
    raw_command::<i64>(&rig, "HSET", &shard_fields, &["jobs", "100", "bytes", "x"]).await;
    raw_command::<i64>(&rig, "HSET", &lock_key_name(&key, "l"), &["bytes", "7"]).await;
    raw_command::<i64>(&rig, "HSET", &shard_key_name(&key, "lates"), &["nno:::lock", "3"]).await;
    let report = rig.run_check(false).await;
    assert!(report.count(WrongCount) >= 3, "{report}");
    rig.run_check(true).await;
    assert_findings_and_repair(&rig, &[], &[]).await;
    let counted: Vec<String> = raw_command(&rig, "HMGET", &shard_fields, &["jobs", "bytes"]).await;
    assert_eq!(counted, ["2", "14"]);
    assert_eq!(run_all_jobs(&rig, &key).await, 2);
}

#[tokio::test]
async fn ended_job_indexes_are_rebuilt() {
    let rig = StoreHarness::redis().await;
    let (key, ids) = enqueue_two_jobs(&rig).await;
    assert_eq!(run_all_jobs(&rig, &key).await, 2);
    let done = shard_key_name(&key, "done");
    // One job is in no listing, one has no record, one is listed as dead, and one never existed.
    assert_eq!(raw_command::<i64>(&rig, "ZREM", &done, &[ids[0].as_str()]).await, 1);
    let job_record = shard_key_name(&key, &format!("j:{}", ids[1]));
    assert_eq!(raw_command::<i64>(&rig, "DEL", &job_record, &[]).await, 1);
    let (dead, far) = (shard_key_name(&key, "dead"), "9000000000000000");
    let unknown_id = JobId::new(&key);
    let rows = [far, ids[0].as_str(), "9000000000000001", unknown_id.as_str()];
    raw_command::<i64>(&rig, "ZADD", &dead, &rows).await;
    // In addition, the index of dead letters has no expiry.
    let expected = [
        EndedJobNotIndexed,
        IndexEntryWithoutJob,
        EndedJobInIndex,
        IndexEntryWithoutJob,
        MissingExpiry,
    ];
    assert_findings_and_repair(&rig, &expected, &[]).await;
    let stats = rig.shard_stats(key.shard()).await;
    assert_eq!((stats.done, stats.dead), (1, 0));
    let score: f64 = raw_command(&rig, "ZSCORE", &done, &[ids[0].as_str()]).await;
    assert!(score > 1e15, "microseconds: {score}");
}

#[tokio::test]
async fn wrong_key_expiries_are_repaired() {
    let rig = StoreHarness::redis().await;
    let (key, ids) = enqueue_two_jobs(&rig).await;
    rig.acquire_exclusive(&Key::custom("other"), &new_token()).await;
    let waiting_job = shard_key_name(&key, &format!("j:{}", ids[0]));
    let request = shard_key_name(&key, &format!("b:{}", ids[1]));
    for name in [&waiting_job, &request, &lock_key_name(&key, "g"), &shard_key_name(&key, "due")] {
        assert_eq!(raw_command::<i64>(&rig, "PEXPIRE", name, &["100000"]).await, 1);
    }
    let held = lock_key_name(&Key::custom("other"), "h");
    assert_eq!(raw_command::<i64>(&rig, "PERSIST", &held, &[]).await, 1);
    assert_findings_and_repair(
        &rig,
        &[UnexpectedExpiry, UnexpectedExpiry, UnexpectedExpiry, UnexpectedExpiry, MissingExpiry],
        &[],
    )
    .await;
    assert!(raw_command::<i64>(&rig, "PTTL", &held, &[]).await > 1000);
    assert_eq!(raw_command::<i64>(&rig, "PTTL", &waiting_job, &[]).await, -1);
    assert_eq!(run_all_jobs(&rig, &key).await, 2);
}

#[tokio::test]
async fn invalid_values_are_reported_and_kept() {
    let rig = StoreHarness::redis().await;
    let (key, ids) = enqueue_two_jobs(&rig).await;
    let job_record = shard_key_name(&key, &format!("j:{}", ids[1]));
    raw_command::<i64>(&rig, "HSET", &job_record, &["lock", "p:id::another"]).await;
    raw_command::<i64>(&rig, "ZADD", &lock_key_name(&key, "g"), &["9000000000000000", "nobody"])
        .await;
    assert_findings_and_repair(
        &rig,
        &[InvalidValue, InvalidValue, JobNotQueued, WrongCount],
        &[InvalidValue, InvalidValue],
    )
    .await;
}

#[tokio::test]
async fn idempotency_record_without_job_is_no_fault() {
    let rig = StoreHarness::redis().await;
    let (key, holder) = (test_key(), new_token());
    rig.acquire_exclusive(&key, &holder).await;
    let record = Some(("idem".into(), "print".into(), LONG_TIME));
    let call = EnqueueCommand { idempotency_record: record, ..enqueue_command(&key) };
    let id = call.id.clone();
    rig.enqueue(call).await;
    rig.cancel(&id).await;
    assert_eq!(rig.run_check(false).await.findings, []);
    // The record outlives the data of its job.
    assert_eq!(
        raw_command::<i64>(&rig, "DEL", &shard_key_name(&key, &format!("j:{id}")), &[]).await,
        1
    );
    let report = assert_findings_and_repair(&rig, &[], &[]).await;
    assert_eq!(report.count(IdempotencyRecordWithoutJob), 1, "{report}");
}
