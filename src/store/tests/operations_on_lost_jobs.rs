//! Operations on jobs with missing keys. They must not block other jobs, and nothing of them may
//! remain counted.

use std::time::Duration;

use super::{
    deleted_job_keys::{
        delayed_enqueue_command, delete_key, enqueue_stored, shard_counts, with_webhook,
    },
    store_harness::{
        LONG_TIME, SHORT_TIME, StoreHarness, claim_command, enqueue_command, keys_of_one_shard,
        new_token, settle_command, test_key,
    },
};
use crate::{
    Key,
    store::backend::{
        ClaimOutcome, EnqueueCommand, EnqueueOutcome, JobState, Settlement, StorageLimits,
    },
};

/// The job's request still exists, so the job can be redriven; the rest of its record is lost.
#[tokio::test]
async fn redriven_job_without_record_runs() {
    let rig = StoreHarness::redis().await;
    let (key, run) = (test_key(), new_token());
    rig.register_worker().await;
    let lost = enqueue_stored(&rig, with_webhook(enqueue_command(&key))).await;
    delete_key(&rig, &key, &format!("j:{lost}")).await;
    assert_eq!(
        rig.claim(claim_command(&key, &lost, &new_token())).await,
        ClaimOutcome::Ended(lost.clone())
    );
    assert_eq!(shard_counts(&rig, &key).await, ["0", "0"]);
    assert_eq!(rig.redrive(&lost).await, Some(JobState::Queued));
    let next = enqueue_stored(&rig, enqueue_command(&key)).await;
    assert_eq!(rig.start_run(&key, &lost, &run).await, 1);
    // The reply to the claim was lost, so it is repeated.
    assert!(matches!(rig.claim(claim_command(&key, &lost, &run)).await, ClaimOutcome::Claimed(_)));
    assert!(rig.finish_run(&key, &lost, &run).await);
    let run = new_token();
    assert_eq!(rig.start_run(&key, &next, &run).await, 1);
    assert!(rig.finish_run(&key, &next, &run).await);
    assert_eq!(shard_counts(&rig, &key).await, ["0", "0"]);
    // The same with a cancelled job instead of a run.
    let lost = enqueue_stored(&rig, enqueue_command(&key)).await;
    delete_key(&rig, &key, &format!("j:{lost}")).await;
    rig.claim(claim_command(&key, &lost, &new_token())).await;
    assert_eq!(rig.redrive(&lost).await, Some(JobState::Queued));
    assert_eq!(rig.cancel(&lost).await, Some(JobState::Cancelled));
    assert_eq!(shard_counts(&rig, &key).await, ["0", "0"]);
}

#[tokio::test]
async fn delayed_job_counts_stay_correct_after_job_is_lost() {
    let rig = StoreHarness::redis().await;
    let [one, two] = keys_of_one_shard::<2>();
    let caps = StorageLimits { resource_jobs: 2, ..StorageLimits::NONE };
    let call = |key: &Key, delay| EnqueueCommand {
        limits: caps,
        ..delayed_enqueue_command(key, delay, None)
    };
    let lost = enqueue_stored(&rig, call(&one, SHORT_TIME)).await;
    let waiting = enqueue_stored(&rig, call(&one, LONG_TIME)).await;
    let other = enqueue_stored(&rig, call(&two, LONG_TIME)).await;
    delete_key(&rig, &one, &format!("j:{lost}")).await;
    rig.advance_past(SHORT_TIME).await;
    rig.poll_due(one.shard(), 10).await;
    enqueue_stored(&rig, call(&one, LONG_TIME)).await;
    assert_eq!(
        rig.enqueue(call(&one, LONG_TIME)).await,
        EnqueueOutcome::Full,
        "those that are there count"
    );
    enqueue_stored(&rig, call(&two, LONG_TIME)).await;
    assert_eq!(rig.enqueue(call(&two, LONG_TIME)).await, EnqueueOutcome::Full);
    for id in [waiting, other] {
        assert_eq!(rig.cancel(&id).await, Some(JobState::Cancelled));
    }
    enqueue_stored(&rig, call(&one, LONG_TIME)).await;
    enqueue_stored(&rig, call(&two, LONG_TIME)).await;
    assert_eq!(rig.enqueue(call(&one, LONG_TIME)).await, EnqueueOutcome::Full);
}

