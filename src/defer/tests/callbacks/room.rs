//! Callbacks where there is no room for requests.

use std::sync::Arc;

use tokio::time::sleep;

use super::{
    super::{Function, SECOND, answered, ended, key_of, look, put_off, settled},
    Called, put_off_with_callback,
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
