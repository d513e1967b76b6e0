//! Merged jobs: one waiting job is kept for each resource and group.

use std::time::Duration;

use super::{
    on_every_store,
    store_harness::{
        LONG_TIME, SHORT_TIME, StoreHarness, done_settlement, enqueue_command, new_token,
        settle_command, test_key,
    },
};
use crate::{
    Key,
    store::backend::{
        EnqueueCommand, EnqueueOutcome, JobId, JobState, MergeMode, MergePolicy, Settlement,
        StorageLimits,
    },
};

on_every_store!(
    superseding_job_cancels_earlier_one,
    supersede_works_with_unlimited_storage,
    expired_job_is_no_merge_target,
    superseded_delayed_job_is_debounced,
    merged_request_is_recognized_as_duplicate,
    merged_record_lives_as_long_as_its_target_job,
    merged_records_beyond_limit_keep_their_own_lifetime,
    repeated_enqueue_merges_once,
    superseding_job_reuses_storage_of_earlier_one,
    merge_group_lives_as_long_as_its_delayed_job,
);

fn merging_job(key: &Key, mode: MergeMode) -> EnqueueCommand {
    EnqueueCommand { merge: Some(MergePolicy { group: "0f".into(), mode }), ..enqueue_command(key) }
}

async fn enqueue_stored(rig: &StoreHarness, call: EnqueueCommand) -> JobId {
    let id = call.id.clone();
    let stored = rig.enqueue(call).await;
    assert!(matches!(stored, EnqueueOutcome::Stored { .. }), "{stored:?}");
    id
}

async fn superseding_job_cancels_earlier_one(rig: &StoreHarness) {
    let (key, a) = (test_key(), new_token());
    rig.register_worker().await;
    rig.acquire_exclusive(&key, &a).await;
    let id = enqueue_stored(rig, merging_job(&key, MergeMode::Supersede)).await;
    let other = rig.enqueue_job(&key).await;
    let next = merging_job(&key, MergeMode::Supersede);
    assert_eq!(rig.enqueue(next.clone()).await, EnqueueOutcome::Stored { position: 2 });
    let job = rig.job_view(&id).await.unwrap();
    assert_eq!((job.state, job.reason.as_deref()), (JobState::Cancelled, Some("superseded")));
    assert_eq!(job.position, None);
    assert_eq!(rig.heads(std::slice::from_ref(&key)).await, [Some(other.clone())]);
    // The lock was offered to the superseded job. The offer moves to its successor.
    rig.cancel(&other).await;
    rig.release(&key, &a).await;
    let last = enqueue_stored(rig, merging_job(&key, MergeMode::Supersede)).await;
    assert_eq!(rig.job_state(&next.id).await, Some(JobState::Cancelled));
    assert_eq!(rig.start_run(&key, &last, &new_token()).await, 1);
}

async fn supersede_works_with_unlimited_storage(rig: &StoreHarness) {
    let key = test_key();
    let command = || EnqueueCommand {
        limits: StorageLimits::uniform(u64::MAX),
        owner: "one".into(),
        ..merging_job(&key, MergeMode::Supersede)
    };
    let first = enqueue_stored(rig, command()).await;
    enqueue_stored(rig, command()).await;
    assert_eq!(rig.job_state(&first).await, Some(JobState::Cancelled));
}

/// No worker has expired the job before.
async fn expired_job_is_no_merge_target(rig: &StoreHarness) {
    for mode in [MergeMode::Coalesce, MergeMode::Supersede] {
        let key = test_key();
        let mut first = merging_job(&key, mode);
        first.policy.deadline = Some(SHORT_TIME);
        let old = enqueue_stored(rig, first).await;
        rig.advance_past(SHORT_TIME).await;
        let new = enqueue_stored(rig, merging_job(&key, mode)).await;
        assert_eq!(rig.job_state(&old).await, Some(JobState::Expired));
        assert_eq!(rig.job_state(&new).await, Some(JobState::Queued));
    }
}

