//! Tombstones of evicted and purged jobs, fairness among owners, and limits of idempotency records.

use std::{collections::HashSet, time::Duration};

use bytes::Bytes;

use super::{
    on_every_store,
    store_harness::{
        LONG_TIME, SHORT_TIME, StoreHarness, enqueue_command, new_token, settle_command, test_key,
    },
};
use crate::{
    Key,
    store::backend::{
        BeginDirectOutcome, DirectRunCommand, ENDED_JOB_OVERHEAD, EnqueueCommand, EnqueueOutcome,
        JobId, JobState, LockMode, MergeMode, MergePolicy, Settlement, StorageLimits,
    },
};

on_every_store!(
    large_owner_evicts_no_jobs_of_small_owner,
    jobs_of_largest_owner_are_evicted_first,
    owner_below_equal_share_keeps_its_jobs,
    evicted_job_leaves_tombstone_until_retention_ends,
    retry_of_evicted_or_purged_request_does_not_run,
    direct_runs_obey_ended_bytes_limit,
    record_limit_refuses_new_keys_and_keeps_old,
    lookup_and_merge_need_no_new_record,
    forgotten_record_frees_its_place,
);

/// How a job ends.
#[derive(Clone, Copy, PartialEq)]
enum JobEnding {
    Done,
    Dead,
    DirectRun,
}

/// A 16th of a shard's limit, as a response of a megabyte is by default.
const LARGE_BYTES: u64 = 1 << 14;

fn ended_bytes_limit(bytes: u64) -> StorageLimits {
    StorageLimits { ended_bytes: bytes, ..StorageLimits::NONE }
}

fn direct_run_command(
    key: &Key,
    owner: &str,
    caps: StorageLimits,
    record: &str,
) -> DirectRunCommand {
    DirectRunCommand {
        key: key.clone(),
        token: new_token(),
        mode: LockMode::Exclusive,
        record_name: record.into(),
        id: JobId::new(key),
        owner: owner.to_owned(),
        retention: LONG_TIME,
        lease: LONG_TIME,
        retry_after_crash: false,
        limits: caps,
        fingerprint: None,
    }
}

async fn begin_direct_run(rig: &StoreHarness, call: &DirectRunCommand) -> BeginDirectOutcome {
    rig.acquire_exclusive(&call.key, &call.token).await;
    let outcome = rig.backend().begin_direct(call.clone()).await.unwrap();
    rig.release(&call.key, &call.token).await;
    outcome
}

fn enqueue_command_with_record(
    key: &Key,
    owner: &str,
    caps: StorageLimits,
    record: &str,
) -> EnqueueCommand {
    let record = Some((record.into(), "print".into(), LONG_TIME));
    EnqueueCommand {
        idempotency_record: record,
        limits: caps,
        owner: owner.into(),
        ..enqueue_command(key)
    }
}

/// Runs a job of an owner to this ending, with this number of kept bytes.
async fn run_to_end(
    rig: &StoreHarness,
    key: &Key,
    (owner, ending): (&str, JobEnding),
    bytes: u64,
    caps: StorageLimits,
) -> JobId {
    let body = Bytes::from(vec![b'x'; usize::try_from(bytes).unwrap()]);
    if ending == JobEnding::DirectRun {
        let call = direct_run_command(key, owner, caps, &new_token().as_str().replace(':', ""));
        assert_eq!(begin_direct_run(rig, &call).await, BeginDirectOutcome::Started);
        assert!(rig.backend().finish_direct(call.clone(), Some(body)).await.unwrap());
        return call.id;
    }
    let mut call = EnqueueCommand { limits: caps, owner: owner.into(), ..enqueue_command(key) };
    let settlement = if ending == JobEnding::Dead {
        call.envelope = body;
        Settlement::Dead { reason: "auth", retention: LONG_TIME }
    } else {
        Settlement::Done { response: body, status: 200, retention: LONG_TIME }
    };
    let (id, run) = (call.id.clone(), new_token());
    assert!(matches!(rig.enqueue(call).await, EnqueueOutcome::Stored { .. }));
    rig.start_run(key, &id, &run).await;
    assert!(rig.settle(settle_command(key, &id, &run, settlement)).await);
    id
}

