//! Jobs that are put back and end again, while their call waits or is made.

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

/// When that was, in us.
async fn webhook_event_time(rig: &StoreHarness, call: &WebhookJobSpec) -> u64 {
    let end = rig
        .job_history(&call.id)
        .await
        .expect("it is there")
        .webhook_event
        .expect("it tells of an end");
    end.split(' ').nth(2).and_then(|at| at.parse().ok()).expect("a time")
}

async fn redrive_to_dead_letter(rig: &StoreHarness, key: &Key, id: &JobId) {
    let redriven = rig.redrive(id).await;
    assert_eq!(redriven, Some(JobState::Queued));
    // Each end has a moment of its own.
    rig.advance_past(SHORT_TIME).await;
    run_to_dead_letter(rig, key, id).await;
}

/// Whoever brought that end found the call running, and left it to how this ends.
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
        let told = |ended_us, run| {
            let response = status.map(|status| (Bytes::from_static(b"told"), status));
            let verdict = Settlement::WebhookSettled {
                ended_us,
                response,
                reason: "not sent",
                retention: LONG_TIME,
            };
            settle_command(&call.key, &call.id, run, verdict)
        };
        for _ in 0..2 {
            assert!(rig.settle(told(first, &run)).await, "also repeated");
        }
        let back = rig.job_view(&call.id).await.unwrap();
        assert_eq!((back.state, back.attempts), (JobState::Queued, 0));
        assert_eq!(back.reason.as_deref(), Some("ended again"));
        rig.advance_past(SHORT_TIME).await;
        assert_eq!(rig.start_run(&call.key, &call.id, &next).await, 1);
        assert!(rig.settle(told(second, &next)).await);
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
    let verdict = Settlement::Done { response: "x".into(), status: 200, retention };
    assert!(rig.settle(settle_command(key, id, &run, verdict)).await);
}

/// Its time has taken what was kept of the first one, and may have left its entry among those that are done: whoever
/// makes room there must not find it.
async fn forgotten_webhook_job_is_enqueued_again(rig: &StoreHarness) {
    let [key, other] = keys_of_one_shard::<2>();
    rig.register_worker().await;
    let (id, call) = enqueue_with_webhook(rig, enqueue_command(&key)).await;
    run_to_dead_letter(rig, &key, &id).await;
    // What is kept for longer keeps the entries.
    let stays = rig.enqueue_job(&other).await;
    run_to_done(rig, &other, &stays, LONG_TIME).await;
    run_to_done(rig, &call.key, &call.id, SHORT_TIME).await;
    rig.advance_past(SHORT_TIME).await;
    assert_eq!(rig.job_view(&call.id).await, None, "it is forgotten");
    redrive_to_dead_letter(rig, &key, &id).await;
    assert_eq!(rig.job_state(&call.id).await, Some(JobState::Queued));
    let caps = StorageLimits { ended_bytes: 0, ..StorageLimits::NONE };
    let last = EnqueueCommand { limits: caps, ..enqueue_command(&other) };
    let _ = rig.enqueue(last.clone()).await;
    run_to_done(rig, &other, &last.id, LONG_TIME).await;
    assert_eq!(rig.job_state(&stays).await, None, "room was made");
    assert_eq!(rig.job_state(&call.id).await, Some(JobState::Queued));
    let claimed = rig.claim(claim_command(&call.key, &call.id, &new_token())).await;
    let ClaimOutcome::Claimed(run) = claimed else { panic!("it is there: {claimed:?}") };
    assert_eq!(&*run.envelope, WEBHOOK_REQUEST);
}
