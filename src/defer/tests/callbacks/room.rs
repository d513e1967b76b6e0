//! Callbacks where there is no room for requests.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use tokio::time::{Instant, sleep};

use super::{
    super::{Function, Routes, SECOND, answered, ended, key_of, look, put_in, put_off, settled},
    Called, DeliveryOutcome, WebhookCall, WebhookSender, called_at, put_off_with_callback,
};
use crate::{
    defer::DeferWorker,
    store::{EnqueueCommand, JobState, Store},
};

/// Runs of `/short` take a second, others 200.
fn one_at_a_time(store: &Store, called: &Called) -> DeferWorker {
    let routes = Function::new(|head, marker| async move {
        let seconds = if head.target == "/short" { 1 } else { 200 };
        marker.pass(&key_of(&head.target));
        sleep(SECOND * seconds).await;
        answered(200)
    });
    let mut worker = DeferWorker::new(store, routes).concurrency(1);
    worker.webhooks = Some(Arc::new(called.clone()));
    worker
}

/// A request whose end is to be told, and one that is there for the only slot before that has come; that one's state then.
async fn told_while_another_waits(worker: DeferWorker, store: &Store, called: &Called) -> JobState {
    let worker = crate::store::spawn(worker.run(std::future::pending()));
    let first = put_off_with_callback(store, "/short").await;
    settled().await;
    assert_eq!(look(store, &first).await.state, JobState::Running);
    let other = put_off(store, "/long").await;
    assert_eq!(ended(store, &first).await, JobState::Done);
    sleep(10 * SECOND).await;
    let calls = called.calls();
    assert_eq!(calls.len(), 1, "{calls:?}");
    assert_eq!(calls[0].1["id"], first.as_str());
    let state = look(store, &other).await.state;
    worker.abort();
    state
}

#[tokio::test(start_paused = true)]
async fn a_request_that_waits_for_leave_keeps_no_call_waiting() {
    let (store, called) = (Store::memory(), Called::default());
    let worker = one_at_a_time(&store, &called).queue_concurrency(1).queue_rate(1, 3600 * SECOND);
    let other = told_while_another_waits(worker, &store, &called).await;
    assert_eq!(other, JobState::Queued, "it has no leave yet");
}

#[tokio::test(start_paused = true)]
async fn a_request_that_runs_for_long_keeps_no_call_waiting() {
    let (store, called) = (Store::memory(), Called::default());
    let worker = one_at_a_time(&store, &called);
    let other = told_while_another_waits(worker, &store, &called).await;
    assert_eq!(other, JobState::Running);
}

const SILENT: &str = "https://silent.example/hook";

/// A host that says nothing, and one that answers; when that was called.
#[derive(Debug, Clone, Default)]
struct OneSilent(Arc<Mutex<Vec<Instant>>>);

impl WebhookSender for OneSilent {
    fn deliver(&self, call: WebhookCall) -> BoxFuture<'static, DeliveryOutcome> {
        if call.url != SILENT {
            self.0.lock().push(Instant::now());
            return Box::pin(std::future::ready(DeliveryOutcome::Answered(204)));
        }
        Box::pin(async {
            sleep(10 * SECOND).await;
            DeliveryOutcome::Failed("no answer in time".to_owned())
        })
    }
}

/// They are four times as many as there is room for, and each is tried again.
#[tokio::test(start_paused = true)]
async fn a_silent_host_keeps_others_waiting_for_one_call_at_most() {
    let (store, told) = (Store::memory(), OneSilent::default());
    let mut worker = DeferWorker::new(&store, Routes::default());
    worker.webhooks = Some(Arc::new(told.clone()));
    let worker = crate::store::spawn(worker.run(std::future::pending()));
    for n in 0..16 {
        put_in(&store, called_at(&store, &format!("/x?{n}"), SILENT)).await;
    }
    sleep(SECOND).await;
    for _ in 0..5 {
        let asked = Instant::now();
        put_off_with_callback(&store, "/y").await;
        sleep(20 * SECOND).await;
        let called = std::mem::take(&mut *told.0.lock());
        let waited = called.first().map(|called| *called - asked);
        assert!(waited.is_some_and(|waited| waited < 11 * SECOND), "{waited:?}");
    }
    worker.abort();
}