/// Returns which of the jobs are kept in full; the others must be tombstones.
async fn are_fully_kept(rig: &StoreHarness, ids: &[JobId]) -> Vec<bool> {
    let mut are_kept = Vec::new();
    for id in ids {
        are_kept.push(!rig.is_tombstone(id).await);
        assert!(rig.job_view(id).await.is_some(), "nothing is left of it");
    }
    assert!(rig.run_check(false).await.is_clean(), "{}", rig.run_check(false).await);
    are_kept
}

/// 17 large responses exceed the limit of a shard.
async fn large_owner_evicts_no_jobs_of_small_owner(rig: &StoreHarness) {
    let mut shards = HashSet::new();
    let keys = (0..).map(|n: u32| Key::custom(&n.to_string()));
    let mut keys = keys.filter(|key| shards.insert(key.shard()));
    for ending in [JobEnding::Done, JobEnding::Dead, JobEnding::DirectRun] {
        for owners in [["ada", "bob"], ["", "bob"], ["ada", ""]] {
            let key = keys.next().expect("there are 64 shards");
            let ([small_owner, large_owner], caps) = (owners, ended_bytes_limit(16 * LARGE_BYTES));
            let mut ids = vec![run_to_end(rig, &key, (small_owner, ending), 1000, caps).await];
            for _ in 0..17 {
                let _ = run_to_end(rig, &key, (large_owner, ending), LARGE_BYTES, caps).await;
            }
            for _ in 0..3 {
                ids.push(
                    run_to_end(rig, &key, (small_owner, ending), LARGE_BYTES / 100, caps).await,
                );
            }
            assert_eq!(are_fully_kept(rig, &ids).await, [true; 4], "{owners:?}");
        }
    }
}

async fn jobs_of_largest_owner_are_evicted_first(rig: &StoreHarness) {
    let (key, caps) = (test_key(), ended_bytes_limit(4 * (ENDED_JOB_OVERHEAD + 100)));
    let mut ids = Vec::new();
    for owner in ["ada", "bob", "bob", "bob", "ada", "eve", ""] {
        ids.push(run_to_end(rig, &key, (owner, JobEnding::Done), 100, caps).await);
    }
    // Ada and Bob own two jobs each: Bob's first is evicted for Ada's second. Two owners are the
    // largest: Bob's second is evicted for Eve's. Ada is the largest: her first is evicted for the
    // job without an owner.
    assert_eq!(are_fully_kept(rig, &ids).await, [false, false, false, true, true, true, true]);
}

/// No job of an owner below its equal share is evicted, even if it is the oldest.
async fn owner_below_equal_share_keeps_its_jobs(rig: &StoreHarness) {
    let (key, caps) = (test_key(), ended_bytes_limit(6 * (ENDED_JOB_OVERHEAD + 100)));
    let mut ids = Vec::new();
    for owner in ["ada", "ada", "ada"] {
        ids.push(run_to_end(rig, &key, (owner, JobEnding::Dead), 100, caps).await);
    }
    for _ in 0..9 {
        ids.push(run_to_end(rig, &key, ("bob", JobEnding::Dead), 100, caps).await);
    }
    let expected = [[true; 3], [false; 3], [false; 3], [true; 3]].concat();
    assert_eq!(are_fully_kept(rig, &ids).await, expected);
}

async fn evicted_job_leaves_tombstone_until_retention_ends(rig: &StoreHarness) {
    let (key, caps) = (test_key(), ended_bytes_limit(0));
    for ending in [JobEnding::Done, JobEnding::Dead, JobEnding::DirectRun] {
        let first = run_to_end(rig, &key, ("ada", ending), 100, caps).await;
        let before = rig.backend().job_view(first.clone()).await.unwrap().unwrap();
        let _ = run_to_end(rig, &key, ("ada", ending), 100, caps).await;
        rig.advance_past(LONG_TIME / 2).await;
        let tombstone = rig.backend().job_view(first.clone()).await.unwrap().unwrap();
        assert!(
            tombstone.is_tombstone
                && tombstone.response.is_none()
                && tombstone.history.recent_runs.is_empty()
        );
        assert_eq!((&*tombstone.owner, tombstone.state), ("ada", before.state));
        assert_eq!(
            (tombstone.reason, tombstone.history.ended_us),
            (before.reason, before.history.ended_us)
        );
        assert_eq!(rig.backend().job_envelope(first.clone()).await.unwrap(), None);
        for _ in 0..2 {
            assert_eq!(rig.cancel(&first).await, Some(before.state));
            assert_eq!(rig.redrive(&first).await, Some(before.state));
            assert!(!rig.purge(&first).await);
        }
        assert!(rig.is_tombstone(&first).await);
        rig.advance_past(LONG_TIME / 2).await;
        assert_eq!(rig.job_view(&first).await, None);
    }
}

