//! Webhook jobs: each end of a job with a webhook enqueues one in the same operation.

mod repeated_ends;

use bytes::Bytes;

use super::{
    on_every_store,
    store_harness::{
        LONG_TIME, SHORT_TIME, StoreHarness, claim_command, enqueue_command, new_token,
        retryable_enqueue_command, settle_command, test_key,
    },
};
use crate::{
    Key,
    store::backend::{
        ClaimCommand, ClaimOutcome, EnqueueCommand, EnqueueOutcome, JobId, JobPolicy, JobState,
        MergeMode, MergePolicy, OnFailure, Settlement, StorageLimits, WebhookJobSpec,
    },
};

on_every_store!(
    every_job_end_enqueues_its_webhook,
    pending_job_enqueues_no_webhook,
    superseded_job_enqueues_its_webhook,
    redriven_job_enqueues_webhook_again,
    queued_webhook_is_not_enqueued_twice,
    webhook_job_keeps_latest_end_of_its_job,
    crashed_webhook_job_runs_again,
    webhook_of_purged_job_stays_queued,
);

const WEBHOOK_REQUEST: &[u8] = b"call";

/// Adds a webhook to a job. Returns both.
fn with_webhook(job: EnqueueCommand) -> (EnqueueCommand, WebhookJobSpec) {
    let key = Key::for_webhook(job.id.as_str(), job.id.shard());
    let envelope = Bytes::from_static(WEBHOOK_REQUEST);
    let call = WebhookJobSpec { id: JobId::new(&key), key, envelope, max_attempts: 3 };
    (EnqueueCommand { webhook: Some(call.clone()), ..job }, call)
}

async fn enqueue_with_webhook(rig: &StoreHarness, job: EnqueueCommand) -> (JobId, WebhookJobSpec) {
    let (job, call) = with_webhook(job);
    let id = job.id.clone();
    let stored = rig.enqueue(job).await;
    assert!(matches!(stored, EnqueueOutcome::Stored { .. }), "{stored:?}");
    assert_eq!(rig.job_view(&call.id).await, None, "not before the end");
    (id, call)
}

async fn first_job(rig: &StoreHarness, key: &Key) -> Option<JobId> {
    rig.heads(std::slice::from_ref(key)).await[0].clone()
}

async fn run_to_dead_letter(rig: &StoreHarness, key: &Key, id: &JobId) {
    let run = new_token();
    rig.start_run(key, id, &run).await;
    let settlement = Settlement::Dead { reason: "auth", retention: LONG_TIME };
    assert!(rig.settle(settle_command(key, id, &run, settlement)).await);
}

async fn every_job_end_enqueues_its_webhook(rig: &StoreHarness) {
    rig.register_worker().await;
    let endings = [
        "done",
        "dead",
        "crashed",
        "cancelled",
        "delayed and cancelled",
        "expired",
        "expired in the queue",
        "expired when claimed",
        "expired when settled",
    ];
    for ending in endings {
        let (key, run) = (test_key(), new_token());
        let delay =
            if ending.starts_with("delayed") { LONG_TIME } else { std::time::Duration::ZERO };
        let deadline = ending.starts_with("expired").then_some(SHORT_TIME);
        let job = if ending.ends_with("settled") {
            retryable_enqueue_command(&key)
        } else {
            enqueue_command(&key)
        };
        let policy = JobPolicy { delay, deadline, ..job.policy };
        let (id, call) =
            enqueue_with_webhook(rig, EnqueueCommand { policy, owner: "ada".into(), ..job }).await;
        let claim = |lease| ClaimCommand { lease, ..claim_command(&key, &id, &run) };
        match ending {
            "done" => {
                rig.start_run(&key, &id, &run).await;
                assert!(rig.finish_run(&key, &id, &run).await);
            }
            "dead" => run_to_dead_letter(rig, &key, &id).await,
            "crashed" => {
                assert!(matches!(rig.claim(claim(SHORT_TIME)).await, ClaimOutcome::Claimed(_)));
                rig.advance_past(SHORT_TIME).await;
                let outcome = rig.claim(claim_command(&key, &id, &new_token())).await;
                assert_eq!(outcome, ClaimOutcome::Ended(id.clone()));
            }
            "expired" | "expired in the queue" => {
                rig.advance_past(SHORT_TIME).await;
                rig.poll_due(key.shard(), 10).await;
            }
            "expired when claimed" => {
                rig.advance_past(SHORT_TIME).await;
                assert_eq!(rig.claim(claim(SHORT_TIME)).await, ClaimOutcome::Ended(id.clone()));
            }
            "expired when settled" => {
                assert!(matches!(rig.claim(claim(LONG_TIME)).await, ClaimOutcome::Claimed(_)));
                rig.advance_past(SHORT_TIME).await;
                let retry = Settlement::Retry { delay: SHORT_TIME, reason: "status 503" };
                assert!(rig.settle(settle_command(&key, &id, &run, retry)).await);
            }
            _ => {
                // A repeated cancel enqueues it once.
                for _ in 0..2 {
                    assert_eq!(rig.cancel(&id).await, Some(JobState::Cancelled));
                }
            }
        }
        assert!(rig.job_state(&id).await.is_some_and(|state| !state.is_pending()), "{ending}");
        let webhook_job =
            rig.job_view(&call.id).await.unwrap_or_else(|| panic!("no call: {ending}"));
        assert_eq!(
            (webhook_job.state, webhook_job.position),
            (JobState::Queued, Some(1)),
            "{ending}"
        );
        assert_eq!(webhook_job.owner, "ada", "{ending}");
        assert_eq!(first_job(rig, &call.key).await, Some(call.id.clone()), "{ending}");
        assert_eq!(first_job(rig, &key).await, None, "{ending}");
    }
}