/// Silent at all URLs but those of `good.example`, for as long as it is given.
#[derive(Debug, Clone, Default)]
struct Silent(Arc<Mutex<Vec<(String, Instant)>>>);

impl Silent {
    fn calls(&self, of: &str) -> Vec<Instant> {
        let calls = self.0.lock();
        calls.iter().filter(|(url, _)| url.contains(of)).map(|(_, at)| *at).collect()
    }
}

impl WebhookSender for Silent {
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
            DeliveryOutcome::Failed("no answer in time".to_owned())
        })
    }
}

async fn put_for(store: &Store, target: &str, url: &str, owner: &str) {
    let call = called_at(store, target, url);
    put_in(store, EnqueueCommand { owner: owner.to_owned(), ..call }).await;
}

/// Calls of one owner, ten to each host, all at one address that says nothing.
async fn under_attack(hosts: usize) -> (Store, Silent, tokio::task::JoinHandle<()>) {
    let (store, silent) = (Store::memory(), Silent::default());
    let mut worker = DeferWorker::new(&store, Routes::default());
    worker.webhooks = Some(Arc::new(silent.clone()));
    let worker = crate::store::spawn(worker.run(std::future::pending()));
    for n in 0..10 * hosts {
        let url = format!("https://{}.silent.example/", n % hosts);
        put_for(&store, &format!("/attack-{n}"), &url, "attacker").await;
    }
    sleep(5 * SECOND).await;
    (store, silent, worker)
}

/// By when all of these were made.
async fn made(silent: &Silent, of: &str, number: usize) -> Vec<Instant> {
    let until = Instant::now() + 60 * SECOND;
    while silent.calls(of).len() < number {
        assert!(Instant::now() < until, "{} of {number}", silent.calls(of).len());
        settled().await;
    }
    silent.calls(of)
}

#[tokio::test(start_paused = true)]
async fn a_stranger_is_called_while_another_owner_has_hundreds_of_silent_calls() {
    let (store, silent, worker) = under_attack(40).await;
    let asked = Instant::now();
    for n in 0..5 {
        put_for(&store, &format!("/stranger-{n}"), "https://good.example/", "stranger").await;
    }
    let calls = made(&silent, "good.example", 5).await;
    // A turn of an unknown host comes free within the 2.5 s of a first attempt, or the 5 s of a second one.
    let waited = *calls.last().expect("five") - asked;
    assert!(waited <= 6 * SECOND, "{waited:?}");
    // From now on it is known to answer.
    let asked = Instant::now();
    put_for(&store, "/stranger", "https://good.example/", "stranger").await;
    let calls = made(&silent, "good.example", 6).await;
    assert!(*calls.last().expect("six") - asked <= SECOND);
    worker.abort();
}

/// Without owners all are one, and a host that answered has the reserved half.
#[tokio::test(start_paused = true)]
async fn a_host_that_answered_is_called_though_its_owner_has_silent_ones() {
    let (store, silent, worker) = under_attack(40).await;
    for n in 0..5 {
        let asked = Instant::now();
        put_for(&store, &format!("/good-{n}"), "https://good.example/", "attacker").await;
        let calls = made(&silent, "good.example", n + 1).await;
        let waited = *calls.last().expect("it was made") - asked;
        println!("figure: {n}: {waited:?}");
        assert!(n == 0 || waited <= SECOND, "{waited:?}");
    }
    worker.abort();
}

/// Nothing is charged, and nothing lost: each is tried in the end.
#[tokio::test(start_paused = true)]
async fn what_had_no_turn_is_made_in_the_end() {
    let (store, silent, worker) = under_attack(20).await;
    let mut urls = std::collections::HashSet::new();
    while urls.len() < 20 {
        sleep(10 * SECOND).await;
        urls = silent.0.lock().iter().map(|(url, _)| url.clone()).collect();
    }
    // Never more than half at once, and at the address that does not answer a quarter.
    let calls = silent.calls("silent.example");
    let spent = Instant::now() - calls[0];
    assert!(calls.len() <= usize::try_from(spent.as_secs()).expect("a number"), "{}", calls.len());
    assert_eq!(store.deferred_jobs().stats().await.expect("it is there").dead, 0);
    worker.abort();
}
