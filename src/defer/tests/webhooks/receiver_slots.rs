//! Webhook deliveries while the slots of the worker or of the receiver are occupied.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use tokio::time::{Instant, sleep};

use super::{
    super::{
        CountingReplayer, FnReplayer, SECOND, enqueue_job, get_job, let_tasks_settle, lock_key_of,
        outcome_with_status, send_enqueue, wait_until_ended,
    },
    DeliveryOutcome, RecordingWebhookSender, WebhookCall, WebhookSender, enqueue_with_webhook,
    webhook_command_to,
};
use crate::{
    defer::tests::DeferWorker,
    store::{EnqueueCommand, JobState, Store},
};

/// Worker with one slot. Runs of `/short` take one second, others 200.
fn single_slot_worker(store: &Store, sender: &RecordingWebhookSender) -> DeferWorker {
    let routes = FnReplayer::new(|head, marker| async move {
        let seconds = if head.target == "/short" { 1 } else { 200 };
        marker.pass_own_lock(&lock_key_of(&head.target));
        sleep(SECOND * seconds).await;
        outcome_with_status(200)
    });
    let mut worker = DeferWorker::new(store, routes).concurrency(1);
    worker.settings.webhooks = Some(Arc::new(sender.clone()));
    worker
}

/// Ends a job with a webhook while a second job waits for the only slot. Returns the state of the
/// second job when the webhook was delivered.
async fn state_of_other_job_after_delivery(
    worker: DeferWorker,
    store: &Store,
    sender: &RecordingWebhookSender,
) -> JobState {
    let worker = crate::store::spawn(worker.run(std::future::pending()));
    let first = enqueue_with_webhook(store, "/short").await;
    let_tasks_settle().await;
    assert_eq!(get_job(store, &first).await.state, JobState::Running);
    let other = enqueue_job(store, "/long").await;
    assert_eq!(wait_until_ended(store, &first).await, JobState::Done);
    sleep(10 * SECOND).await;
    let calls = sender.calls();
    assert_eq!(calls.len(), 1, "{calls:?}");
    assert_eq!(calls[0].1["id"], first.as_str());
    let state = get_job(store, &other).await.state;
    worker.abort();
    state
}

#[tokio::test(start_paused = true)]
async fn job_without_a_queue_permit_does_not_delay_delivery() {
    let (store, sender) = (Store::memory(), RecordingWebhookSender::default());
    let worker =
        single_slot_worker(&store, &sender).queue_concurrency(1).queue_rate(1, 3600 * SECOND);
    let other = state_of_other_job_after_delivery(worker, &store, &sender).await;
    assert_eq!(other, JobState::Queued, "it has no leave yet");
}

#[tokio::test(start_paused = true)]
async fn long_run_does_not_delay_delivery() {
    let (store, sender) = (Store::memory(), RecordingWebhookSender::default());
    let worker = single_slot_worker(&store, &sender);
    let other = state_of_other_job_after_delivery(worker, &store, &sender).await;
    assert_eq!(other, JobState::Running);
}

const SILENT_URL: &str = "https://silent.example/hook";

/// Sender with one silent host; records the times of calls to other hosts.
#[derive(Debug, Clone, Default)]
struct SilentHostSender(Arc<Mutex<Vec<Instant>>>);

impl WebhookSender for SilentHostSender {
    fn deliver(&self, call: WebhookCall) -> BoxFuture<'static, DeliveryOutcome> {
        if call.url != SILENT_URL {
            self.0.lock().push(Instant::now());
            return Box::pin(std::future::ready(DeliveryOutcome::Answered(204)));
        }
        Box::pin(async {
            sleep(10 * SECOND).await;
            DeliveryOutcome::Failed("no response in time".to_owned())
        })
    }
}

/// There are four times as many silent calls as slots, and each is retried.
#[tokio::test(start_paused = true)]
async fn silent_host_delays_others_by_one_call_at_most() {
    let (store, sender) = (Store::memory(), SilentHostSender::default());
    let mut worker = DeferWorker::new(&store, CountingReplayer::default());
    worker.settings.webhooks = Some(Arc::new(sender.clone()));
    let worker = crate::store::spawn(worker.run(std::future::pending()));
    for n in 0..16 {
        send_enqueue(&store, webhook_command_to(&store, &format!("/x?{n}"), SILENT_URL)).await;
    }
    sleep(SECOND).await;
    for _ in 0..5 {
        let enqueued_at = Instant::now();
        enqueue_with_webhook(&store, "/y").await;
        sleep(20 * SECOND).await;
        let calls = std::mem::take(&mut *sender.0.lock());
        let waited = calls.first().map(|call| *call - enqueued_at);
        assert!(waited.is_some_and(|waited| waited < 11 * SECOND), "{waited:?}");
    }
    worker.abort();
}

/// Sender whose calls time out, except those to `good.example`.
#[derive(Debug, Clone, Default)]
struct MostlySilentSender(Arc<Mutex<Vec<(String, Instant)>>>);

impl MostlySilentSender {
    fn calls_to(&self, url_part: &str) -> Vec<Instant> {
        let calls = self.0.lock();
        calls.iter().filter(|(url, _)| url.contains(url_part)).map(|(_, at)| *at).collect()
    }
}

