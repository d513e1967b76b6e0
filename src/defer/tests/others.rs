//! Jobs that some workers can run and others can't.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::{
    Function, Routes, SECOND, Working, answered, ended, key_of, look, put_in, put_off,
    put_off_with, request, settled, stored_as,
};
use crate::{
    defer::{DeferWorker, ExtensionSnapshot, ReplayOutcome},
    store::{EnqueueCommand, JobId, JobPolicy, JobState, OnFailure, Store},
};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct User(String);

impl ExtensionSnapshot for User {
    const NAME: &'static str = "user";
}

fn ann() -> Vec<(String, Vec<u8>)> {
    vec![("user".to_owned(), b"\"ann\"".to_vec())]
}

/// It is handed back, uncharged, and stays; the reason is told.
async fn waits(store: &Store, id: &JobId, reason: &str) {
    tokio::time::sleep(200 * SECOND).await;
    let job = look(store, id).await;
    assert_eq!((job.state, job.attempts), (JobState::Queued, 0), "{job:?}");
    assert_eq!(job.reason.as_deref(), Some(reason));
}

/// A request of a newer version, on such a route.
async fn put_newer(store: &Store, on_failure: OnFailure) -> JobId {
    let key = key_of("/x");
    let newer = Bytes::from_static(b"\x02from the future");
    let call = stored_as(key.clone(), JobId::new(&key), 1, newer);
    let policy = JobPolicy { on_failure, ..call.policy };
    put_in(store, EnqueueCommand { policy, ..call }).await
}

/// Where the order is to hold, it holds across a deployment too; live requests wait for none of it.
#[tokio::test(start_paused = true)]
async fn what_nobody_can_read_yet_holds_the_line_where_that_is_in_order() {
    let (store, routes) = (Store::memory(), Routes::default());
    let id = put_newer(&store, OnFailure::Block).await;
    let behind = put_off(&store, "/x").await;
    let worker = Working::on(&store, &routes);
    waits(&store, &id, "newer version").await;
    assert_eq!(look(&store, &behind).await.state, JobState::Queued);
    store
        .lock(key_of("/x"))
        .wait(SECOND)
        .acquire()
        .await
        .expect("for a live request it is free")
        .release()
        .await;
    // Who can wait no longer takes it out of the line.
    let cancelled = store.deferred_jobs().cancel(&id).await.expect("it is there");
    assert_eq!(cancelled, Some(JobState::Cancelled));
    assert_eq!(ended(&store, &behind).await, JobState::Done);
    worker.stop().await;
}

#[tokio::test(start_paused = true)]
async fn what_nobody_can_read_yet_is_passed_where_others_may() {
    let (store, routes) = (Store::memory(), Routes::default());
    let id = put_newer(&store, OnFailure::Skip).await;
    let behind = [put_off(&store, "/x").await, put_off(&store, "/x").await];
    let worker = Working::on(&store, &routes);
    for behind in behind {
        assert_eq!(ended(&store, &behind).await, JobState::Done);
    }
    waits(&store, &id, "newer version").await;
    // Nor is it lost, nor tried all the time.
    let tried = look(&store, &id).await.history.recent_runs.len();
    assert!((2..=20).contains(&tried), "{tried}");
    let later = put_off(&store, "/x").await;
    assert_eq!(ended(&store, &later).await, JobState::Done);
    worker.stop().await;
}

/// One that comes and can run it does, at its place; meanwhile what the others can run goes on.
#[tokio::test(start_paused = true)]
async fn what_was_passed_runs_when_a_worker_comes_that_can() {
    let (store, routes) = (Store::memory(), Routes::default());
    let some = Function::new(|head: crate::gate::HttpRequestHead, marker| async move {
        if head.target.ends_with("/new") {
            return answered(404);
        }
        marker.pass(&key_of(&head.target));
        answered(200)
    });
    let old = Working::with(DeferWorker::new(&store, some));
    settled().await;
    let call =
        request(&store, crate::gate::HttpRequestHead::new("POST", "/x/new", Vec::new(), None), b"");
    let policy = JobPolicy { on_failure: OnFailure::Skip, ..call.policy };
    let id = put_in(&store, EnqueueCommand { policy, ..call }).await;
    waits(&store, &id, "unroutable").await;
    let behind = put_off(&store, "/x/old").await;
    assert_eq!(ended(&store, &behind).await, JobState::Done);
    let new = Working::on(&store.as_another_process(), &routes);
    assert_eq!(ended(&store, &id).await, JobState::Done);
    assert_eq!((routes.runs("/x/new"), look(&store, &id).await.attempts), (1, 1));
    old.stop().await;
    new.stop().await;
}

/// Routes that tell whom a run is for.
fn whose() -> Function {
    Function::new(|head, marker| async move {
        marker.pass(&key_of(&head.target));
        let user = marker.restored_snapshots::<User>().next().cloned();
        answered(if user == Some(User("ann".to_owned())) { 200 } else { 418 })
    })
}

#[tokio::test(start_paused = true)]
async fn a_snapshot_waits_for_a_worker_that_restores_it() {
    let store = Store::memory();
    let old = Working::with(DeferWorker::new(&store, whose()));
    settled().await;
    let id = put_off_with(&store, "/x", 1, ann()).await;
    waits(&store, &id, "unknown snapshot").await;
    // The old one lives, and may watch the shard: it tells the other one.
    let other = store.as_another_process();
    let new = DeferWorker::new(&other, whose()).restore_with::<User, _>(|user| user);
    let new = Working::with(new);
    assert_eq!(ended(&store, &id).await, JobState::Done);
    let response = look(&store, &id).await.response.expect("it is kept");
    assert_eq!((response[0], response[9]), (1, 200), "the user was there: {response:?}");
    old.stop().await;
    new.stop().await;
}

/// The one that watches the shard can't run it, and lives: it tells the other one.
#[tokio::test(start_paused = true)]
async fn what_one_worker_cannot_reach_is_for_another() {
    for (reason, status) in [("unreachable", None), ("unroutable", Some(404))] {
        let (store, routes) = (Store::memory(), Routes::default());
        let far = move |_, _| async move { status.map_or(ReplayOutcome::Unreachable, answered) };
        let cut_off = Working::with(DeferWorker::new(&store, Function::new(far)));
        settled().await;
        let id = put_off(&store, "/x").await;
        waits(&store, &id, reason).await;
        let other = Working::on(&store.as_another_process(), &routes);
        // Wherever the shard is: its watcher is the first one, or the other has it.
        assert_eq!(ended(&store, &id).await, JobState::Done);
        assert_eq!(routes.runs("/x"), 1, "{reason}");
        cut_off.stop().await;
        other.stop().await;
    }
}
