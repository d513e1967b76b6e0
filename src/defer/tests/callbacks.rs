//! Callbacks as jobs: when they are made, how often, and what becomes of them.

#[cfg(feature = "webhook")]
mod attack;
mod back;
mod room;

use std::{collections::VecDeque, sync::Arc};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::task::JoinHandle;

use super::{
    Function, Routes, SECOND, answered, ended, key_of, put_in, put_off_with, request, settled,
};
use crate::{
    defer::{
        DeferWorker, JobCursor, StatusGate,
        webhook::{DeliveryOutcome, WebhookCall, WebhookSender, new_webhook_job},
    },
    gate::{HttpRequestHead, fake::FakeView},
    store::{
        EnqueueCommand, Fault, JobId, JobPolicy, JobState, MergeMode, MergePolicy, Store, faulty,
    },
};

const URL: &str = "https://example.com/hook";

/// Answers as it is told to, and writes down what it was told.
#[derive(Debug, Clone, Default)]
struct Called(Arc<Mutex<Books>>);

/// What is still to be answered, and what was told.
type Books = (VecDeque<DeliveryOutcome>, Vec<(String, Value)>);

impl Called {
    fn answers(answers: impl IntoIterator<Item = DeliveryOutcome>) -> Self {
        let called = Self::default();
        called.0.lock().0.extend(answers);
        called
    }

    fn calls(&self) -> Vec<(String, Value)> {
        self.0.lock().1.clone()
    }
}

impl WebhookSender for Called {
    fn deliver(&self, call: WebhookCall) -> BoxFuture<'static, DeliveryOutcome> {
        assert_eq!(call.url, URL);
        let body = serde_json::from_slice(&call.body).expect("JSON");
        let (answers, calls) = &mut *self.0.lock();
        calls.push((call.id, body));
        let answer = answers.pop_front().unwrap_or(DeliveryOutcome::Answered(204));
        Box::pin(std::future::ready(answer))
    }
}

async fn put_off_with_callback(store: &Store, target: &str) -> JobId {
    put_in(store, called(store, target)).await
}

fn called(store: &Store, target: &str) -> EnqueueCommand {
    called_at(store, target, URL)
}

fn called_at(store: &Store, target: &str, url: &str) -> EnqueueCommand {
    let job = request(store, HttpRequestHead::new("POST", target, Vec::new(), None), b"body");
    EnqueueCommand { webhook: Some(new_webhook_job(store, &job.id, url.to_owned())), ..job }
}

fn work(store: &Store, called: Option<&Called>) -> JoinHandle<()> {
    let mut worker = DeferWorker::new(store, Routes::default());
    worker.webhooks = called.map(|called| Arc::new(called.clone()) as _);
    crate::store::spawn(worker.run(std::future::pending()))
}

#[tokio::test(start_paused = true)]
async fn who_wants_to_is_told_how_it_ended_once() {
    let store = Store::memory();
    let called = Called::default();
    let worker = work(&store, Some(&called));
    let done = put_off_with_callback(&store, "/x").await;
    assert_eq!(ended(&store, &done).await, JobState::Done);
    let dead = put_off_with_callback(&store, "/x/panic").await;
    assert_eq!(ended(&store, &dead).await, JobState::Dead);
    tokio::time::sleep(60 * SECOND).await;
    let calls = called.calls();
    assert_eq!(calls.len(), 2, "{calls:?}");
    for (id, state, status, reason) in [
        (&done, "done", Value::from(200), Value::Null),
        // A panic outside of the handler takes the visit with it.
        (&dead, "dead", Value::Null, "crashed, may have run".into()),
    ] {
        let (_, told) = calls.iter().find(|(_, told)| told["id"] == id.as_str()).expect("a call");
        assert_eq!((&told["state"], &told["status"]), (&state.into(), &status), "{told}");
        assert_eq!((&told["reason"], &told["attempts"]), (&reason, &1.into()), "{told}");
        assert!(told["ended"].is_string(), "{told}");
    }
    assert_ne!(calls[0].0, calls[1].0, "each call has an id of its own");
    worker.abort();
}

#[tokio::test(start_paused = true)]
async fn every_other_end_is_told_too() {
    let store = Store::memory();
    let cancelled = put_off_with_callback(&store, "/cancelled").await;
    assert_eq!(
        store.deferred_jobs().cancel(&cancelled).await.ok().flatten(),
        Some(JobState::Cancelled)
    );
    let late = called(&store, "/expired");
    let policy = JobPolicy { deadline: Some(SECOND), ..late.policy };
    let expired = put_in(&store, EnqueueCommand { policy, ..late }).await;
    let mut superseded = Vec::new();
    for _ in 0..2 {
        let merge = Some(MergePolicy { group: "0f".into(), mode: MergeMode::Supersede });
        let call = EnqueueCommand { merge, ..called(&store, "/superseded") };
        superseded.push(put_in(&store, call).await);
    }
    tokio::time::sleep(2 * SECOND).await;
    let told = Called::default();
    let worker = work(&store, Some(&told));
    tokio::time::sleep(60 * SECOND).await;
    let calls = told.calls();
    assert_eq!(calls.len(), 4, "{calls:?}");
    for (id, state, reason) in [
        (&cancelled, "cancelled", Value::Null),
        (&expired, "expired", "deadline".into()),
        (&superseded[0], "cancelled", "superseded".into()),
        (&superseded[1], "done", Value::Null),
    ] {
        let (_, told) = calls.iter().find(|(_, told)| told["id"] == id.as_str()).expect("a call");
        assert_eq!((&told["state"], &told["reason"]), (&state.into(), &reason), "{told}");
    }
    worker.abort();
}