async fn pending_job_enqueues_no_webhook(rig: &StoreHarness) {
    let (key, run) = (test_key(), new_token());
    rig.register_worker().await;
    let job = retryable_enqueue_command(&key);
    let policy = JobPolicy { on_failure: OnFailure::Skip, max_attempts: 9, ..job.policy };
    let (id, call) = enqueue_with_webhook(rig, EnqueueCommand { policy, ..job }).await;
    rig.start_run(&key, &id, &run).await;
    let postpone = Settlement::Postpone { delay: SHORT_TIME, reason: "busy" };
    assert!(rig.settle(settle_command(&key, &id, &run, postpone)).await);
    rig.advance_past(SHORT_TIME).await;
    rig.poll_due(key.shard(), 10).await;
    let run = new_token();
    rig.start_run(&key, &id, &run).await;
    let retry = Settlement::Retry { delay: SHORT_TIME, reason: "status 503" };
    assert!(rig.settle(settle_command(&key, &id, &run, retry)).await);
    assert_eq!(rig.job_view(&call.id).await, None);
    rig.cancel(&id).await;
    assert_eq!(rig.job_state(&call.id).await, Some(JobState::Queued));
}

async fn superseded_job_enqueues_its_webhook(rig: &StoreHarness) {
    let key = test_key();
    let merge = || Some(MergePolicy { group: "0f".into(), mode: MergeMode::Supersede });
    let (_, superseded) =
        enqueue_with_webhook(rig, EnqueueCommand { merge: merge(), ..enqueue_command(&key) }).await;
    let (_, successor) =
        enqueue_with_webhook(rig, EnqueueCommand { merge: merge(), ..enqueue_command(&key) }).await;
    assert_eq!(rig.job_state(&superseded.id).await, Some(JobState::Queued));
    assert_eq!(rig.job_view(&successor.id).await, None);
}

async fn redriven_job_enqueues_webhook_again(rig: &StoreHarness) {
    let key = test_key();
    rig.register_worker().await;
    let (id, call) = enqueue_with_webhook(rig, enqueue_command(&key)).await;
    for _ in 0..3 {
        run_to_dead_letter(rig, &key, &id).await;
        let run = new_token();
        assert_eq!(
            rig.start_run(&call.key, &call.id, &run).await,
            1,
            "another call, from the first"
        );
        assert!(rig.finish_run(&call.key, &call.id, &run).await);
        assert_eq!(rig.job_state(&call.id).await, Some(JobState::Done));
        let redriven = rig.redrive(&id).await;
        assert_eq!(redriven, Some(JobState::Queued));
    }
    rig.cancel(&id).await;
    assert_eq!(rig.job_state(&call.id).await, Some(JobState::Queued));
}

