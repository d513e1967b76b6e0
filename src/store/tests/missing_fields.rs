//! Partly deleted data: a field, or one of the keys of a job. The queue must not stall.

use bytes::Bytes;

use super::{
    deleted_job_keys::{delayed_enqueue_command, delete_key, enqueue_stored, shard_counts},
    store_harness::{
        LONG_TIME, SHORT_TIME, StoreHarness, claim_command, enqueue_command, new_token,
        retryable_enqueue_command, test_key,
    },
};
use crate::{
    Key,
    store::backend::{
        ClaimCommand, ClaimOutcome, DirectRunCommand, EnqueueCommand, EnqueueOutcome, JobId,
        JobState, LockMode, StorageLimits,
    },
};

async fn delete_job_field(rig: &StoreHarness, key: &Key, id: &JobId, field: &str) {
    let name = format!("{{{}}}:j:{id}", key.shard());
    assert_eq!(rig.server().key_command::<i64>("HDEL", &name, &[field]).await, 1, "{field}");
}

#[tokio::test]
async fn crashed_job_without_max_attempts_becomes_dead_letter() {
    let rig = StoreHarness::redis().await;
    let key = test_key();
    let (id, next) = (
        enqueue_stored(&rig, retryable_enqueue_command(&key)).await,
        enqueue_stored(&rig, retryable_enqueue_command(&key)).await,
    );
    let claim = ClaimCommand { lease: SHORT_TIME, ..claim_command(&key, &id, &new_token()) };
    assert!(matches!(rig.claim(claim).await, ClaimOutcome::Claimed(_)));
    delete_job_field(&rig, &key, &id, "max").await;
    rig.advance_past(SHORT_TIME).await;
    assert_eq!(rig.claim(claim_command(&key, &id, &new_token())).await, ClaimOutcome::Ended(id));
    rig.start_run(&key, &next, &new_token()).await;
}

#[tokio::test]
async fn delayed_job_without_lock_field_is_deleted() {
    let rig = StoreHarness::redis().await;
    let key = test_key();
    let id = enqueue_stored(&rig, delayed_enqueue_command(&key, SHORT_TIME, None)).await;
    delete_job_field(&rig, &key, &id, "lock").await;
    rig.advance_past(SHORT_TIME).await;
    rig.poll_due(key.shard(), 10).await;
    assert_eq!(shard_counts(&rig, &key).await, ["0", "0"]);
    let leftover = rig.server().key_names().await;
    assert!(!leftover.iter().any(|name| name.contains(id.as_str())), "{leftover:?}");
}

#[tokio::test]
async fn bytes_of_deleted_jobs_are_uncounted() {
    let rig = StoreHarness::redis().await;
    let key = test_key();
    for _ in 0..3 {
        let id = enqueue_stored(&rig, enqueue_command(&key)).await;
        delete_key(&rig, &key, &format!("j:{id}")).await;
        delete_key(&rig, &key, &format!("b:{id}")).await;
        assert_eq!(
            rig.claim(claim_command(&key, &id, &new_token())).await,
            ClaimOutcome::Ended(id)
        );
        assert_eq!(shard_counts(&rig, &key).await, ["0", "0"]);
    }
    // The counts stay right, too, if another job is the last one and succeeds.
    let (id, last) = (
        enqueue_stored(&rig, enqueue_command(&key)).await,
        enqueue_stored(&rig, enqueue_command(&key)).await,
    );
    delete_key(&rig, &key, &format!("j:{id}")).await;
    delete_key(&rig, &key, &format!("b:{id}")).await;
    assert_eq!(rig.claim(claim_command(&key, &id, &new_token())).await, ClaimOutcome::Ended(id));
    let run = new_token();
    rig.start_run(&key, &last, &run).await;
    assert!(rig.finish_run(&key, &last, &run).await);
    assert_eq!(shard_counts(&rig, &key).await, ["0", "0"]);
}

#[tokio::test]
async fn deleted_response_reads_as_none() {
    let rig = StoreHarness::redis().await;
    let (key, run) = (test_key(), new_token());
    let id = enqueue_stored(&rig, enqueue_command(&key)).await;
    rig.start_run(&key, &id, &run).await;
    assert!(rig.finish_run(&key, &id, &run).await);
    assert!(rig.job_view(&id).await.is_some_and(|job| job.response.is_some()));
    delete_key(&rig, &key, &format!("r:{id}")).await;
    let job = rig.job_view(&id).await.expect("its fields are stored");
    assert_eq!((job.state, job.response), (JobState::Done, None));
}

/// A retry finds that the request has run.
#[tokio::test]
async fn record_deleted_during_run_is_restored_at_finish() {
    let rig = StoreHarness::redis().await;
    let (key, token) = (test_key(), new_token());
    let (id, mode, owner) = (JobId::new(&key), LockMode::Exclusive, String::new());
    let (record, retention) = ("idem".to_owned().into(), LONG_TIME);
    let call = DirectRunCommand {
        key: key.clone(),
        token,
        mode,
        record_name: record,
        id,
        owner,
        retention,
        lease: retention,
        retry_after_crash: false,
        limits: StorageLimits::NONE,
        fingerprint: None,
    };
    rig.acquire_exclusive(&key, &call.token).await;
    rig.backend().begin_direct(call.clone()).await.unwrap();
    let names = rig.server().key_names().await;
    let record = names.iter().find(|name| name.contains("}:i:")).expect("it began");
    assert_eq!(rig.server().key_command::<i64>("DEL", record, &[]).await, 1);
    rig.backend().finish_direct(call.clone(), Some(Bytes::from_static(b"answer"))).await.unwrap();
    let command = EnqueueCommand {
        idempotency_record: Some(("idem".into(), "print".into(), LONG_TIME)),
        ..enqueue_command(&key)
    };
    assert_eq!(rig.enqueue(command).await, EnqueueOutcome::Duplicate(call.id));
}