/// Delay and supersede together act as a debounce.
async fn superseded_delayed_job_is_debounced(rig: &StoreHarness) {
    let key = test_key();
    let delayed = || {
        let mut call = merging_job(&key, MergeMode::Supersede);
        call.policy.delay = SHORT_TIME;
        call
    };
    let mut ids = Vec::new();
    for _ in 0..3 {
        ids.push(enqueue_stored(rig, delayed()).await);
        rig.advance_past(SHORT_TIME / 2).await;
        rig.poll_due(key.shard(), 10).await;
        assert_eq!(rig.heads(std::slice::from_ref(&key)).await, [None]);
    }
    rig.advance_past(SHORT_TIME / 2).await;
    rig.poll_due(key.shard(), 10).await;
    assert_eq!(rig.heads(std::slice::from_ref(&key)).await, [ids.pop()]);
    for id in ids {
        assert_eq!(rig.job_state(&id).await, Some(JobState::Cancelled));
    }
}

async fn merged_request_is_recognized_as_duplicate(rig: &StoreHarness) {
    let (key, run) = (test_key(), new_token());
    let command = |print: &str| EnqueueCommand {
        idempotency_record: Some(("idem".into(), print.into(), LONG_TIME)),
        ..merging_job(&key, MergeMode::Coalesce)
    };
    let id = enqueue_stored(rig, merging_job(&key, MergeMode::Coalesce)).await;
    assert_eq!(rig.enqueue(command("one")).await, EnqueueOutcome::Merged(id.clone()));
    rig.start_run(&key, &id, &run).await;
    // The duplicate is recognized even when the job no longer accepts merges.
    assert_eq!(rig.enqueue(command("one")).await, EnqueueOutcome::Duplicate(id));
    assert_eq!(rig.enqueue(command("two")).await, EnqueueOutcome::FingerprintMismatch);
}

fn coalescing_job_with_record(key: &Key, record: &str) -> EnqueueCommand {
    let record = Some((record.into(), "print".into(), SHORT_TIME));
    EnqueueCommand { idempotency_record: record, ..merging_job(key, MergeMode::Coalesce) }
}

/// Holds whether or not the target job has a record itself.
async fn merged_record_lives_as_long_as_its_target_job(rig: &StoreHarness) {
    for ending in ["done", "redriven", "purged"] {
        for first_is_keyed in [false, true] {
            let (key, run) = (Key::custom(&format!("{ending} {first_is_keyed}")), new_token());
            let first = if first_is_keyed {
                coalescing_job_with_record(&key, "own")
            } else {
                merging_job(&key, MergeMode::Coalesce)
            };
            let id = enqueue_stored(rig, first).await;
            let merged = ["one", "two"].map(|record| coalescing_job_with_record(&key, record));
            for merged in &merged {
                assert_eq!(rig.enqueue(merged.clone()).await, EnqueueOutcome::Merged(id.clone()));
            }
            let assert_known = async |when: &str| {
                for record in ["one", "two"] {
                    let outcome = rig.enqueue(coalescing_job_with_record(&key, record)).await;
                    assert_eq!(
                        outcome,
                        EnqueueOutcome::Duplicate(id.clone()),
                        "{ending}, {record}: {when}"
                    );
                }
            };
            rig.advance_past(SHORT_TIME * 2).await;
            assert_known("it waits").await;
            rig.start_run(&key, &id, &run).await;
            let dead = Settlement::Dead { reason: "auth", retention: LONG_TIME };
            let settlement = if ending == "done" { done_settlement() } else { dead };
            assert!(rig.settle(settle_command(&key, &id, &run, settlement)).await);
            assert_known("it is stored").await;
            match ending {
                "redriven" => {
                    assert_eq!(rig.redrive(&id).await, Some(JobState::Queued));
                    rig.advance_past(LONG_TIME).await;
                    assert_known("it waits again").await;
                    rig.cancel(&id).await;
                }
                "purged" => {
                    assert!(rig.purge(&id).await);
                    assert_known("it was purged").await;
                }
                _ => {}
            }
            rig.advance_past(LONG_TIME).await;
            let id = enqueue_stored(rig, coalescing_job_with_record(&key, "one")).await;
            rig.cancel(&id).await;
        }
    }
}

