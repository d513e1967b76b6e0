//! Limits of the data kept of ended jobs.

use std::time::Duration;

use bytes::Bytes;

use super::{
    on_every_store,
    store_harness::{
        LONG_TIME, SHORT_TIME, StoreHarness, enqueue_command, keys_of_one_shard, new_token,
        settle_command, test_key,
    },
};
use crate::{
    Key,
    store::backend::{
        BeginDirectOutcome, DirectRunCommand, ENDED_JOB_OVERHEAD, EnqueueCommand, EnqueueOutcome,
        JobId, JobState, LockMode, Settlement, StorageLimits, WebhookJobSpec,
    },
};

on_every_store!(
    response_bytes_per_shard_are_limited,
    dead_letter_bytes_are_limited_separately,
    direct_run_response_bytes_are_limited,
    newest_result_is_kept_beyond_limit,
    large_response_evicts_many_small_ones,
    expired_results_free_their_bytes,
    late_enqueue_of_evicted_job_keeps_tombstone,
    redrive_and_purge_ignore_stale_end_time,
    late_enqueue_of_purged_job_keeps_tombstone,
    webhook_bytes_count_until_delivered,
    oldest_dead_letter_is_evicted_at_index_limit,
);

/// Returns limits with room for `count` responses of 100 bytes.
fn limits_for_responses(count: u64) -> StorageLimits {
    StorageLimits { ended_bytes: count * (ENDED_JOB_OVERHEAD + 100), ..StorageLimits::NONE }
}

fn done_with_response(bytes: usize, retention: Duration) -> Settlement {
    Settlement::Done { response: vec![b'x'; bytes].into(), status: 200, retention }
}

const DEAD_SETTLEMENT: Settlement = Settlement::Dead { reason: "auth", retention: LONG_TIME };

/// Runs a job with a request of 100 bytes to this settlement.
async fn run_job_to_end(
    rig: &StoreHarness,
    key: &Key,
    caps: StorageLimits,
    settlement: Settlement,
) -> JobId {
    let envelope = Bytes::from_static(&[b'e'; 100]);
    let call = EnqueueCommand { limits: caps, envelope, ..enqueue_command(key) };
    let (id, run) = (call.id.clone(), new_token());
    assert!(matches!(rig.enqueue(call).await, EnqueueOutcome::Stored { .. }));
    rig.start_run(key, &id, &run).await;
    let settle = settle_command(key, &id, &run, settlement);
    assert!(rig.settle(settle.clone()).await);
    // A repeated settlement counts once.
    assert!(rig.settle(settle).await);
    id
}

/// Returns which of the jobs still have a record.
async fn are_jobs_known(rig: &StoreHarness, ids: &[JobId]) -> Vec<bool> {
    let mut are_known = Vec::new();
    for id in ids {
        are_known.push(rig.job_state(id).await.is_some());
        let envelope = rig.backend().job_envelope(id.clone()).await.unwrap();
        assert!(are_known.last() == Some(&true) || envelope.is_none(), "nothing is left of it");
    }
    are_known
}

async fn response_bytes_per_shard_are_limited(rig: &StoreHarness) {
    // All keys are in one shard.
    let [one, two] = keys_of_one_shard::<2>();
    let mut ids = Vec::new();
    for key in [&one, &two, &one, &two] {
        ids.push(
            run_job_to_end(rig, key, limits_for_responses(2), done_with_response(100, LONG_TIME))
                .await,
        );
    }
    assert_eq!(are_jobs_known(rig, &ids).await, [false, false, true, true], "the oldest go");
    let stats = rig.shard_stats(one.shard()).await;
    assert_eq!((stats.done, stats.trimmed_done), (2, 2));
    // Another shard has limits of its own.
    let other_keys = (0..).map(|n: u32| Key::custom(&n.to_string()));
    let other = other_keys.into_iter().find(|key| key.shard() != one.shard()).unwrap();
    let _ =
        run_job_to_end(rig, &other, limits_for_responses(2), done_with_response(100, LONG_TIME))
            .await;
    assert_eq!(rig.shard_stats(one.shard()).await, stats);
    // Higher limits apply from now on.
    ids.push(
        run_job_to_end(rig, &one, limits_for_responses(4), done_with_response(100, LONG_TIME))
            .await,
    );
    ids.push(
        run_job_to_end(rig, &one, limits_for_responses(4), done_with_response(100, LONG_TIME))
            .await,
    );
    assert_eq!(are_jobs_known(rig, &ids).await, [false, false, true, true, true, true]);
}

