//! Webhook jobs: creation, retries, and outcomes.

mod receiver_slots;
mod redriven_jobs;
#[cfg(feature = "webhook")]
mod silent_receivers;

use std::{collections::VecDeque, sync::Arc};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::task::JoinHandle;

use super::{
    CountingReplayer, FnReplayer, SECOND, enqueue_command, enqueue_with_attempts, let_tasks_settle,
    lock_key_of, outcome_with_status, send_enqueue, wait_until_ended,
};
use crate::{
    defer::{
        JobCursor, StatusResource,
        tests::DeferWorker,
        webhook::{DeliveryOutcome, WebhookCall, WebhookSender, new_webhook_job},
    },
    gate::{HttpRequestHead, fake_request::FakeGateRequest},
    store::{
        BackendFault, EnqueueCommand, JobId, JobPolicy, JobState, MergeMode, MergePolicy, Store,
        faulty_store,
    },
};

const URL: &str = "https://example.com/hook";

/// Sender that returns scripted outcomes and records its calls.
#[derive(Debug, Clone, Default)]
struct RecordingWebhookSender(Arc<Mutex<SenderState>>);

/// Remaining scripted outcomes, and recorded calls.
type SenderState = (VecDeque<DeliveryOutcome>, Vec<(String, Value)>);

impl RecordingWebhookSender {
    fn with_answers(answers: impl IntoIterator<Item = DeliveryOutcome>) -> Self {
        let sender = Self::default();
        sender.0.lock().0.extend(answers);
        sender
    }

    fn calls(&self) -> Vec<(String, Value)> {
        self.0.lock().1.clone()
    }
}

impl WebhookSender for RecordingWebhookSender {
    fn deliver(&self, call: WebhookCall) -> BoxFuture<'static, DeliveryOutcome> {
        assert_eq!(call.url, URL);
        let body = serde_json::from_slice(&call.body).expect("JSON");
        let (answers, calls) = &mut *self.0.lock();
        calls.push((call.id, body));
        let answer = answers.pop_front().unwrap_or(DeliveryOutcome::Answered(204));
        Box::pin(std::future::ready(answer))
    }
}

async fn enqueue_with_webhook(store: &Store, target: &str) -> JobId {
    send_enqueue(store, webhook_command(store, target)).await
}

fn webhook_command(store: &Store, target: &str) -> EnqueueCommand {
    webhook_command_to(store, target, URL)
}

fn webhook_command_to(store: &Store, target: &str, url: &str) -> EnqueueCommand {
    let job =
        enqueue_command(store, HttpRequestHead::new("POST", target, Vec::new(), None), b"body");
    EnqueueCommand { webhook: Some(new_webhook_job(store, &job.id, url.to_owned())), ..job }
}

fn spawn_webhook_worker(store: &Store, sender: Option<&RecordingWebhookSender>) -> JoinHandle<()> {
    let mut worker = DeferWorker::new(store, CountingReplayer::default());
    worker.settings.webhooks = sender.map(|sender| Arc::new(sender.clone()) as _);
    crate::store::spawn(worker.run(std::future::pending()))
}

#[tokio::test(start_paused = true)]
async fn ended_job_is_delivered_exactly_once() {
    let store = Store::memory();
    let sender = RecordingWebhookSender::default();
    let worker = spawn_webhook_worker(&store, Some(&sender));
    let done = enqueue_with_webhook(&store, "/x").await;
    assert_eq!(wait_until_ended(&store, &done).await, JobState::Done);
    let dead = enqueue_with_webhook(&store, "/x/panic").await;
    assert_eq!(wait_until_ended(&store, &dead).await, JobState::Dead);
    tokio::time::sleep(60 * SECOND).await;
    let calls = sender.calls();
    assert_eq!(calls.len(), 2, "{calls:?}");
    for (id, state, status, reason) in [
        (&done, "done", Value::from(200), Value::Null),
        // A panic outside of the handler also ends the job chain.
        (&dead, "dead", Value::Null, "crashed, may have run".into()),
    ] {
        let (_, document) =
            calls.iter().find(|(_, document)| document["id"] == id.as_str()).expect("a call");
        assert_eq!(
            (&document["state"], &document["status"]),
            (&state.into(), &status),
            "{document}"
        );
        assert_eq!(
            (&document["reason"], &document["attempts"]),
            (&reason, &1.into()),
            "{document}"
        );
        assert!(document["ended"].is_string(), "{document}");
    }
    assert_ne!(calls[0].0, calls[1].0, "each call has an id of its own");
    worker.abort();
}

