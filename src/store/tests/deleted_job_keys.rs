//! Deletion of keys of waiting jobs, and the keys that remain after all jobs have ended.

use std::time::Duration;

use super::{
    redis_only::is_permanent_key,
    store_harness::{
        LONG_TIME, SHORT_TIME, StoreHarness, claim_command, enqueue_command, keys_of_one_shard,
        new_token, settle_command, test_key,
    },
};
use crate::{
    Key,
    store::backend::{
        ClaimOutcome, DirectRunCommand, EnqueueCommand, EnqueueOutcome, JobId, JobPolicy, JobState,
        LockMode, MergeMode, MergePolicy, OnFailure, Settlement, StorageLimits, WebhookJobSpec,
    },
};

pub(super) fn delayed_enqueue_command(
    key: &Key,
    delay: Duration,
    deadline: Option<Duration>,
) -> EnqueueCommand {
    let call = enqueue_command(key);
    EnqueueCommand { policy: JobPolicy { delay, deadline, ..call.policy }, ..call }
}

pub(super) async fn enqueue_stored(rig: &StoreHarness, call: EnqueueCommand) -> JobId {
    let id = call.id.clone();
    let stored = rig.enqueue(call).await;
    assert!(matches!(stored, EnqueueOutcome::Stored { .. }), "{stored:?}");
    id
}

pub(super) async fn delete_key(rig: &StoreHarness, key: &Key, name: &str) {
    let name = format!("{{{}}}:{name}", key.shard());
    assert_eq!(rig.server().key_command::<i64>("DEL", &name, &[]).await, 1, "{name}");
}

/// Returns the number and bytes of the jobs of the key's shard.
pub(super) async fn shard_counts(rig: &StoreHarness, key: &Key) -> Vec<String> {
    let shard_fields = format!("{{{}}}:f", key.shard());
    rig.server().key_command("HMGET", &shard_fields, &["jobs", "bytes"]).await
}

/// Returns the remaining keys, except for those that are permanent by design.
async fn leftover_keys(rig: &StoreHarness) -> Vec<String> {
    let mut names = rig.server().key_names().await;
    names.retain(|name| !is_permanent_key(name));
    names
}

#[tokio::test]
async fn delayed_job_without_record_is_forgotten() {
    let rig = StoreHarness::redis().await;
    let key = test_key();
    let id = enqueue_stored(&rig, delayed_enqueue_command(&key, SHORT_TIME, Some(LONG_TIME))).await;
    delete_key(&rig, &key, &format!("j:{id}")).await;
    rig.advance_past(SHORT_TIME).await;
    rig.poll_due(key.shard(), 10).await;
    rig.advance_past(LONG_TIME).await;
    rig.poll_due(key.shard(), 10).await;
    assert_eq!(shard_counts(&rig, &key).await, ["0", "0"]);
    assert_eq!(leftover_keys(&rig).await, [""; 0]);
}

#[tokio::test]
async fn jobs_without_records_do_not_count_for_owner() {
    let rig = StoreHarness::redis().await;
    let key = test_key();
    let caps = StorageLimits { owner_jobs: 2, ..StorageLimits::NONE };
    let call = || EnqueueCommand { owner: "ada".into(), limits: caps, ..enqueue_command(&key) };
    let (first, second) = (enqueue_stored(&rig, call()).await, enqueue_stored(&rig, call()).await);
    assert_eq!(rig.enqueue(call()).await, EnqueueOutcome::Full);
    delete_key(&rig, &key, &format!("j:{first}")).await;
    let third = enqueue_stored(&rig, call()).await;
    assert_eq!(rig.enqueue(call()).await, EnqueueOutcome::Full);
    // With its count deleted, the owner's number must not become negative.
    delete_key(&rig, &key, "o:ada").await;
    let fourth = enqueue_stored(&rig, call()).await;
    for id in [second, third, fourth] {
        assert_eq!(rig.cancel(&id).await, Some(JobState::Cancelled));
    }
    let owned = format!("{{{}}}:o:ada", key.shard());
    assert_eq!(rig.server().key_command::<i64>("EXISTS", &owned, &[]).await, 0);
    enqueue_stored(&rig, call()).await;
    let ttl: i64 = rig.server().key_command("PTTL", &owned, &[]).await;
    assert!(ttl > 0, "it has an end, should its jobs vanish");
}

/// Adds a webhook to a job.
pub(super) fn with_webhook(job: EnqueueCommand) -> EnqueueCommand {
    let key = Key::for_webhook(job.id.as_str(), job.id.shard());
    let id = JobId::new(&key);
    EnqueueCommand {
        webhook: Some(WebhookJobSpec { id, key, envelope: "call".into(), max_attempts: 1 }),
        ..job
    }
}