/// Each kind has its own limit: results do not evict dead letters, which operators must see.
async fn dead_letter_bytes_are_limited_separately(rig: &StoreHarness) {
    let key = test_key();
    let mut ids = Vec::new();
    for _ in 0..3 {
        ids.push(run_job_to_end(rig, &key, limits_for_responses(2), DEAD_SETTLEMENT).await);
    }
    let mut done = Vec::new();
    for _ in 0..3 {
        done.push(
            run_job_to_end(rig, &key, limits_for_responses(2), done_with_response(100, LONG_TIME))
                .await,
        );
    }
    assert_eq!(are_jobs_known(rig, &ids).await, [false, true, true]);
    assert_eq!(are_jobs_known(rig, &done).await, [false, true, true]);
    let stats = rig.shard_stats(key.shard()).await;
    assert_eq!((stats.dead, stats.trimmed_dead), (2, 1));
    // A redriven or purged dead letter frees its bytes.
    assert_eq!(rig.redrive(&ids[1]).await, Some(JobState::Queued));
    assert!(rig.purge(&ids[2]).await);
    assert_eq!(rig.cancel(&ids[1]).await, Some(JobState::Cancelled));
    let mut more = Vec::new();
    for _ in 0..2 {
        more.push(run_job_to_end(rig, &key, limits_for_responses(2), DEAD_SETTLEMENT).await);
    }
    assert_eq!(are_jobs_known(rig, &more).await, [true, true]);
    let stats = rig.shard_stats(key.shard()).await;
    assert_eq!((stats.dead, stats.trimmed_dead), (2, 1));
}

async fn direct_run_response_bytes_are_limited(rig: &StoreHarness) {
    let key = test_key();
    let first =
        run_job_to_end(rig, &key, limits_for_responses(2), done_with_response(100, LONG_TIME))
            .await;
    let mut ids = vec![first];
    for n in 0..2 {
        let record = format!("idem{n}").into();
        let (id, owner) = (JobId::new(&key), String::new());
        let (key, token) = (key.clone(), new_token());
        rig.acquire_exclusive(&key, &token).await;
        let call = DirectRunCommand {
            key,
            token,
            mode: LockMode::Exclusive,
            record_name: record,
            id,
            owner,
            retention: LONG_TIME,
            lease: LONG_TIME,
            retry_after_crash: false,
            limits: limits_for_responses(2),
            fingerprint: None,
        };
        assert_eq!(
            rig.backend().begin_direct(call.clone()).await.unwrap(),
            BeginDirectOutcome::Started
        );
        rig.release(&call.key, &call.token).await;
        let response = Bytes::from_static(&[b'x'; 100]);
        rig.backend().finish_direct(call.clone(), Some(response)).await.unwrap();
        ids.push(call.id);
    }
    assert_eq!(are_jobs_known(rig, &ids).await, [false, true, true]);
}

/// A client may be waiting for the newest result.
async fn newest_result_is_kept_beyond_limit(rig: &StoreHarness) {
    let key = test_key();
    let none = StorageLimits { ended_bytes: 0, ..StorageLimits::NONE };
    let mut ids = Vec::new();
    // Even a result that expires before the others is kept.
    for retention in [LONG_TIME, LONG_TIME / 2, LONG_TIME] {
        ids.push(run_job_to_end(rig, &key, none, done_with_response(100, retention)).await);
        let mut expected = vec![false; ids.len()];
        *expected.last_mut().unwrap() = true;
        assert_eq!(are_jobs_known(rig, &ids).await, expected);
    }
}

/// One operation evicts a bounded number of jobs; the next one continues.
async fn large_response_evicts_many_small_ones(rig: &StoreHarness) {
    let key = test_key();
    let mut ids = Vec::new();
    for _ in 0..30 {
        ids.push(
            run_job_to_end(rig, &key, limits_for_responses(30), done_with_response(100, LONG_TIME))
                .await,
        );
    }
    let large = run_job_to_end(
        rig,
        &key,
        limits_for_responses(30),
        done_with_response(20 * 612, LONG_TIME),
    )
    .await;
    assert!(are_jobs_known(rig, std::slice::from_ref(&large)).await[0]);
    let remaining = are_jobs_known(rig, &ids).await.into_iter().filter(|known| *known).count();
    // The large response evicts 20 for its body and one for its record.
    assert_eq!(remaining, 9);
}

