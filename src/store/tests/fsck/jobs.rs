//! Jobs and their places.

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

/// Two jobs behind a holder.
async fn two_wait(rig: &Rig) -> (Key, [JobId; 2]) {
    let (key, holder) = (key(), stranger());
    rig.worker().await;
    rig.hold(&key, &holder).await;
    let ids = [rig.put_off(&key).await, rig.put_off(&key).await];
    rig.release(&key, &holder).await;
    (key, ids)
}

async fn raw<T: redis::FromRedisValue>(rig: &Rig, verb: &str, name: &str, rest: &[&str]) -> T {
    rig.server().raw(verb, name, rest).await
}

#[tokio::test]
async fn a_sound_store_has_no_findings() {
    let rig = Rig::redis().await;
    let (key, ids) = two_wait(&rig).await;
    finds(&rig, &[], &[]).await;
    let late = JobPolicy { delay: LONG, deadline: Some(LONG), ..JobPolicy::default() };
    rig.enqueue(EnqueueCommand { policy: late, ..deferred(&key) }).await;
    let caps = StorageLimits { ended_bytes: 0, ..StorageLimits::NONE };
    for key in neighbours::<3>().into_iter().skip(1) {
        let (call, run) = (EnqueueCommand { limits: caps, ..deferred(&key) }, stranger());
        rig.enqueue(call.clone()).await;
        rig.start(&key, &call.id, &run).await;
        rig.settle(settled(&key, &call.id, &run, done())).await;
    }
    let run = stranger();
    rig.start(&key, &ids[0], &run).await;
    let waiter = stranger();
    rig.join(&key, &waiter).await;
    let [_, other] = neighbours::<2>();
    rig.hold(&other, &stranger()).await;
    let looked = finds(&rig, &[], &[]).await.examined;
    assert!(looked > 64 * 7, "{looked}");
    rig.settle(settled(&key, &ids[0], &run, Settlement::Dead { reason: "auth", retention: LONG }))
        .await;
    finds(&rig, &[], &[]).await;
    rig.release(&key, &waiter).await;
    assert_eq!(all_run(&rig, &key).await, 1);
    finds(&rig, &[], &[]).await;
}

#[tokio::test]
async fn a_job_that_lost_its_line_stands_in_it_again() {
    let rig = Rig::redis().await;
    let (key, ids) = two_wait(&rig).await;
    assert_eq!(raw::<i64>(&rig, "DEL", &of_line(&key, "g"), &[]).await, 1);
    // Two jobs, a due entry that is for nothing, and the shard counts two that are nowhere, and their bytes are in l.
    let lost = [
        JobNotQueued,
        JobNotQueued,
        ScheduledLockWithoutJobs,
        WrongCount,
        WrongCount,
        MissingExpiry,
    ];
    finds(&rig, &lost, &[]).await;
    assert_eq!(rig.heads(std::slice::from_ref(&key)).await, [Some(ids[0].clone())], "their order");
    assert_eq!(all_run(&rig, &key).await, 2);
}

#[tokio::test]
async fn a_line_that_is_in_no_index_is_looked_at_again() {
    let rig = Rig::redis().await;
    let (key, _) = two_wait(&rig).await;
    assert_eq!(raw::<i64>(&rig, "DEL", &of_shard(&key, "due"), &[]).await, 1);
    finds(&rig, &[LockNotScheduled], &[]).await;
    assert_eq!(all_run(&rig, &key).await, 2);
}

#[tokio::test]
async fn a_free_lock_that_is_looked_at_too_late_is_due_now() {
    let rig = Rig::redis().await;
    let (key, _) = two_wait(&rig).await;
    rig.miss_the_window().await;
    let far = "9000000000000";
    assert_eq!(raw::<i64>(&rig, "ZADD", &of_shard(&key, "due"), &[far, key.as_str()]).await, 0);
    finds(&rig, &[LockScheduledTooLate], &[]).await;
    assert_eq!(all_run(&rig, &key).await, 2);
}