#[tokio::test]
async fn webhook_goes_with_record_of_its_job() {
    let rig = StoreHarness::redis().await;
    rig.register_worker().await;
    let key = test_key();
    for delay in [Duration::ZERO, SHORT_TIME] {
        let id =
            enqueue_stored(&rig, with_webhook(delayed_enqueue_command(&key, delay, None))).await;
        delete_key(&rig, &key, &format!("j:{id}")).await;
        rig.advance_past(SHORT_TIME).await;
        rig.poll_due(key.shard(), 10).await;
        rig.claim(claim_command(&key, &id, &new_token())).await;
        assert_eq!(shard_counts(&rig, &key).await, ["0", "0"], "{delay:?}");
    }
    // Without the job's request, no webhook is sent.
    let id = enqueue_stored(&rig, with_webhook(enqueue_command(&key))).await;
    delete_key(&rig, &key, &format!("t:{id}")).await;
    assert_eq!(rig.cancel(&id).await, Some(JobState::Cancelled));
    assert_eq!(shard_counts(&rig, &key).await, ["0", "0"]);
    rig.advance_past(LONG_TIME * 200).await;
    rig.backend().heartbeat(crate::store::backend::NodeId::new(), LONG_TIME).await.unwrap();
    let leftover = leftover_keys(&rig).await;
    assert!(leftover.iter().all(|name| name.ends_with("workers")), "{leftover:?}");
}

#[tokio::test]
async fn unindexed_delayed_job_can_be_cancelled() {
    let rig = StoreHarness::redis().await;
    let key = test_key();
    for index in ["late", "lates"] {
        let id =
            enqueue_stored(&rig, delayed_enqueue_command(&key, SHORT_TIME, Some(LONG_TIME))).await;
        delete_key(&rig, &key, index).await;
        rig.advance_past(SHORT_TIME).await;
        rig.poll_due(key.shard(), 10).await;
        assert_eq!(rig.cancel(&id).await, Some(JobState::Cancelled), "{index}");
        assert_eq!(shard_counts(&rig, &key).await, ["0", "0"], "{index}");
    }
    rig.advance_past(LONG_TIME).await;
    assert_eq!(leftover_keys(&rig).await, [""; 0]);
}

#[tokio::test]
async fn job_of_deleted_queue_can_be_cancelled() {
    let rig = StoreHarness::redis().await;
    let (key, a) = (test_key(), new_token());
    rig.acquire_exclusive(&key, &a).await;
    let ids = [rig.enqueue_job(&key).await, rig.enqueue_job(&key).await];
    delete_key(&rig, &key, &format!("g:{key}")).await;
    for id in ids {
        assert_eq!(rig.cancel(&id).await, Some(JobState::Cancelled));
    }
    assert_eq!(shard_counts(&rig, &key).await, ["0", "0"]);
    rig.advance_past(LONG_TIME).await;
    assert_eq!(leftover_keys(&rig).await, [""; 0]);
}

#[tokio::test]
async fn job_is_not_merged_into_deleted_queue() {
    let rig = StoreHarness::redis().await;
    let key = test_key();
    let call = || {
        let merge = Some(MergePolicy { group: "0f".into(), mode: MergeMode::Coalesce });
        EnqueueCommand { merge, ..enqueue_command(&key) }
    };
    enqueue_stored(&rig, call()).await;
    delete_key(&rig, &key, &format!("g:{key}")).await;
    let id = enqueue_stored(&rig, call()).await;
    assert_eq!(rig.start_run(&key, &id, &new_token()).await, 1);
}

#[tokio::test]
async fn unindexed_deadline_is_checked_at_claim() {
    let rig = StoreHarness::redis().await;
    let key = test_key();
    let id =
        enqueue_stored(&rig, delayed_enqueue_command(&key, Duration::ZERO, Some(SHORT_TIME))).await;
    delete_key(&rig, &key, "exp").await;
    rig.advance_past(SHORT_TIME).await;
    rig.poll_due(key.shard(), 10).await;
    assert_eq!(rig.job_state(&id).await, Some(JobState::Queued));
    rig.claim(claim_command(&key, &id, &new_token())).await;
    assert_eq!(rig.job_state(&id).await, Some(JobState::Expired));
}

#[tokio::test]
async fn delayed_job_survives_lost_shard_counters() {
    let rig = StoreHarness::redis().await;
    let (key, run) = (test_key(), new_token());
    rig.register_worker().await;
    let id = enqueue_stored(&rig, delayed_enqueue_command(&key, SHORT_TIME, None)).await;
    delete_key(&rig, &key, "f").await;
    rig.advance_past(SHORT_TIME).await;
    rig.poll_due(key.shard(), 10).await;
    assert_eq!(rig.start_run(&key, &id, &run).await, 1);
    assert!(rig.finish_run(&key, &id, &run).await);
    assert_eq!(shard_counts(&rig, &key).await, ["0", "0"], "never below");
}

#[tokio::test]
async fn operations_succeed_after_script_flush() {
    let rig = StoreHarness::redis().await;
    let [key, other] = keys_of_one_shard::<2>();
    let id = enqueue_stored(&rig, delayed_enqueue_command(&key, SHORT_TIME, None)).await;
    rig.server().flush_scripts().await;
    let second = enqueue_stored(&rig, delayed_enqueue_command(&other, SHORT_TIME, None)).await;
    rig.server().flush_scripts().await;
    assert_eq!(rig.cancel(&second).await, Some(JobState::Cancelled));
    rig.advance_past(SHORT_TIME).await;
    rig.server().flush_scripts().await;
    assert_eq!(rig.poll_due(key.shard(), 10).await.locks, std::slice::from_ref(&key));
    assert_eq!(rig.heads(&[key]).await, [Some(id)]);
}