#[tokio::test(start_paused = true)]
async fn cancelled_expired_and_superseded_jobs_are_delivered() {
    let store = Store::memory();
    let cancelled = enqueue_with_webhook(&store, "/cancelled").await;
    assert_eq!(
        store.deferred_jobs().cancel(&cancelled).await.ok().flatten(),
        Some(JobState::Cancelled)
    );
    let delayed = webhook_command(&store, "/expired");
    let policy = JobPolicy { deadline: Some(SECOND), ..delayed.policy };
    let expired = send_enqueue(&store, EnqueueCommand { policy, ..delayed }).await;
    let mut superseded = Vec::new();
    for _ in 0..2 {
        let merge = Some(MergePolicy { group: "0f".into(), mode: MergeMode::Supersede });
        let call = EnqueueCommand { merge, ..webhook_command(&store, "/superseded") };
        superseded.push(send_enqueue(&store, call).await);
    }
    tokio::time::sleep(2 * SECOND).await;
    let sender = RecordingWebhookSender::default();
    let worker = spawn_webhook_worker(&store, Some(&sender));
    tokio::time::sleep(60 * SECOND).await;
    let calls = sender.calls();
    assert_eq!(calls.len(), 4, "{calls:?}");
    for (id, state, reason) in [
        (&cancelled, "cancelled", Value::Null),
        (&expired, "expired", "deadline".into()),
        (&superseded[0], "cancelled", "superseded".into()),
        (&superseded[1], "done", Value::Null),
    ] {
        let (_, document) =
            calls.iter().find(|(_, document)| document["id"] == id.as_str()).expect("a call");
        assert_eq!(
            (&document["state"], &document["reason"]),
            (&state.into(), &reason),
            "{document}"
        );
    }
    worker.abort();
}

/// Sender that never completes a call.
#[derive(Debug)]
struct HangingWebhookSender;

impl WebhookSender for HangingWebhookSender {
    fn deliver(&self, _: WebhookCall) -> BoxFuture<'static, DeliveryOutcome> {
        Box::pin(std::future::pending())
    }
}

/// A receiver chosen by one client must not delay the jobs of others.
#[tokio::test(start_paused = true)]
async fn pending_delivery_does_not_delay_jobs() {
    let store = Store::memory();
    let mut worker =
        DeferWorker::new(&store, CountingReplayer::default()).concurrency(1).queue_concurrency(1);
    worker.settings.webhooks = Some(Arc::new(HangingWebhookSender));
    let worker = crate::store::spawn(worker.run(std::future::pending()));
    for n in 0..20 {
        let id = enqueue_with_webhook(&store, &format!("/x?{n}")).await;
        assert_eq!(wait_until_ended(&store, &id).await, JobState::Done);
    }
    worker.abort();
}

/// Retries become due without a wake-up and are found behind waiting deliveries.
#[tokio::test(start_paused = true)]
async fn waiting_deliveries_do_not_hide_due_retries() {
    let store = Store::memory();
    let attempts = Arc::new(Mutex::new(0));
    let counter = Arc::clone(&attempts);
    let routes = FnReplayer::new(move |head, marker| {
        marker.pass_own_lock(&lock_key_of(&head.target));
        let fails = head.target.ends_with("/fails") && {
            let mut attempts = counter.lock();
            *attempts += 1;
            *attempts < 3
        };
        std::future::ready(outcome_with_status(if fails { 503 } else { 200 }))
    });
    let mut worker = DeferWorker::new(&store, routes);
    worker.settings.webhooks = Some(Arc::new(HangingWebhookSender));
    let worker = crate::store::spawn(worker.run(std::future::pending()));
    for n in 0..250 {
        let id = enqueue_with_webhook(&store, &format!("/x?{n}")).await;
        assert_eq!(wait_until_ended(&store, &id).await, JobState::Done);
    }
    let id = enqueue_with_attempts(&store, "/x/fails", 5, Vec::new()).await;
    let end = tokio::time::timeout(60 * SECOND, wait_until_ended(&store, &id)).await;
    assert_eq!(end.expect("the end is published"), JobState::Done);
    assert_eq!(*attempts.lock(), 3);
    worker.abort();
}