/// Takes the call and says nothing.
#[derive(Debug)]
struct Mute;

impl WebhookSender for Mute {
    fn deliver(&self, _: WebhookCall) -> BoxFuture<'static, DeliveryOutcome> {
        Box::pin(std::future::pending())
    }
}

/// Whom a client wants to be told is nobody whom others have to wait for.
#[tokio::test(start_paused = true)]
async fn a_call_that_takes_its_time_keeps_no_request_waiting() {
    let store = Store::memory();
    let mut worker =
        DeferWorker::new(&store, Routes::default()).concurrency(1).queue_concurrency(1);
    worker.webhooks = Some(Arc::new(Mute));
    let worker = crate::store::spawn(worker.run(std::future::pending()));
    for n in 0..20 {
        let id = put_off_with_callback(&store, &format!("/x?{n}")).await;
        assert_eq!(ended(&store, &id).await, JobState::Done);
    }
    worker.abort();
}

/// What is due by time alone is found behind them.
#[tokio::test(start_paused = true)]
async fn calls_that_wait_hide_no_retry() {
    let store = Store::memory();
    let tried = Arc::new(Mutex::new(0));
    let often = Arc::clone(&tried);
    let routes = Function::new(move |head, marker| {
        marker.pass(&key_of(&head.target));
        let fails = head.target.ends_with("/fails") && {
            let mut tried = often.lock();
            *tried += 1;
            *tried < 3
        };
        std::future::ready(answered(if fails { 503 } else { 200 }))
    });
    let mut worker = DeferWorker::new(&store, routes);
    worker.webhooks = Some(Arc::new(Mute));
    let worker = crate::store::spawn(worker.run(std::future::pending()));
    for n in 0..250 {
        let id = put_off_with_callback(&store, &format!("/x?{n}")).await;
        assert_eq!(ended(&store, &id).await, JobState::Done);
    }
    let id = put_off_with(&store, "/x/fails", 5, Vec::new()).await;
    let end = tokio::time::timeout(60 * SECOND, ended(&store, &id)).await;
    assert_eq!(end.expect("it is seen"), JobState::Done);
    assert_eq!(*tried.lock(), 3);
    worker.abort();
}

/// Takes the call, and its time.
#[derive(Debug)]
struct Slow(Called);

impl WebhookSender for Slow {
    fn deliver(&self, call: WebhookCall) -> BoxFuture<'static, DeliveryOutcome> {
        let delivered = self.0.deliver(call);
        Box::pin(async {
            tokio::time::sleep(5 * SECOND).await;
            delivered.await
        })
    }
}

/// Those for which there is no room are made as soon as there is, one after the other, and none is tried before.
#[tokio::test(start_paused = true)]
async fn calls_that_wait_for_each_other_are_all_made() {
    let (store, told) = (Store::memory(), Called::default());
    let mut worker = DeferWorker::new(&store, Routes::default()).concurrency(1);
    worker.webhooks = Some(Arc::new(Slow(told.clone())));
    let worker = crate::store::spawn(worker.run(std::future::pending()));
    for n in 0..20 {
        put_off_with_callback(&store, &format!("/x?{n}")).await;
    }
    // Five seconds each.
    tokio::time::sleep(105 * SECOND).await;
    let ids: std::collections::HashSet<_> = told.calls().into_iter().map(|(id, _)| id).collect();
    assert_eq!((ids.len(), told.calls().len()), (20, 20));
    worker.abort();
}

#[tokio::test(start_paused = true)]
async fn a_call_that_fails_is_made_again_under_its_id() {
    let store = Store::memory();
    let failed = DeliveryOutcome::Failed("refused".to_owned());
    let called = Called::answers([failed.clone(), DeliveryOutcome::Answered(302), failed]);
    let worker = work(&store, Some(&called));
    let id = put_off_with_callback(&store, "/x").await;
    assert_eq!(ended(&store, &id).await, JobState::Done);
    tokio::time::sleep(600 * SECOND).await;
    let calls = called.calls();
    assert_eq!(calls.len(), 4, "{calls:?}");
    assert!(calls.iter().all(|call| *call == calls[0]), "{calls:?}");
    // The call itself is no request of anybody.
    let gate = StatusGate::new().store(&store);
    let (call, _) = calls[0].0.split_once('-').expect("the job, and which end of it");
    let asked = gate.parse_request(&mut FakeView::new("GET"), call, false).expect("well formed");
    assert_eq!(super::status::whole(asked.execute().await).status, 404);
    worker.abort();
}