async fn retry_of_evicted_or_purged_request_does_not_run(rig: &StoreHarness) {
    let caps = ended_bytes_limit(0);
    for (name, is_direct, is_purged) in
        [("a", false, false), ("b", false, true), ("c", true, false), ("d", true, true)]
    {
        let key = Key::custom(name);
        let id = if is_direct {
            let call = direct_run_command(&key, "ada", caps, "idem");
            assert_eq!(begin_direct_run(rig, &call).await, BeginDirectOutcome::Started);
            assert!(rig.backend().finish_direct(call.clone(), Some("x".into())).await.unwrap());
            call.id
        } else {
            let (call, run) = (enqueue_command_with_record(&key, "ada", caps, "idem"), new_token());
            assert!(matches!(rig.enqueue(call.clone()).await, EnqueueOutcome::Stored { .. }));
            rig.start_run(&key, &call.id, &run).await;
            assert!(rig.finish_run(&key, &call.id, &run).await);
            call.id
        };
        if is_purged {
            assert!(rig.purge(&id).await);
        } else {
            let _ = run_to_end(rig, &key, ("ada", JobEnding::Done), 100, caps).await;
        }
        assert!(rig.is_tombstone(&id).await, "{name}");
        let retry = rig.enqueue(enqueue_command_with_record(&key, "ada", caps, "idem")).await;
        assert_eq!(retry, EnqueueOutcome::Duplicate(id.clone()), "{name}");
        let retry = begin_direct_run(rig, &direct_run_command(&key, "ada", caps, "idem")).await;
        assert_eq!(retry, BeginDirectOutcome::RecordTaken(id), "{name}");
        assert!(rig.run_check(false).await.is_clean());
    }
}

/// Holds in a shard without any deferred job, too.
async fn direct_runs_obey_ended_bytes_limit(rig: &StoreHarness) {
    let (key, caps) = (test_key(), ended_bytes_limit(2 * (ENDED_JOB_OVERHEAD + 100)));
    let mut ids = Vec::new();
    for _ in 0..4 {
        ids.push(run_to_end(rig, &key, ("ada", JobEnding::DirectRun), 100, caps).await);
    }
    assert_eq!(are_fully_kept(rig, &ids).await, [false, false, true, true]);
}

async fn record_limit_refuses_new_keys_and_keeps_old(rig: &StoreHarness) {
    let (key, caps) = (test_key(), StorageLimits { owner_records: 2, ..StorageLimits::NONE });
    let first = enqueue_command_with_record(&key, "ada", caps, "one");
    assert!(matches!(rig.enqueue(first.clone()).await, EnqueueOutcome::Stored { .. }));
    rig.advance_past(SHORT_TIME).await;
    let second = direct_run_command(&key, "ada", caps, "two");
    rig.cancel(&first.id).await;
    assert_eq!(begin_direct_run(rig, &second).await, BeginDirectOutcome::Started);
    assert!(rig.backend().finish_direct(second.clone(), Some("x".into())).await.unwrap());
    // Both kinds of requests are refused and leave no data.
    let third = enqueue_command_with_record(&key, "ada", caps, "three");
    let refused = rig.enqueue(third.clone()).await;
    let EnqueueOutcome::TooManyRecords(retry_after) = refused else { panic!("{refused:?}") };
    assert!(
        retry_after <= LONG_TIME && retry_after > LONG_TIME / 2,
        "until the first ends: {retry_after:?}"
    );
    let refused = begin_direct_run(rig, &direct_run_command(&key, "ada", caps, "three")).await;
    assert!(
        matches!(refused, BeginDirectOutcome::TooManyRecords(after) if after > LONG_TIME / 2),
        "{refused:?}"
    );
    assert_eq!(rig.job_view(&third.id).await, None);
    assert_eq!(rig.heads(std::slice::from_ref(&key)).await, [None]);
    // Known records are found by both kinds of requests, and other owners have limits of their own.
    let repeated = rig.enqueue(enqueue_command_with_record(&key, "ada", caps, "one")).await;
    assert_eq!(repeated, EnqueueOutcome::Duplicate(first.id.clone()));
    assert_eq!(
        begin_direct_run(rig, &direct_run_command(&key, "ada", caps, "two")).await,
        BeginDirectOutcome::RecordTaken(second.id)
    );
    for other in ["bob", ""] {
        let call = EnqueueCommand {
            id: JobId::new(&key),
            ..enqueue_command_with_record(&key, other, caps, other)
        };
        assert!(
            matches!(rig.enqueue(call.clone()).await, EnqueueOutcome::Stored { .. }),
            "{other}"
        );
        rig.cancel(&call.id).await;
    }
    // Requests without an idempotency key need no record.
    let plain = EnqueueCommand { limits: caps, owner: "ada".into(), ..enqueue_command(&key) };
    assert!(matches!(rig.enqueue(plain).await, EnqueueOutcome::Stored { .. }));
    assert!(rig.run_check(false).await.is_clean());
    rig.advance_past(LONG_TIME).await;
    let stored = rig.enqueue(third).await;
    assert!(matches!(stored, EnqueueOutcome::Stored { .. }), "the first has ended: {stored:?}");
}