/// Sender that delays each call by five seconds.
#[derive(Debug)]
struct SlowWebhookSender(RecordingWebhookSender);

impl WebhookSender for SlowWebhookSender {
    fn deliver(&self, call: WebhookCall) -> BoxFuture<'static, DeliveryOutcome> {
        let delivered = self.0.deliver(call);
        Box::pin(async {
            tokio::time::sleep(5 * SECOND).await;
            delivered.await
        })
    }
}

/// Deliveries without a free slot wait and are made one after the other, each once.
#[tokio::test(start_paused = true)]
async fn queued_deliveries_are_each_made_once() {
    let (store, sender) = (Store::memory(), RecordingWebhookSender::default());
    let mut worker = DeferWorker::new(&store, CountingReplayer::default()).concurrency(1);
    worker.settings.webhooks = Some(Arc::new(SlowWebhookSender(sender.clone())));
    let worker = crate::store::spawn(worker.run(std::future::pending()));
    for n in 0..20 {
        enqueue_with_webhook(&store, &format!("/x?{n}")).await;
    }
    // Five seconds each.
    tokio::time::sleep(105 * SECOND).await;
    let ids: std::collections::HashSet<_> = sender.calls().into_iter().map(|(id, _)| id).collect();
    assert_eq!((ids.len(), sender.calls().len()), (20, 20));
    worker.abort();
}

#[tokio::test(start_paused = true)]
async fn failed_delivery_is_retried_under_its_id() {
    let store = Store::memory();
    let failed = DeliveryOutcome::Failed("refused".to_owned());
    let sender = RecordingWebhookSender::with_answers([
        failed.clone(),
        DeliveryOutcome::Answered(302),
        failed,
    ]);
    let worker = spawn_webhook_worker(&store, Some(&sender));
    let id = enqueue_with_webhook(&store, "/x").await;
    assert_eq!(wait_until_ended(&store, &id).await, JobState::Done);
    tokio::time::sleep(600 * SECOND).await;
    let calls = sender.calls();
    assert_eq!(calls.len(), 4, "{calls:?}");
    assert!(calls.iter().all(|call| *call == calls[0]), "{calls:?}");
    // A webhook job has no status resource.
    let gate = StatusResource::new().store(&store);
    let (call, _) = calls[0].0.split_once('-').expect("the job, and which end of it");
    let request =
        gate.parse_request(&mut FakeGateRequest::new("GET"), call, false).expect("well formed");
    assert_eq!(super::status_resource::complete_reply(request.execute().await).status, 404);
    worker.abort();
}

#[tokio::test(start_paused = true)]
async fn delivery_to_a_refused_address_is_a_dead_letter() {
    let store = Store::memory();
    let sender = RecordingWebhookSender::with_answers([DeliveryOutcome::AddressRefused(
        "the host has a non-public address",
    )]);
    let worker = spawn_webhook_worker(&store, Some(&sender));
    let id = enqueue_with_webhook(&store, "/x").await;
    assert_eq!(wait_until_ended(&store, &id).await, JobState::Done);
    tokio::time::sleep(600 * SECOND).await;
    assert_eq!(sender.calls().len(), 1);
    let page = store.deferred_jobs().dead(JobCursor::default(), 10).await.expect("it is there");
    let [dead] = &page.jobs[..] else { panic!("one: {page:?}") };
    assert_eq!(dead.reason.as_deref(), Some("refused address"));
    worker.abort();
}

#[tokio::test(start_paused = true)]
async fn delivery_waits_for_a_worker_with_webhooks() {
    let store = Store::memory();
    let without = spawn_webhook_worker(&store, None);
    let id = enqueue_with_webhook(&store, "/x").await;
    assert_eq!(wait_until_ended(&store, &id).await, JobState::Done);
    let_tasks_settle().await;
    without.abort();
    let sender = RecordingWebhookSender::default();
    let with = spawn_webhook_worker(&store, Some(&sender));
    tokio::time::sleep(120 * SECOND).await;
    assert_eq!(sender.calls().len(), 1);
    assert_eq!(sender.calls()[0].1["id"], id.as_str());
    with.abort();
}