impl WebhookSender for MostlySilentSender {
    fn deliver(&self, call: WebhookCall) -> BoxFuture<'static, DeliveryOutcome> {
        let is_good = call.url.contains("good.example");
        let address = if is_good { "9.9.9.9:443" } else { "1.2.3.4:443" };
        if !call.receiver_slot.try_claim_addresses(&[address.parse().expect("an address")]) {
            return Box::pin(std::future::ready(DeliveryOutcome::NoReceiverSlot));
        }
        self.0.lock().push((call.url, Instant::now()));
        let longest = call
            .receiver_slot
            .attempt_timeout(call.attempt)
            .unwrap_or(10 * SECOND)
            .min(10 * SECOND);
        Box::pin(async move {
            if is_good {
                return DeliveryOutcome::Answered(204);
            }
            sleep(longest).await;
            DeliveryOutcome::Failed("no response in time".to_owned())
        })
    }
}

async fn enqueue_for_owner(store: &Store, target: &str, url: &str, owner: &str) {
    let call = webhook_command_to(store, target, url);
    send_enqueue(store, EnqueueCommand { owner: owner.to_owned(), ..call }).await;
}

/// Spawns deliveries of one owner, ten to each host, all at one silent address.
async fn spawn_silent_deliveries(
    hosts: usize,
) -> (Store, MostlySilentSender, tokio::task::JoinHandle<()>) {
    let (store, silent) = (Store::memory(), MostlySilentSender::default());
    let mut worker = DeferWorker::new(&store, CountingReplayer::default());
    worker.settings.webhooks = Some(Arc::new(silent.clone()));
    let worker = crate::store::spawn(worker.run(std::future::pending()));
    for n in 0..10 * hosts {
        let url = format!("https://{}.silent.example/", n % hosts);
        enqueue_for_owner(&store, &format!("/attack-{n}"), &url, "attacker").await;
    }
    sleep(5 * SECOND).await;
    (store, silent, worker)
}

/// Waits until `number` calls were made and returns their times.
async fn wait_for_calls(
    silent: &MostlySilentSender,
    url_part: &str,
    number: usize,
) -> Vec<Instant> {
    let until = Instant::now() + 60 * SECOND;
    while silent.calls_to(url_part).len() < number {
        assert!(Instant::now() < until, "{} of {number}", silent.calls_to(url_part).len());
        let_tasks_settle().await;
    }
    silent.calls_to(url_part)
}

#[tokio::test(start_paused = true)]
async fn other_owner_is_called_despite_many_silent_deliveries() {
    let (store, silent, worker) = spawn_silent_deliveries(40).await;
    let enqueued_at = Instant::now();
    for n in 0..5 {
        enqueue_for_owner(&store, &format!("/stranger-{n}"), "https://good.example/", "stranger")
            .await;
    }
    let calls = wait_for_calls(&silent, "good.example", 5).await;
    // A slot for unproven hosts is freed within the 2.5 s of a first attempt or the 5 s of a second
    // one.
    let waited = *calls.last().expect("five") - enqueued_at;
    assert!(waited <= 6 * SECOND, "{waited:?}");
    // From now on the host is proven.
    let enqueued_at = Instant::now();
    enqueue_for_owner(&store, "/stranger", "https://good.example/", "stranger").await;
    let calls = wait_for_calls(&silent, "good.example", 6).await;
    assert!(*calls.last().expect("six") - enqueued_at <= SECOND);
    worker.abort();
}

/// All deliveries have the same owner, so only the half reserved for proven hosts is free.
#[tokio::test(start_paused = true)]
async fn proven_host_is_called_despite_silent_deliveries() {
    let (store, silent, worker) = spawn_silent_deliveries(40).await;
    for n in 0..5 {
        let enqueued_at = Instant::now();
        enqueue_for_owner(&store, &format!("/good-{n}"), "https://good.example/", "attacker").await;
        let calls = wait_for_calls(&silent, "good.example", n + 1).await;
        let waited = *calls.last().expect("it was made") - enqueued_at;
        println!("figure: {n}: {waited:?}");
        assert!(n == 0 || waited <= SECOND, "{waited:?}");
    }
    worker.abort();
}

/// A delivery without a slot is not charged, and each one is attempted in the end.
#[tokio::test(start_paused = true)]
async fn delivery_without_a_slot_is_tried_eventually() {
    let (store, silent, worker) = spawn_silent_deliveries(20).await;
    let mut urls = std::collections::HashSet::new();
    while urls.len() < 20 {
        sleep(10 * SECOND).await;
        urls = silent.0.lock().iter().map(|(url, _)| url.clone()).collect();
    }
    // At most half of the slots at once, and a quarter for the silent address.
    let calls = silent.calls_to("silent.example");
    let spent = Instant::now() - calls[0];
    assert!(calls.len() <= usize::try_from(spent.as_secs()).expect("a number"), "{}", calls.len());
    assert_eq!(store.deferred_jobs().stats().await.expect("it is there").dead, 0);
    worker.abort();
}
