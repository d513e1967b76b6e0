//! Of the waiting requests of a resource and group one is kept.

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

fn merging_job(key: &Key, wins: MergeMode) -> EnqueueCommand {
    EnqueueCommand {
        merge: Some(MergePolicy { group: "0f".into(), mode: wins }),
        ..enqueue_command(key)
    }
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
    // The one before was offered the lock: now it is the next one's.
    rig.cancel(&other).await;
    rig.release(&key, &a).await;
    let last = enqueue_stored(rig, merging_job(&key, MergeMode::Supersede)).await;
    assert_eq!(rig.job_state(&next.id).await, Some(JobState::Cancelled));
    assert_eq!(rig.start_run(&key, &last, &new_token()).await, 1);
}

async fn supersede_works_with_unlimited_storage(rig: &StoreHarness) {
    let key = test_key();
    let one = || EnqueueCommand {
        limits: StorageLimits::uniform(u64::MAX),
        owner: "one".into(),
        ..merging_job(&key, MergeMode::Supersede)
    };
    let first = enqueue_stored(rig, one()).await;
    enqueue_stored(rig, one()).await;
    assert_eq!(rig.job_state(&first).await, Some(JobState::Cancelled));
}

/// There is no worker that would have ended it.
async fn expired_job_is_no_merge_target(rig: &StoreHarness) {
    for wins in [MergeMode::Coalesce, MergeMode::Supersede] {
        let key = test_key();
        let mut first = merging_job(&key, wins);
        first.policy.deadline = Some(SHORT_TIME);
        let old = enqueue_stored(rig, first).await;
        rig.advance_past(SHORT_TIME).await;
        let new = enqueue_stored(rig, merging_job(&key, wins)).await;
        assert_eq!(rig.job_state(&old).await, Some(JobState::Expired));
        assert_eq!(rig.job_state(&new).await, Some(JobState::Queued));
    }
}

/// As a debounce.
async fn superseded_delayed_job_is_debounced(rig: &StoreHarness) {
    let key = test_key();
    let late = || {
        let mut call = merging_job(&key, MergeMode::Supersede);
        call.policy.delay = SHORT_TIME;
        call
    };
    let mut ids = Vec::new();
    for _ in 0..3 {
        ids.push(enqueue_stored(rig, late()).await);
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
    let keyed = |print: &str| EnqueueCommand {
        idempotency_record: Some(("idem".into(), print.into(), LONG_TIME)),
        ..merging_job(&key, MergeMode::Coalesce)
    };
    let id = enqueue_stored(rig, merging_job(&key, MergeMode::Coalesce)).await;
    assert_eq!(rig.enqueue(keyed("one")).await, EnqueueOutcome::Merged(id.clone()));
    rig.start_run(&key, &id, &run).await;
    // Also when nothing could be merged into it any more.
    assert_eq!(rig.enqueue(keyed("one")).await, EnqueueOutcome::Duplicate(id));
    assert_eq!(rig.enqueue(keyed("two")).await, EnqueueOutcome::FingerprintMismatch);
}

fn coalescing_job_with_record(key: &Key, record: &str) -> EnqueueCommand {
    let record = Some((record.into(), "print".into(), SHORT_TIME));
    EnqueueCommand { idempotency_record: record, ..merging_job(key, MergeMode::Coalesce) }
}

/// Whether that was accepted under a key itself or not.
async fn merged_record_lives_as_long_as_its_target_job(rig: &StoreHarness) {
    for end in ["done", "redriven", "purged"] {
        for first_is_keyed in [false, true] {
            let (key, run) = (Key::custom(&format!("{end} {first_is_keyed}")), new_token());
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
            let are_known = async |when: &str| {
                for record in ["one", "two"] {
                    let told = rig.enqueue(coalescing_job_with_record(&key, record)).await;
                    assert_eq!(
                        told,
                        EnqueueOutcome::Duplicate(id.clone()),
                        "{end}, {record}: {when}"
                    );
                }
            };
            rig.advance_past(SHORT_TIME * 2).await;
            are_known("it waits").await;
            rig.start_run(&key, &id, &run).await;
            let dead = Settlement::Dead { reason: "auth", retention: LONG_TIME };
            let verdict = if end == "done" { done_settlement() } else { dead };
            assert!(rig.settle(settle_command(&key, &id, &run, verdict)).await);
            are_known("it is kept").await;
            match end {
                "redriven" => {
                    assert_eq!(rig.redrive(&id).await, Some(JobState::Queued));
                    rig.advance_past(LONG_TIME).await;
                    are_known("it waits again").await;
                    rig.cancel(&id).await;
                }
                "purged" => {
                    assert!(rig.purge(&id).await);
                    are_known("it was purged").await;
                }
                _ => {}
            }
            rig.advance_past(LONG_TIME).await;
            let id = enqueue_stored(rig, coalescing_job_with_record(&key, "one")).await;
            rig.cancel(&id).await;
        }
    }
}

/// What is written on a job has its bounds.
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

/// Its answer was lost, and it comes again when that job runs.
async fn repeated_enqueue_merges_once(rig: &StoreHarness) {
    let (key, run) = (test_key(), new_token());
    let id = enqueue_stored(rig, merging_job(&key, MergeMode::Coalesce)).await;
    let twice = merging_job(&key, MergeMode::Coalesce);
    assert_eq!(rig.enqueue(twice.clone()).await, EnqueueOutcome::Merged(id.clone()));
    rig.start_run(&key, &id, &run).await;
    assert_eq!(rig.enqueue(twice).await, EnqueueOutcome::Merged(id.clone()));
    assert!(rig.finish_run(&key, &id, &run).await);
    // Of the last, the second call finds the job.
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

/// Whatever its delay is.
async fn merge_group_lives_as_long_as_its_delayed_job(rig: &StoreHarness) {
    let hour = Duration::from_secs(60 * 60);
    for (delay, later) in [(48 * hour, 71 * hour), (Duration::ZERO, 23 * hour)] {
        let key = Key::custom(&format!("{delay:?}"));
        let mut first = merging_job(&key, MergeMode::Coalesce);
        first.policy.delay = delay;
        let id = enqueue_stored(rig, first).await;
        rig.advance(later).await;
        assert_eq!(
            rig.enqueue(merging_job(&key, MergeMode::Coalesce)).await,
            EnqueueOutcome::Merged(id)
        );
        rig.advance(2 * hour).await;
        enqueue_stored(rig, merging_job(&key, MergeMode::Coalesce)).await;
    }
}