#[tokio::test(start_paused = true)]
async fn job_of_a_killed_worker_is_delivered() {
    let store = Store::memory();
    let sender = RecordingWebhookSender::default();
    let id = enqueue_with_webhook(&store, "/x/stuck").await;
    let mut worker = DeferWorker::new(&store, HangingReplayer);
    worker.settings.webhooks = None;
    let dying = crate::store::spawn(worker.run(std::future::pending()));
    while super::get_job(&store, &id).await.state != JobState::Running {
        let_tasks_settle().await;
    }
    dying.abort();
    let worker = spawn_webhook_worker(&store, Some(&sender));
    assert_eq!(wait_until_ended(&store, &id).await, JobState::Dead);
    tokio::time::sleep(60 * SECOND).await;
    let calls = sender.calls();
    assert_eq!(calls.len(), 1, "{calls:?}");
    assert_eq!((&calls[0].1["id"], &calls[0].1["state"]), (&id.as_str().into(), &"dead".into()));
    worker.abort();
}

/// Replayer that never answers.
struct HangingReplayer;

impl crate::defer::Replayer for HangingReplayer {
    fn replay(
        &self,
        _: HttpRequestHead,
        _: Bytes,
        _: crate::gate::ReplayMarker,
        _: usize,
    ) -> BoxFuture<'static, crate::defer::ReplayOutcome> {
        Box::pin(std::future::pending())
    }
}

/// Spawns a worker whose runs fail at once with 500.
fn spawn_failing_worker(store: &Store, deliver: impl WebhookSender + 'static) -> JoinHandle<()> {
    let routes = FnReplayer::new(|head, marker| {
        marker.pass_own_lock(&lock_key_of(&head.target));
        std::future::ready(outcome_with_status(500))
    });
    let mut worker = DeferWorker::new(store, routes);
    worker.settings.webhooks = Some(Arc::new(deliver));
    crate::store::spawn(worker.run(std::future::pending()))
}

/// Webhook job of the first call.
fn first_delivery_job(sender: &RecordingWebhookSender) -> JobId {
    let calls = sender.calls();
    let (call, _) = calls[0].0.split_once('-').expect("the job, and which end of it");
    JobId::parse(call).expect("an id")
}

#[tokio::test(start_paused = true)]
async fn delivery_waits_for_an_unavailable_store() {
    let (store, faults) = faulty_store();
    let sender = RecordingWebhookSender::default();
    faults.set("job", BackendFault::Unavailable, 1);
    let worker = spawn_failing_worker(&store, sender.clone());
    enqueue_with_webhook(&store, "/x").await;
    tokio::time::sleep(60 * SECOND).await;
    let calls = sender.calls();
    assert_eq!((calls.len(), faults.remaining("job")), (1, 0), "{calls:?}");
    let call = super::get_job(&store, &first_delivery_job(&sender)).await;
    assert_eq!((call.state, call.attempts), (JobState::Done, 1), "the delivery needed one attempt");
    worker.abort();
}

/// A delivery may be retried for longer than its job is retained.
#[tokio::test(start_paused = true)]
async fn delivery_outlives_an_expired_or_purged_job() {
    for purged in [false, true] {
        let store = Store::memory();
        let sender = RecordingWebhookSender::with_answers(std::iter::repeat_n(
            DeliveryOutcome::Answered(503),
            6,
        ));
        let retention = if purged { 600 * SECOND } else { 60 * SECOND };
        let mut worker =
            DeferWorker::new(&store, CountingReplayer::default()).done_retention(retention);
        worker.settings.webhooks = Some(Arc::new(sender.clone()));
        let worker = crate::store::spawn(worker.run(std::future::pending()));
        let id = enqueue_with_webhook(&store, "/x").await;
        assert_eq!(wait_until_ended(&store, &id).await, JobState::Done);
        if purged {
            assert!(store.deferred_jobs().purge(&id).await.expect("it is there"));
        }
        tokio::time::sleep(300 * SECOND).await;
        assert!(store.deferred_jobs().peek(&id).await.expect("it is there").is_none());
        let calls = sender.calls();
        assert_eq!(calls.len(), 7, "{calls:?}");
        assert!(calls.iter().all(|call| *call == calls[0]), "{calls:?}");
        let (_, document) = &calls[0];
        assert_eq!((&document["id"], &document["state"]), (&id.as_str().into(), &"done".into()));
        assert_eq!((&document["status"], &document["attempts"]), (&200.into(), &1.into()));
        worker.abort();
    }
}