/// Expiry frees the bytes although no operation ran meanwhile.
async fn expired_results_free_their_bytes(rig: &StoreHarness) {
    let key = test_key();
    let caps = limits_for_responses(3);
    let long_lived = run_job_to_end(rig, &key, caps, done_with_response(100, LONG_TIME)).await;
    for _ in 0..2 {
        let _ = run_job_to_end(rig, &key, caps, done_with_response(100, SHORT_TIME)).await;
    }
    rig.advance_past(SHORT_TIME).await;
    let mut ids = vec![long_lived];
    for _ in 0..2 {
        ids.push(run_job_to_end(rig, &key, caps, done_with_response(100, LONG_TIME)).await);
    }
    assert_eq!(are_jobs_known(rig, &ids).await, [true, true, true]);
    let stats = rig.shard_stats(key.shard()).await;
    assert_eq!((stats.done, stats.trimmed_done), (3, 2));
    // After all of them expire, no bytes remain counted.
    rig.advance_past(2 * LONG_TIME).await;
    let mut ids = Vec::new();
    for _ in 0..3 {
        ids.push(run_job_to_end(rig, &key, caps, done_with_response(100, LONG_TIME)).await);
    }
    assert_eq!(are_jobs_known(rig, &ids).await, [true, true, true]);
}

/// A webhook is stored with its job and counts towards the limits, until it is a job of its own.
async fn webhook_bytes_count_until_delivered(rig: &StoreHarness) {
    let key = test_key();
    let [_, to] = keys_of_one_shard::<2>();
    let command_with_webhook = |caps| {
        let envelope = Bytes::from_static(&[b'c'; 50]);
        let call =
            WebhookJobSpec { id: JobId::new(&to), key: to.clone(), envelope, max_attempts: 1 };
        EnqueueCommand { webhook: Some(call), limits: caps, ..enqueue_command(&key) }
    };
    let full = StorageLimits { shard_bytes: 56, ..StorageLimits::NONE };
    assert_eq!(rig.enqueue(command_with_webhook(full)).await, EnqueueOutcome::Full);
    let fits = StorageLimits { shard_bytes: 57, resource_bytes: 57, ..StorageLimits::NONE };
    let call = command_with_webhook(fits);
    assert_eq!(rig.enqueue(call.clone()).await, EnqueueOutcome::Stored { position: 1 });
    assert_eq!(rig.shard_stats(key.shard()).await.bytes, 57);
    let run = new_token();
    rig.start_run(&key, &call.id, &run).await;
    assert!(rig.finish_run(&key, &call.id, &run).await);
    // Only the webhook's bytes.
    assert_eq!(rig.shard_stats(key.shard()).await.bytes, 50);
    let id = call.webhook.unwrap().id;
    let run = new_token();
    rig.start_run(&to, &id, &run).await;
    assert!(rig.finish_run(&to, &id, &run).await);
    assert_eq!(rig.shard_stats(key.shard()).await.bytes, 0);
}

/// The newest dead letter stays, even if it expires before all others. An evicted one still sends
/// its webhook, and its record goes with it.
async fn oldest_dead_letter_is_evicted_at_index_limit(rig: &StoreHarness) {
    let key = test_key();
    rig.fill_dead_index(key.shard(), 10_000).await;
    let command_with_record = |record: &str| EnqueueCommand {
        idempotency_record: Some((record.into(), "print".into(), SHORT_TIME)),
        ..enqueue_command(&key)
    };
    let mut dead = Vec::new();
    for name in ["one", "two", "three"] {
        let to = Key::for_webhook(name, key.shard());
        let envelope = Bytes::from_static(b"call");
        let call = WebhookJobSpec { id: JobId::new(&to), key: to, envelope, max_attempts: 3 };
        let job = EnqueueCommand { webhook: Some(call.clone()), ..command_with_record(name) };
        let (id, run) = (job.id.clone(), new_token());
        assert_eq!(rig.enqueue(job).await, EnqueueOutcome::Stored { position: 1 });
        rig.start_run(&key, &id, &run).await;
        assert!(rig.settle(settle_command(&key, &id, &run, DEAD_SETTLEMENT)).await);
        assert_eq!(rig.job_state(&id).await, Some(JobState::Dead), "{name}");
        assert_eq!(
            rig.job_state(&call.id).await,
            Some(JobState::Queued),
            "{name}: the webhook job is queued"
        );
        assert_eq!(
            rig.enqueue(command_with_record(name)).await,
            EnqueueOutcome::Duplicate(id.clone()),
            "{name}"
        );
        dead.push(id);
    }
    // Each of these dead letters is evicted for the next one.
    assert_eq!(are_jobs_known(rig, &dead).await, [false, false, true]);
    assert_eq!(rig.shard_stats(key.shard()).await.dead, 10_000);
    rig.advance_past(LONG_TIME).await;
    for name in ["one", "two", "three"] {
        let stored = rig.enqueue(command_with_record(name)).await;
        assert!(
            matches!(stored, EnqueueOutcome::Stored { .. }),
            "{name} is remembered for ever: {stored:?}"
        );
    }
}