async fn lookup_and_merge_need_no_new_record(rig: &StoreHarness) {
    let (key, caps) = (test_key(), StorageLimits { owner_records: 1, ..StorageLimits::NONE });
    let merge = || Some(MergePolicy { group: "0f".into(), mode: MergeMode::Coalesce });
    let first =
        EnqueueCommand { merge: merge(), ..enqueue_command_with_record(&key, "ada", caps, "one") };
    assert!(matches!(rig.enqueue(first.clone()).await, EnqueueOutcome::Stored { .. }));
    let refused = rig
        .enqueue(EnqueueCommand {
            merge: merge(),
            ..enqueue_command_with_record(&key, "ada", caps, "two")
        })
        .await;
    assert!(matches!(refused, EnqueueOutcome::TooManyRecords(_)), "{refused:?}");
    let plain = EnqueueCommand {
        limits: caps,
        owner: "ada".into(),
        merge: merge(),
        ..enqueue_command(&key)
    };
    assert_eq!(rig.enqueue(plain).await, EnqueueOutcome::Merged(first.id.clone()));
    // A lookup by a layer that cannot store the request: the limits refuse it, and the record limit
    // does not.
    let lookup = enqueue_command_with_record(&key, "ada", StorageLimits::uniform(0), "two");
    assert_eq!(rig.enqueue(lookup).await, EnqueueOutcome::Full);
    let lookup = enqueue_command_with_record(&key, "ada", StorageLimits::uniform(0), "one");
    assert_eq!(rig.enqueue(lookup).await, EnqueueOutcome::Duplicate(first.id));
}

async fn forgotten_record_frees_its_place(rig: &StoreHarness) {
    let (key, caps) = (test_key(), StorageLimits { owner_records: 1, ..StorageLimits::NONE });
    for _ in 0..3 {
        let call = direct_run_command(&key, "ada", caps, "one");
        assert_eq!(begin_direct_run(rig, &call).await, BeginDirectOutcome::Started);
        let other = begin_direct_run(rig, &direct_run_command(&key, "ada", caps, "two")).await;
        assert!(matches!(other, BeginDirectOutcome::TooManyRecords(_)), "{other:?}");
        assert!(rig.backend().finish_direct(call.clone(), None).await.unwrap());
        assert_eq!(rig.job_view(&call.id).await, None);
    }
    // A redriven dead letter keeps its record while it waits.
    let (call, run) = (enqueue_command_with_record(&key, "ada", caps, "three"), new_token());
    assert!(matches!(rig.enqueue(call.clone()).await, EnqueueOutcome::Stored { .. }));
    rig.start_run(&key, &call.id, &run).await;
    let dead = Settlement::Dead { reason: "auth", retention: LONG_TIME };
    assert!(rig.settle(settle_command(&key, &call.id, &run, dead)).await);
    assert_eq!(rig.redrive(&call.id).await, Some(JobState::Queued));
    rig.advance_past(Duration::from_secs(60 * 60)).await;
    let other = rig.enqueue(enqueue_command_with_record(&key, "ada", caps, "four")).await;
    assert!(matches!(other, EnqueueOutcome::TooManyRecords(_)), "{other:?}");
    assert!(rig.run_check(false).await.is_clean());
}
