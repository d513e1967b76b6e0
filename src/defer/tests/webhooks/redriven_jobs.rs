//! Webhooks of redriven jobs: each end is delivered.

use futures_util::future::BoxFuture;

use super::{
    super::{SECOND, get_job, let_tasks_settle, wait_until_ended},
    RecordingWebhookSender, enqueue_with_webhook, first_delivery_job, spawn_failing_worker,
    spawn_webhook_worker,
};
use crate::{
    defer::webhook::{DeliveryOutcome, WebhookCall, WebhookSender},
    store::{BackendFault, FaultSchedule, JobId, JobState, Store, faulty_store},
};

#[tokio::test(start_paused = true)]
async fn redriven_job_is_delivered_again_under_a_new_id() {
    let store = Store::memory();
    let sender = RecordingWebhookSender::default();
    let worker = spawn_webhook_worker(&store, Some(&sender));
    let id = enqueue_with_webhook(&store, "/x/panic").await;
    for time in 1..=2 {
        assert_eq!(wait_until_ended(&store, &id).await, JobState::Dead);
        tokio::time::sleep(60 * SECOND).await;
        assert_eq!(sender.calls().len(), time);
        let _ = store.deferred_jobs().redrive(&id).await.expect("the store is there");
    }
    let calls = sender.calls();
    assert_ne!(calls[0].0, calls[1].0, "each end has its own event id");
    assert_eq!(calls[1].1["id"], id.as_str());
    worker.abort();
}

async fn redrive_job(store: &Store, id: &JobId) {
    let state = store.deferred_jobs().redrive(id).await.expect("the store is there");
    assert_eq!(state, Some(JobState::Queued));
}

/// The second end finds the webhook job running and leaves its delivery to that job.
#[tokio::test(start_paused = true)]
async fn end_during_settlement_of_a_delivery_is_delivered() {
    /// Sender whose first delivery is settled late.
    #[derive(Debug, Clone)]
    struct LateSettleSender(RecordingWebhookSender, FaultSchedule);

    impl WebhookSender for LateSettleSender {
        fn deliver(&self, call: WebhookCall) -> BoxFuture<'static, DeliveryOutcome> {
            if self.0.calls().is_empty() {
                self.1.set("settle", BackendFault::SlowCall(SECOND), 1);
            }
            self.0.deliver(call)
        }
    }

    for answer in [DeliveryOutcome::Answered(204), DeliveryOutcome::Answered(410)] {
        let (store, faults) = faulty_store();
        let sender = RecordingWebhookSender::with_answers([answer]);
        let worker = spawn_failing_worker(&store, LateSettleSender(sender.clone(), faults.clone()));
        let id = enqueue_with_webhook(&store, "/x").await;
        while sender.calls().is_empty() {
            let_tasks_settle().await;
        }
        redrive_job(&store, &id).await;
        assert_eq!(wait_until_ended(&store, &id).await, JobState::Dead);
        let call = first_delivery_job(&sender);
        assert_eq!(get_job(&store, &call).await.state, JobState::Running, "still");
        tokio::time::sleep(60 * SECOND).await;
        let calls = sender.calls();
        assert_eq!((calls.len(), faults.remaining("settle")), (2, 0), "{calls:?}");
        assert_ne!(calls[0].0, calls[1].0, "each end has its own event id");
        assert_eq!((&calls[0].1["state"], &calls[1].1["state"]), (&"dead".into(), &"dead".into()));
        assert_eq!(get_job(&store, &call).await.state, JobState::Done);
        worker.abort();
    }
}

/// The redriven job waits behind its lock meanwhile.
#[tokio::test(start_paused = true)]
async fn end_is_delivered_after_its_job_was_redriven() {
    let store = Store::memory();
    let sender =
        RecordingWebhookSender::with_answers([DeliveryOutcome::Failed("refused".to_owned())]);
    let worker = spawn_failing_worker(&store, sender.clone());
    let id = enqueue_with_webhook(&store, "/x").await;
    assert_eq!(wait_until_ended(&store, &id).await, JobState::Dead);
    let held = store.lock("x").max_hold(600 * SECOND).acquire().await.expect("it is free");
    redrive_job(&store, &id).await;
    tokio::time::sleep(60 * SECOND).await;
    let calls = sender.calls();
    assert_eq!(calls.len(), 2, "{calls:?}");
    assert_eq!(calls[0], calls[1]);
    assert_eq!(get_job(&store, &first_delivery_job(&sender)).await.state, JobState::Done);
    held.release().await;
    assert_eq!(wait_until_ended(&store, &id).await, JobState::Dead);
    tokio::time::sleep(60 * SECOND).await;
    let calls = sender.calls();
    assert_eq!(calls.len(), 3, "{calls:?}");
    assert_ne!(calls[1].0, calls[2].0);
    worker.abort();
}
