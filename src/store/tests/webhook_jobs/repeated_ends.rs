//! Repeated ends of redriven jobs, while their webhook waits or is sent.

use std::time::Duration;

use bytes::Bytes;

use super::{WEBHOOK_REQUEST, enqueue_with_webhook, run_to_dead_letter};
use crate::{
    Key,
    store::{
        backend::{
            ClaimOutcome, EnqueueCommand, JobId, JobState, Settlement, StorageLimits,
            WebhookJobSpec,
        },
        tests::{
            on_every_store,
            store_harness::{
                LONG_TIME, SHORT_TIME, StoreHarness, claim_command, enqueue_command,
                keys_of_one_shard, new_token, settle_command, test_key,
            },
        },
    },
};

on_every_store!(
    job_end_during_webhook_run_is_delivered_too,
    new_job_end_resets_webhook_attempts,
    forgotten_webhook_job_is_enqueued_again,
);

/// Returns the time of the end in the webhook event, in us.
async fn webhook_event_time(rig: &StoreHarness, call: &WebhookJobSpec) -> u64 {
    let event = rig
        .job_history(&call.id)
        .await
        .expect("it is there")
        .webhook_event
        .expect("the job has a webhook event");
    event.split(' ').nth(2).and_then(|time| time.parse().ok()).expect("a time")
}

async fn redrive_to_dead_letter(rig: &StoreHarness, key: &Key, id: &JobId) {
    let redriven = rig.redrive(id).await;
    assert_eq!(redriven, Some(JobState::Queued));
    // Each end has a time of its own.
    rig.advance_past(SHORT_TIME).await;
    run_to_dead_letter(rig, key, id).await;
}

/// The second end came while the webhook was being sent, so it is reported by another run.
async fn job_end_during_webhook_run_is_delivered_too(rig: &StoreHarness) {
    rig.register_worker().await;
    for status in [Some(204), None] {
        let key = test_key();
        let (id, call) = enqueue_with_webhook(rig, enqueue_command(&key)).await;
        run_to_dead_letter(rig, &key, &id).await;
        let (run, next) = (new_token(), new_token());
        rig.start_run(&call.key, &call.id, &run).await;
        let first = webhook_event_time(rig, &call).await;
        redrive_to_dead_letter(rig, &key, &id).await;
        let second = webhook_event_time(rig, &call).await;
        assert_ne!(first, second);
        let settle_webhook = |ended_us, run| {
            let response = status.map(|status| (Bytes::from_static(b"told"), status));
            let settlement = Settlement::WebhookSettled {
                ended_us,
                response,
                reason: "not sent",
                retention: LONG_TIME,
            };
            settle_command(&call.key, &call.id, run, settlement)
        };
        for _ in 0..2 {
            assert!(rig.settle(settle_webhook(first, &run)).await, "also repeated");
        }
        let requeued = rig.job_view(&call.id).await.unwrap();
        assert_eq!((requeued.state, requeued.attempts), (JobState::Queued, 0));
        assert_eq!(requeued.reason.as_deref(), Some("ended again"));
        rig.advance_past(SHORT_TIME).await;
        assert_eq!(rig.start_run(&call.key, &call.id, &next).await, 1);
        assert!(rig.settle(settle_webhook(second, &next)).await);
        let ended = rig.job_view(&call.id).await.unwrap();
        let (state, reason) = match status {
            Some(_) => (JobState::Done, None),
            None => (JobState::Dead, Some("not sent")),
        };
        assert_eq!((ended.state, ended.reason.as_deref()), (state, reason));
        assert_eq!(ended.response.as_deref(), status.map(|_| &b"told"[..]));
        redrive_to_dead_letter(rig, &key, &id).await;
        assert_eq!(rig.job_state(&call.id).await, Some(JobState::Queued), "another call");
    }
}

async fn new_job_end_resets_webhook_attempts(rig: &StoreHarness) {
    let key = test_key();
    rig.register_worker().await;
    let (id, call) = enqueue_with_webhook(rig, enqueue_command(&key)).await;
    run_to_dead_letter(rig, &key, &id).await;
    for attempt in 1..=2 {
        let run = new_token();
        assert_eq!(rig.start_run(&call.key, &call.id, &run).await, attempt);
        let retry = Settlement::Retry { delay: SHORT_TIME, reason: "not sent" };
        assert!(rig.settle(settle_command(&call.key, &call.id, &run, retry)).await);
        rig.advance_past(SHORT_TIME).await;
    }
    redrive_to_dead_letter(rig, &key, &id).await;
    assert_eq!(rig.start_run(&call.key, &call.id, &new_token()).await, 1);
}

async fn run_to_done(rig: &StoreHarness, key: &Key, id: &JobId, retention: Duration) {
    let run = new_token();
    rig.start_run(key, id, &run).await;
    let settlement = Settlement::Done { response: "x".into(), status: 200, retention };
    assert!(rig.settle(settle_command(key, id, &run, settlement)).await);
}

/// The first webhook job has expired. A stale entry in the index of done jobs may remain; an
/// eviction must not apply it to the new webhook job.
async fn forgotten_webhook_job_is_enqueued_again(rig: &StoreHarness) {
    let [key, other] = keys_of_one_shard::<2>();
    rig.register_worker().await;
    let (id, call) = enqueue_with_webhook(rig, enqueue_command(&key)).await;
    run_to_dead_letter(rig, &key, &id).await;
    // A result with a longer retention keeps the index alive.
    let long_lived = rig.enqueue_job(&other).await;
    run_to_done(rig, &other, &long_lived, LONG_TIME).await;
    run_to_done(rig, &call.key, &call.id, SHORT_TIME).await;
    rig.advance_past(SHORT_TIME).await;
    assert_eq!(rig.job_view(&call.id).await, None, "it is forgotten");
    redrive_to_dead_letter(rig, &key, &id).await;
    assert_eq!(rig.job_state(&call.id).await, Some(JobState::Queued));
    let caps = StorageLimits { ended_bytes: 0, ..StorageLimits::NONE };
    let last = EnqueueCommand { limits: caps, ..enqueue_command(&other) };
    let _ = rig.enqueue(last.clone()).await;
    run_to_done(rig, &other, &last.id, LONG_TIME).await;
    assert_eq!(rig.job_state(&long_lived).await, None, "the oldest job is evicted");
    assert_eq!(rig.job_state(&call.id).await, Some(JobState::Queued));
    let claimed = rig.claim(claim_command(&call.key, &call.id, &new_token())).await;
    let ClaimOutcome::Claimed(run) = claimed else { panic!("it is there: {claimed:?}") };
    assert_eq!(&*run.envelope, WEBHOOK_REQUEST);
}
