//! Callbacks where there is no room for requests.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use tokio::time::{Instant, sleep};

use super::{
    super::{Function, Routes, SECOND, answered, ended, key_of, look, put_in, put_off, settled},
    Called, Deliver, Delivered, called_at, put_off_with_callback,
};
use crate::{
    defer::DeferWorker,
    store::{JobState, Store},
};

/// Runs of `/short` take a second, others 200.
fn one_at_a_time(store: &Store, called: &Called) -> DeferWorker {
    let routes = Function::new(|head, marker| async move {
        let seconds = if head.target == "/short" { 1 } else { 200 };
        marker.pass(&key_of(&head.target));
        sleep(SECOND * seconds).await;
        answered(200)
    });
    let mut worker = DeferWorker::on(store, routes).concurrency(1);
    worker.callbacks = Some(Arc::new(called.clone()));
    worker
}

/// A request whose end is to be told, and one that is there for the only slot before that has come; that one's state then.
async fn told_while_another_waits(worker: DeferWorker, store: &Store, called: &Called) -> JobState {
    let worker = tokio::spawn(worker.run(std::future::pending()));
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

impl Deliver for OneSilent {
    fn deliver(&self, url: &str, _: &str, _: Bytes) -> BoxFuture<'static, Delivered> {
        if url != SILENT {
            self.0.lock().push(Instant::now());
            return Box::pin(std::future::ready(Delivered::Answered(204)));
        }
        Box::pin(async {
            sleep(10 * SECOND).await;
            Delivered::Failed("no answer in time".to_owned())
        })
    }
}

/// They are four times as many as there is room for, and each is tried again.
#[tokio::test(start_paused = true)]
async fn a_silent_host_keeps_others_waiting_for_one_call_at_most() {
    let (store, told) = (Store::memory(), OneSilent::default());
    let mut worker = DeferWorker::on(&store, Routes::default());
    worker.callbacks = Some(Arc::new(told.clone()));
    let worker = tokio::spawn(worker.run(std::future::pending()));
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