#[tokio::test]
async fn a_lock_without_jobs_is_due_for_nothing() {
    let rig = Rig::redis().await;
    let key = key();
    raw::<i64>(&rig, "ZADD", &of_shard(&key, "due"), &["1", key.as_str()]).await;
    finds(&rig, &[ScheduledLockWithoutJobs], &[]).await;
    assert_eq!(rig.due(key.shard(), 10).await.names, []);
}

#[tokio::test]
async fn a_job_whose_facts_are_gone_is_a_dead_letter() {
    let rig = Rig::redis().await;
    let (key, ids) = two_wait(&rig).await;
    assert_eq!(raw::<i64>(&rig, "DEL", &of_shard(&key, &format!("j:{}", ids[0])), &[]).await, 1);
    finds(&rig, &[IndexEntryWithoutJob, EnvelopeWithoutJob], &[]).await;
    let past = rig.job(&ids[0]).await.unwrap();
    assert_eq!((past.state, past.reason.as_deref()), (JobState::Dead, Some("lost")));
    assert_eq!(all_run(&rig, &key).await, 1);
}

#[tokio::test]
async fn a_job_whose_envelope_is_gone_is_a_dead_letter() {
    let rig = Rig::redis().await;
    let (key, ids) = two_wait(&rig).await;
    assert_eq!(raw::<i64>(&rig, "DEL", &of_shard(&key, &format!("b:{}", ids[1])), &[]).await, 1);
    finds(&rig, &[JobWithoutEnvelope], &[]).await;
    assert_eq!(rig.state(&ids[1]).await, Some(JobState::Dead));
    assert_eq!(all_run(&rig, &key).await, 1);
}

#[tokio::test]
async fn an_orphan_is_a_dead_letter_and_its_late_worker_has_lost() {
    let rig = Rig::redis().await;
    let (key, ids) = two_wait(&rig).await;
    let run = stranger();
    rig.start(&key, &ids[0], &run).await;
    assert_eq!(raw::<i64>(&rig, "DEL", &of_line(&key, "h"), &[]).await, 1);
    // Due at the end of a lease that nobody has any more.
    finds(&rig, &[OrphanedRun, LockScheduledTooLate], &[]).await;
    let job = rig.job(&ids[0]).await.unwrap();
    assert_eq!(job.reason.as_deref(), Some("crashed, may have run"));
    assert!(!rig.finish(&key, &ids[0], &run).await);
    assert_eq!(all_run(&rig, &key).await, 1);
}

#[tokio::test]
async fn an_orphan_that_may_run_again_does() {
    let rig = Rig::redis().await;
    let key = key();
    rig.worker().await;
    let call = rig::again(&key);
    let id = call.id.clone();
    rig.enqueue(call).await;
    rig.start(&key, &id, &stranger()).await;
    rig.pass(LONG).await;
    // A worker is due to come for it: that is how a crash is seen to.
    finds(&rig, &[], &[]).await;
    rig.pass(Duration::from_secs(60)).await;
    let report = rig.fsck(true).await;
    assert_eq!(report.count(OrphanedRun), 1, "{report}");
    assert_eq!(all_run(&rig, &key).await, 1);
    assert_eq!(rig.state(&id).await, Some(JobState::Done));
}

#[tokio::test]
async fn a_job_that_also_waits_outside_of_its_line_waits_in_it() {
    let rig = Rig::redis().await;
    let (key, ids) = two_wait(&rig).await;
    raw::<i64>(&rig, "ZADD", &of_shard(&key, "late"), &["9000000000000", ids[1].as_str()]).await;
    // Counted twice, and not in `lates`.
    let tallies = [WrongCount; 4];
    finds(&rig, &[&[JobIndexedTwice], &tallies[..]].concat(), &[]).await;
    assert_eq!(all_run(&rig, &key).await, 2);
}