/// The job has run; a late copy of its enqueue must not run it again.
async fn late_enqueue_of_evicted_job_keeps_tombstone(rig: &StoreHarness) {
    let key = test_key();
    let call = EnqueueCommand {
        limits: StorageLimits { ended_bytes: 0, ..StorageLimits::NONE },
        ..enqueue_command(&key)
    };
    for call in [call.clone(), EnqueueCommand { id: JobId::new(&key), ..call.clone() }] {
        rig.enqueue(call.clone()).await;
        let run = new_token();
        rig.start_run(&key, &call.id, &run).await;
        assert!(
            rig.settle(settle_command(&key, &call.id, &run, done_with_response(100, LONG_TIME)))
                .await
        );
    }
    assert!(rig.is_tombstone(&call.id).await, "the oldest job is evicted");
    let copy = rig.enqueue(call.clone()).await;
    assert!(matches!(copy, EnqueueOutcome::Stored { .. }), "{copy:?}");
    assert!(rig.is_tombstone(&call.id).await);
    assert_eq!(rig.backend().job_envelope(call.id.clone()).await.unwrap(), None);
    assert!(!rig.purge(&call.id).await, "there is none");
}

/// A redrive or purge with a stale end time refers to an earlier end and must do nothing.
async fn redrive_and_purge_ignore_stale_end_time(rig: &StoreHarness) {
    let key = test_key();
    let call = enqueue_command(&key);
    rig.enqueue(call.clone()).await;
    let id = &call.id;
    let mut end_times = Vec::new();
    for settlement in [DEAD_SETTLEMENT, DEAD_SETTLEMENT, done_with_response(100, LONG_TIME)] {
        if !end_times.is_empty() {
            assert_eq!(rig.redrive(id).await, Some(JobState::Queued));
        }
        let run = new_token();
        rig.start_run(&key, id, &run).await;
        assert!(rig.settle(settle_command(&key, id, &run, settlement)).await);
        end_times.push(rig.ended_us(id).await);
        rig.advance_past(SHORT_TIME).await;
        let state = rig.job_state(id).await;
        for stale_end in &end_times[..end_times.len() - 1] {
            assert_eq!(rig.backend().redrive_job(id.clone(), *stale_end).await.unwrap(), state);
            assert!(!rig.backend().purge_job(id.clone(), *stale_end).await.unwrap());
        }
        assert_eq!(rig.job_state(id).await, state);
    }
    assert_eq!(rig.job_state(id).await, Some(JobState::Done));
}

async fn late_enqueue_of_purged_job_keeps_tombstone(rig: &StoreHarness) {
    let key = test_key();
    let record = Some(("idem".into(), "print".to_owned(), LONG_TIME));
    let call = EnqueueCommand { idempotency_record: record, ..enqueue_command(&key) };
    rig.enqueue(call.clone()).await;
    let run = new_token();
    rig.start_run(&key, &call.id, &run).await;
    assert!(rig.settle(settle_command(&key, &call.id, &run, DEAD_SETTLEMENT)).await);
    assert!(rig.purge(&call.id).await);
    let copy = rig.enqueue(call.clone()).await;
    assert!(matches!(copy, EnqueueOutcome::Stored { .. }), "{copy:?}");
    assert!(rig.is_tombstone(&call.id).await);
    // A retry with a new id does not run either.
    let retry = EnqueueCommand { id: JobId::new(&key), ..call.clone() };
    assert_eq!(rig.enqueue(retry).await, EnqueueOutcome::Duplicate(call.id));
}