/// The number of records stored with a job is limited.
async fn merged_records_beyond_limit_keep_their_own_lifetime(rig: &StoreHarness) {
    let key = test_key();
    let id = enqueue_stored(rig, coalescing_job_with_record(&key, "0")).await;
    for n in 1..=32 {
        let merged = coalescing_job_with_record(&key, &n.to_string());
        assert_eq!(rig.enqueue(merged).await, EnqueueOutcome::Merged(id.clone()));
    }
    rig.advance_past(SHORT_TIME * 2).await;
    assert_eq!(
        rig.enqueue(coalescing_job_with_record(&key, "31")).await,
        EnqueueOutcome::Duplicate(id.clone())
    );
    assert_eq!(
        rig.enqueue(coalescing_job_with_record(&key, "32")).await,
        EnqueueOutcome::Merged(id)
    );
}

/// The reply to the enqueue was lost, and it is repeated while the job runs.
async fn repeated_enqueue_merges_once(rig: &StoreHarness) {
    let (key, run) = (test_key(), new_token());
    let id = enqueue_stored(rig, merging_job(&key, MergeMode::Coalesce)).await;
    let twice = merging_job(&key, MergeMode::Coalesce);
    assert_eq!(rig.enqueue(twice.clone()).await, EnqueueOutcome::Merged(id.clone()));
    rig.start_run(&key, &id, &run).await;
    assert_eq!(rig.enqueue(twice).await, EnqueueOutcome::Merged(id.clone()));
    assert!(rig.finish_run(&key, &id, &run).await);
    // A repeated enqueue of the latest job finds that job.
    let (one, two) =
        (merging_job(&key, MergeMode::Supersede), merging_job(&key, MergeMode::Supersede));
    enqueue_stored(rig, one.clone()).await;
    enqueue_stored(rig, two.clone()).await;
    assert_eq!(rig.enqueue(one.clone()).await, EnqueueOutcome::Stored { position: 1 });
    assert_eq!(rig.job_state(&one.id).await, Some(JobState::Cancelled));
    assert_eq!(rig.enqueue(two.clone()).await, EnqueueOutcome::Stored { position: 1 });
    assert_eq!(rig.job_state(&two.id).await, Some(JobState::Queued));
}

async fn superseding_job_reuses_storage_of_earlier_one(rig: &StoreHarness) {
    let key = test_key();
    let caps = StorageLimits {
        resource_jobs: 1,
        resource_bytes: 7,
        shard_jobs: 1,
        shard_bytes: 7,
        ..StorageLimits::NONE
    };
    for delay in [Duration::ZERO, LONG_TIME, Duration::ZERO] {
        for _ in 0..3 {
            let mut call = merging_job(&key, MergeMode::Supersede);
            call.policy.delay = delay;
            enqueue_stored(rig, EnqueueCommand { limits: caps, ..call }).await;
        }
        assert_eq!(
            rig.enqueue(EnqueueCommand { limits: caps, ..enqueue_command(&key) }).await,
            EnqueueOutcome::Full
        );
    }
}

/// Holds for any delay.
async fn merge_group_lives_as_long_as_its_delayed_job(rig: &StoreHarness) {
    let hour = Duration::from_secs(60 * 60);
    for (delay, elapsed) in [(48 * hour, 71 * hour), (Duration::ZERO, 23 * hour)] {
        let key = Key::custom(&format!("{delay:?}"));
        let mut first = merging_job(&key, MergeMode::Coalesce);
        first.policy.delay = delay;
        let id = enqueue_stored(rig, first).await;
        rig.advance(elapsed).await;
        assert_eq!(
            rig.enqueue(merging_job(&key, MergeMode::Coalesce)).await,
            EnqueueOutcome::Merged(id)
        );
        rig.advance(2 * hour).await;
        enqueue_stored(rig, merging_job(&key, MergeMode::Coalesce)).await;
    }
}