#[tokio::test]
async fn late_jobs_that_no_index_has_wait_in_their_line() {
    let rig = Rig::redis().await;
    let key = key();
    rig.worker().await;
    let late = JobPolicy { delay: LONG, deadline: Some(LONG), ..JobPolicy::default() };
    for _ in 0..2 {
        rig.enqueue(EnqueueCommand { policy: late, ..deferred(&key) }).await;
    }
    for index in ["late", "exp"] {
        assert_eq!(raw::<i64>(&rig, "DEL", &of_shard(&key, index), &[]).await, 1);
    }
    let lost = [JobNotQueued; 2];
    finds(&rig, &[&lost[..], &[WrongCount; 4]].concat(), &[DeadlineNotIndexed; 0]).await;
    assert_eq!(all_run(&rig, &key).await, 2);
}

/// Somewhere else than in its line it would be in nothing.
#[tokio::test]
async fn a_late_job_that_can_not_stand_in_its_line_stays_late() {
    let rig = Rig::redis().await;
    let key = key();
    rig.worker().await;
    let late = JobPolicy { delay: LONG, ..JobPolicy::default() };
    let call = EnqueueCommand { policy: late, ..deferred(&key) };
    let id = call.id.clone();
    rig.enqueue(call).await;
    assert_eq!(raw::<i64>(&rig, "DEL", &of_shard(&key, &format!("b:{id}")), &[]).await, 1);
    let facts = of_shard(&key, &format!("j:{id}"));
    let seq: String = raw(&rig, "HGET", &facts, &["seq"]).await;
    assert_eq!(raw::<i64>(&rig, "HDEL", &facts, &["seq"]).await, 1);
    finds(&rig, &[InvalidValue], &[InvalidValue]).await;
    raw::<i64>(&rig, "HSET", &facts, &["seq", &seq]).await;
    raw::<()>(&rig, "SET", &of_line(&key, "g"), &["by hand"]).await;
    finds(&rig, &[WrongKeyType], &[WrongKeyType]).await;
    raw::<i64>(&rig, "DEL", &of_line(&key, "g"), &[]).await;
    // Into its line, and out of it as a dead letter.
    finds(&rig, &[JobWithoutEnvelope], &[JobWithoutEnvelope]).await;
    rig.fsck(true).await;
    finds(&rig, &[], &[]).await;
    assert_eq!(rig.state(&id).await, Some(JobState::Dead));
}

#[tokio::test]
async fn a_deadline_that_no_index_has_is_indexed() {
    let rig = Rig::redis().await;
    let (key, holder) = (key(), stranger());
    rig.hold(&key, &holder).await;
    let policy = JobPolicy { deadline: Some(LONG / 2), ..JobPolicy::default() };
    let call = EnqueueCommand { policy, ..deferred(&key) };
    let id = call.id.clone();
    rig.enqueue(call).await;
    assert_eq!(raw::<i64>(&rig, "DEL", &of_shard(&key, "exp"), &[]).await, 1);
    finds(&rig, &[DeadlineNotIndexed], &[]).await;
    rig.pass(LONG / 2).await;
    rig.due(key.shard(), 10).await;
    assert_eq!(rig.state(&id).await, Some(JobState::Expired));
}

#[tokio::test]
async fn wrong_numbers_are_counted_anew() {
    let rig = Rig::redis().await;
    let (key, _) = two_wait(&rig).await;
    let f = of_shard(&key, "f");
    raw::<i64>(&rig, "HSET", &f, &["jobs", "100", "bytes", "x"]).await;
    raw::<i64>(&rig, "HSET", &of_line(&key, "l"), &["bytes", "7"]).await;
    raw::<i64>(&rig, "HSET", &of_shard(&key, "lates"), &["nno:::lock", "3"]).await;
    let report = rig.fsck(false).await;
    assert!(report.count(WrongCount) >= 3, "{report}");
    rig.fsck(true).await;
    finds(&rig, &[], &[]).await;
    let counted: Vec<String> = raw(&rig, "HMGET", &f, &["jobs", "bytes"]).await;
    assert_eq!(counted, ["2", "14"]);
    assert_eq!(all_run(&rig, &key).await, 2);
}