/// Covers all kinds of ends in one namespace. Every remaining key must have an expiry, so that no
/// cleanup is needed.
#[tokio::test]
async fn ended_pending_jobs_leave_no_keys() {
    let rig = StoreHarness::redis().await;
    let (key, run) = (test_key(), new_token());
    let direct = DirectRunCommand {
        key: key.clone(),
        token: new_token(),
        mode: LockMode::Exclusive,
        record_name: "other".into(),
        id: JobId::new(&key),
        owner: String::new(),
        retention: LONG_TIME,
        lease: Duration::from_secs(600),
        retry_after_crash: false,
        limits: StorageLimits::NONE,
        fingerprint: None,
    };
    rig.acquire_exclusive(&key, &direct.token).await;
    rig.backend().begin_direct(direct.clone()).await.unwrap();
    rig.release(&key, &direct.token).await;
    rig.register_worker().await;
    let merge = |mode| Some(MergePolicy { group: "0f".into(), mode });
    let record = Some(("idem".into(), "print".into(), LONG_TIME));
    // Jobs that are superseded, merged, expired in the queue and delayed, cancelled while delayed,
    // and retried while others overtake.
    enqueue_stored(
        &rig,
        EnqueueCommand {
            merge: merge(MergeMode::Supersede),
            ..delayed_enqueue_command(&key, LONG_TIME, Some(LONG_TIME))
        },
    )
    .await;
    let last = enqueue_stored(
        &rig,
        EnqueueCommand {
            merge: merge(MergeMode::Supersede),
            idempotency_record: record,
            ..enqueue_command(&key)
        },
    )
    .await;
    let merged = EnqueueCommand { merge: merge(MergeMode::Coalesce), ..enqueue_command(&key) };
    assert_eq!(rig.enqueue(merged).await, EnqueueOutcome::Merged(last.clone()));
    enqueue_stored(&rig, delayed_enqueue_command(&key, Duration::ZERO, Some(SHORT_TIME))).await;
    enqueue_stored(&rig, delayed_enqueue_command(&key, LONG_TIME, Some(SHORT_TIME))).await;
    let cancelled = enqueue_stored(&rig, delayed_enqueue_command(&key, LONG_TIME, None)).await;
    rig.cancel(&cancelled).await;
    let mut skippable = delayed_enqueue_command(&key, SHORT_TIME, Some(LONG_TIME));
    skippable.policy.on_failure = OnFailure::Skip;
    let skippable = enqueue_stored(&rig, skippable).await;
    rig.advance_past(SHORT_TIME).await;
    rig.poll_due(key.shard(), 10).await;
    rig.start_run(&key, &last, &run).await;
    rig.finish_run(&key, &last, &run).await;
    let run = new_token();
    rig.start_run(&key, &skippable, &run).await;
    let retry = Settlement::Retry { delay: SHORT_TIME, reason: "status 503" };
    assert!(rig.settle(settle_command(&key, &skippable, &run, retry)).await);
    rig.advance_past(SHORT_TIME).await;
    rig.poll_due(key.shard(), 10).await;
    let run = new_token();
    assert_eq!(rig.start_run(&key, &skippable, &run).await, 2);
    rig.finish_run(&key, &skippable, &run).await;
    rig.backend().finish_direct(direct, Some("answer".into())).await.unwrap();
    assert_eq!(shard_counts(&rig, &key).await, ["0", "0"]);
    for name in rig.server().key_names().await.iter().filter(|name| !is_permanent_key(name)) {
        let ttl: i64 = rig.server().key_command("PTTL", name, &[]).await;
        assert!(ttl > 0, "{name} has no end");
    }
    rig.advance_past(LONG_TIME * 200).await;
    assert_eq!(leftover_keys(&rig).await, [""; 0]);
}

#[tokio::test]
async fn job_ended_without_record_does_not_count_for_owner() {
    let rig = StoreHarness::redis().await;
    let key = test_key();
    let caps = StorageLimits { owner_jobs: 1, ..StorageLimits::NONE };
    let call = || EnqueueCommand { owner: "ada".into(), limits: caps, ..enqueue_command(&key) };
    let id = enqueue_stored(&rig, call()).await;
    delete_key(&rig, &key, &format!("j:{id}")).await;
    assert_eq!(
        rig.claim(claim_command(&key, &id, &new_token())).await,
        ClaimOutcome::Ended(id.clone())
    );
    assert_eq!(rig.job_state(&id).await, Some(JobState::Dead), "the dead letter is stored");
    enqueue_stored(&rig, call()).await;
    assert_eq!(rig.enqueue(call()).await, EnqueueOutcome::Full);
}