/// Runs the due jobs of a shard until none is left.
async fn run_all_due_jobs(rig: &StoreHarness, shard: u16) {
    for _ in 0..20 {
        rig.let_offer_expire().await;
        let due = rig.poll_due(shard, 10).await.locks;
        if due.is_empty() {
            return;
        }
        for key in due {
            let Some(id) = rig.heads(std::slice::from_ref(&key)).await.remove(0) else { continue };
            let run = new_token();
            if let ClaimOutcome::Claimed(_) = rig.claim(claim_command(&key, &id, &run)).await {
                assert!(rig.finish_run(&key, &id, &run).await);
            }
        }
    }
    panic!("there is no end to it");
}

/// Asserts that the total of ended bytes is the sum of the entries, unless there are no ended jobs.
async fn assert_ended_bytes_match(rig: &StoreHarness, key: &Key, kind: &str) {
    let name = |name: &str| format!("{{{}}}:{name}", key.shard());
    if rig.server().key_command::<i64>("EXISTS", &name(kind), &[]).await == 0 {
        return;
    }
    let sum = format!("{kind}_bytes");
    let sum: Vec<Option<i64>> =
        rig.server().key_command("HMGET", &name("f"), &[sum.as_str()]).await;
    let entries: Vec<String> =
        rig.server().key_command("HVALS", &name(&format!("{kind}bytes")), &[]).await;
    let bytes = |text: &String| text.split(' ').next().unwrap().parse::<i64>().unwrap();
    assert_eq!(sum[0].unwrap_or(0), entries.iter().map(bytes).sum::<i64>(), "{kind}");
}

#[tokio::test]
async fn operations_on_jobs_with_missing_keys_block_no_others() {
    let rig = StoreHarness::redis().await;
    rig.register_worker().await;
    let key = test_key();
    for missing_key in ["j", "b", "t"] {
        for state in ["queued", "delayed", "running", "dead"] {
            for operation in ["redrive", "cancel", "purge"] {
                let case = format!("{operation} of a {state} job without {missing_key}");
                let delay = if state == "delayed" { SHORT_TIME } else { Duration::ZERO };
                let owner = "ada".into();
                let id = enqueue_stored(
                    &rig,
                    with_webhook(EnqueueCommand {
                        owner,
                        ..delayed_enqueue_command(&key, delay, None)
                    }),
                )
                .await;
                if matches!(state, "running" | "dead") {
                    let run = new_token();
                    rig.start_run(&key, &id, &run).await;
                    if state == "dead" {
                        let settlement = Settlement::Dead { reason: "auth", retention: LONG_TIME };
                        assert!(rig.settle(settle_command(&key, &id, &run, settlement)).await);
                    }
                }
                delete_key(&rig, &key, &format!("{missing_key}:{id}")).await;
                for _ in 0..2 {
                    let _ = match operation {
                        "redrive" => rig.redrive(&id).await.is_some(),
                        "cancel" => rig.cancel(&id).await.is_some(),
                        _ => rig.purge(&id).await,
                    };
                }
                let next = rig.enqueue_job(&key).await;
                rig.advance_past(2 * LONG_TIME).await;
                rig.register_worker().await;
                run_all_due_jobs(&rig, key.shard()).await;
                assert_eq!(rig.job_state(&next).await, Some(JobState::Done), "{case}");
                assert_eq!(shard_counts(&rig, &key).await, ["0", "0"], "{case}");
                // Repeats the operations after the job has ended.
                let _ = rig.redrive(&id).await;
                run_all_due_jobs(&rig, key.shard()).await;
                let _ = rig.purge(&id).await;
                assert_eq!(rig.job_state(&id).await, None, "{case}");
                assert_eq!(shard_counts(&rig, &key).await, ["0", "0"], "{case}");
                for kind in ["done", "dead"] {
                    assert_ended_bytes_match(&rig, &key, kind).await;
                }
            }
        }
    }
}