#[tokio::test]
async fn indexes_of_ended_jobs_are_what_is_kept() {
    let rig = Rig::redis().await;
    let (key, ids) = two_wait(&rig).await;
    assert_eq!(all_run(&rig, &key).await, 2);
    let done = of_shard(&key, "done");
    // One is in no listing, one is kept no more, one is said to be dead, one never was.
    assert_eq!(raw::<i64>(&rig, "ZREM", &done, &[ids[0].as_str()]).await, 1);
    let facts = of_shard(&key, &format!("j:{}", ids[1]));
    assert_eq!(raw::<i64>(&rig, "DEL", &facts, &[]).await, 1);
    let (dead, far) = (of_shard(&key, "dead"), "9000000000000000");
    let stray = JobId::new(&key);
    let rows = [far, ids[0].as_str(), "9000000000000001", stray.as_str()];
    raw::<i64>(&rig, "ZADD", &dead, &rows).await;
    // And the listing of the dead has no end.
    let expected = [
        EndedJobNotIndexed,
        IndexEntryWithoutJob,
        EndedJobInIndex,
        IndexEntryWithoutJob,
        MissingExpiry,
    ];
    finds(&rig, &expected, &[]).await;
    let tally = rig.tally(key.shard()).await;
    assert_eq!((tally.done, tally.dead), (1, 0));
    let kept: f64 = raw(&rig, "ZSCORE", &done, &[ids[0].as_str()]).await;
    assert!(kept > 1e15, "microseconds: {kept}");
}

#[tokio::test]
async fn ends_are_put_right() {
    let rig = Rig::redis().await;
    let (key, ids) = two_wait(&rig).await;
    rig.hold(&Key::custom("other"), &stranger()).await;
    let waits = of_shard(&key, &format!("j:{}", ids[0]));
    let request = of_shard(&key, &format!("b:{}", ids[1]));
    for name in [&waits, &request, &of_line(&key, "g"), &of_shard(&key, "due")] {
        assert_eq!(raw::<i64>(&rig, "PEXPIRE", name, &["100000"]).await, 1);
    }
    let held = of_line(&Key::custom("other"), "h");
    assert_eq!(raw::<i64>(&rig, "PERSIST", &held, &[]).await, 1);
    finds(
        &rig,
        &[UnexpectedExpiry, UnexpectedExpiry, UnexpectedExpiry, UnexpectedExpiry, MissingExpiry],
        &[],
    )
    .await;
    assert!(raw::<i64>(&rig, "PTTL", &held, &[]).await > 1000);
    assert_eq!(raw::<i64>(&rig, "PTTL", &waits, &[]).await, -1);
    assert_eq!(all_run(&rig, &key).await, 2);
}

#[tokio::test]
async fn what_nobody_understands_is_left() {
    let rig = Rig::redis().await;
    let (key, ids) = two_wait(&rig).await;
    let facts = of_shard(&key, &format!("j:{}", ids[1]));
    raw::<i64>(&rig, "HSET", &facts, &["lock", "p:id::another"]).await;
    raw::<i64>(&rig, "ZADD", &of_line(&key, "g"), &["9000000000000000", "nobody"]).await;
    finds(
        &rig,
        &[InvalidValue, InvalidValue, JobNotQueued, WrongCount],
        &[InvalidValue, InvalidValue],
    )
    .await;
}

#[tokio::test]
async fn a_record_that_outlives_its_job_is_a_note() {
    let rig = Rig::redis().await;
    let (key, holder) = (key(), stranger());
    rig.hold(&key, &holder).await;
    let record = Some(("idem".into(), "print".into(), LONG));
    let call = EnqueueCommand { idempotency_record: record, ..deferred(&key) };
    let id = call.id.clone();
    rig.enqueue(call).await;
    rig.cancel(&id).await;
    assert_eq!(rig.fsck(false).await.findings, []);
    // As where the record has more time than what is kept of the job.
    assert_eq!(raw::<i64>(&rig, "DEL", &of_shard(&key, &format!("j:{id}")), &[]).await, 1);
    let report = finds(&rig, &[], &[]).await;
    assert_eq!(report.count(IdempotencyRecordWithoutJob), 1, "{report}");
}