async fn queued_webhook_is_not_enqueued_twice(rig: &StoreHarness) {
    let key = test_key();
    rig.register_worker().await;
    let (id, call) = enqueue_with_webhook(rig, enqueue_command(&key)).await;
    run_to_dead_letter(rig, &key, &id).await;
    let _ = rig.redrive(&id).await;
    run_to_dead_letter(rig, &key, &id).await;
    let run = new_token();
    rig.start_run(&call.key, &call.id, &run).await;
    assert!(rig.finish_run(&call.key, &call.id, &run).await);
    assert_eq!(first_job(rig, &call.key).await, None);
    // Ended webhook jobs no longer count towards the limits.
    let caps = StorageLimits { shard_jobs: 1, shard_bytes: 100, ..StorageLimits::NONE };
    let stored = rig.enqueue(EnqueueCommand { limits: caps, ..enqueue_command(&key) }).await;
    assert_eq!(stored, EnqueueOutcome::Stored { position: 1 });
}

async fn webhook_event_without_time(rig: &StoreHarness, call: &WebhookJobSpec) -> Vec<String> {
    let event = rig
        .job_history(&call.id)
        .await
        .expect("it is there")
        .webhook_event
        .expect("the job has a webhook event");
    let parts = event.splitn(5, ' ').enumerate().filter(|(index, _)| *index != 2);
    parts.map(|(_, part)| part.to_owned()).collect()
}

async fn webhook_job_keeps_latest_end_of_its_job(rig: &StoreHarness) {
    let (key, run) = (test_key(), new_token());
    rig.register_worker().await;
    let (id, call) = enqueue_with_webhook(rig, enqueue_command(&key)).await;
    run_to_dead_letter(rig, &key, &id).await;
    assert_eq!(webhook_event_without_time(rig, &call).await, ["dead", "1", "0", "auth"]);
    // The webhook has not been sent yet, so it reports the last end.
    let _ = rig.redrive(&id).await;
    rig.start_run(&key, &id, &run).await;
    assert!(rig.finish_run(&key, &id, &run).await);
    assert_eq!(webhook_event_without_time(rig, &call).await, ["done", "1", "200", ""]);
    assert!(rig.purge(&id).await);
    rig.start_run(&call.key, &call.id, &new_token()).await;
    assert_eq!(
        webhook_event_without_time(rig, &call).await,
        ["done", "1", "200", ""],
        "while it is made, too"
    );
    let (id, call) = enqueue_with_webhook(rig, enqueue_command(&key)).await;
    rig.cancel(&id).await;
    assert_eq!(webhook_event_without_time(rig, &call).await, ["cancelled", "0", "0", ""]);
}

async fn crashed_webhook_job_runs_again(rig: &StoreHarness) {
    let (key, run) = (test_key(), new_token());
    rig.register_worker().await;
    let (id, call) = enqueue_with_webhook(rig, enqueue_command(&key)).await;
    rig.cancel(&id).await;
    let outcome = rig
        .claim(ClaimCommand { lease: SHORT_TIME, ..claim_command(&call.key, &call.id, &run) })
        .await;
    let ClaimOutcome::Claimed(run) = outcome else { panic!("it is free: {outcome:?}") };
    assert_eq!(&*run.envelope, WEBHOOK_REQUEST);
    // Its worker has crashed, so the webhook job runs again.
    rig.advance_past(SHORT_TIME).await;
    let next = new_token();
    assert_eq!(rig.start_run(&call.key, &call.id, &next).await, 2);
    let retry = Settlement::Retry { delay: SHORT_TIME, reason: "not sent" };
    assert!(rig.settle(settle_command(&call.key, &call.id, &next, retry)).await);
}

async fn webhook_of_purged_job_stays_queued(rig: &StoreHarness) {
    let key = test_key();
    rig.register_worker().await;
    let (id, call) = enqueue_with_webhook(rig, enqueue_command(&key)).await;
    run_to_dead_letter(rig, &key, &id).await;
    assert!(rig.purge(&id).await);
    assert_eq!(
        rig.job_state(&call.id).await,
        Some(JobState::Queued),
        "the webhook job is still queued"
    );
}