#[tokio::test(start_paused = true)]
async fn a_call_that_must_not_be_made_is_a_dead_letter() {
    let store = Store::memory();
    let called =
        Called::answers([DeliveryOutcome::AddressRefused("an address that is not public")]);
    let worker = work(&store, Some(&called));
    let id = put_off_with_callback(&store, "/x").await;
    assert_eq!(ended(&store, &id).await, JobState::Done);
    tokio::time::sleep(600 * SECOND).await;
    assert_eq!(called.calls().len(), 1);
    let page = store.deferred_jobs().dead(JobCursor::default(), 10).await.expect("it is there");
    let [dead] = &page.jobs[..] else { panic!("one: {page:?}") };
    assert_eq!(dead.reason.as_deref(), Some("refused address"));
    worker.abort();
}

#[tokio::test(start_paused = true)]
async fn it_waits_for_a_worker_that_can() {
    let store = Store::memory();
    let without = work(&store, None);
    let id = put_off_with_callback(&store, "/x").await;
    assert_eq!(ended(&store, &id).await, JobState::Done);
    settled().await;
    without.abort();
    let called = Called::default();
    let with = work(&store, Some(&called));
    tokio::time::sleep(120 * SECOND).await;
    assert_eq!(called.calls().len(), 1);
    assert_eq!(called.calls()[0].1["id"], id.as_str());
    with.abort();
}

#[tokio::test(start_paused = true)]
async fn of_a_run_whose_worker_died_it_is_told_too() {
    let store = Store::memory();
    let called = Called::default();
    let id = put_off_with_callback(&store, "/x/stuck").await;
    let mut worker = DeferWorker::new(&store, Stuck);
    worker.webhooks = None;
    let dying = crate::store::spawn(worker.run(std::future::pending()));
    while super::look(&store, &id).await.state != JobState::Running {
        settled().await;
    }
    dying.abort();
    let worker = work(&store, Some(&called));
    assert_eq!(ended(&store, &id).await, JobState::Dead);
    tokio::time::sleep(60 * SECOND).await;
    let calls = called.calls();
    assert_eq!(calls.len(), 1, "{calls:?}");
    assert_eq!((&calls[0].1["id"], &calls[0].1["state"]), (&id.as_str().into(), &"dead".into()));
    worker.abort();
}

/// Routes that never answer.
struct Stuck;

impl crate::defer::Replayer for Stuck {
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

/// A worker whose requests fail at once.
fn failing(store: &Store, deliver: impl WebhookSender + 'static) -> JoinHandle<()> {
    let routes = Function::new(|head, marker| {
        marker.pass(&key_of(&head.target));
        std::future::ready(answered(500))
    });
    let mut worker = DeferWorker::new(store, routes);
    worker.webhooks = Some(Arc::new(deliver));
    crate::store::spawn(worker.run(std::future::pending()))
}

/// The job that the first call was.
fn id_of_call(called: &Called) -> JobId {
    let calls = called.calls();
    let (call, _) = calls[0].0.split_once('-').expect("the job, and which end of it");
    JobId::parse(call).expect("an id")
}

#[tokio::test(start_paused = true)]
async fn a_call_waits_for_a_store_that_is_away() {
    let (store, faults) = faulty();
    let called = Called::default();
    faults.set("job", Fault::Away, 1);
    let worker = failing(&store, called.clone());
    put_off_with_callback(&store, "/x").await;
    tokio::time::sleep(60 * SECOND).await;
    let calls = called.calls();
    assert_eq!((calls.len(), faults.left("job")), (1, 0), "{calls:?}");
    let call = super::look(&store, &id_of_call(&called)).await;
    assert_eq!((call.state, call.attempts), (JobState::Done, 1), "nobody was called in vain");
    worker.abort();
}

/// What was not heard for longer than its job is kept.
#[tokio::test(start_paused = true)]
async fn what_has_been_forgotten_is_told_all_the_same() {
    for purged in [false, true] {
        let store = Store::memory();
        let called = Called::answers(std::iter::repeat_n(DeliveryOutcome::Answered(503), 6));
        let kept = if purged { 600 * SECOND } else { 60 * SECOND };
        let mut worker = DeferWorker::new(&store, Routes::default()).done_retention(kept);
        worker.webhooks = Some(Arc::new(called.clone()));
        let worker = crate::store::spawn(worker.run(std::future::pending()));
        let id = put_off_with_callback(&store, "/x").await;
        assert_eq!(ended(&store, &id).await, JobState::Done);
        if purged {
            assert!(store.deferred_jobs().purge(&id).await.expect("it is there"));
        }
        tokio::time::sleep(300 * SECOND).await;
        assert!(store.deferred_jobs().peek(&id).await.expect("it is there").is_none());
        let calls = called.calls();
        assert_eq!(calls.len(), 7, "{calls:?}");
        assert!(calls.iter().all(|call| *call == calls[0]), "{calls:?}");
        let (_, told) = &calls[0];
        assert_eq!((&told["id"], &told["state"]), (&id.as_str().into(), &"done".into()));
        assert_eq!((&told["status"], &told["attempts"]), (&200.into(), &1.into()));
        worker.abort();
    }
}
