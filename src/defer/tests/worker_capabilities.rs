//! Jobs that only some workers can run.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::{
    CountingReplayer, FnReplayer, SECOND, SpawnedWorker, enqueue_command, enqueue_job,
    enqueue_with_attempts, envelope_command, get_job, let_tasks_settle, lock_key_of,
    outcome_with_status, send_enqueue, wait_until_ended,
};
use crate::{
    defer::{ExtensionSnapshot, ReplayOutcome, tests::DeferWorker},
    store::{EnqueueCommand, JobId, JobPolicy, JobState, OnFailure, Store},
};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct RestoredUser(String);

impl ExtensionSnapshot for RestoredUser {
    const NAME: &'static str = "user";
}

fn ann_snapshot() -> Vec<(String, Vec<u8>)> {
    vec![("user".to_owned(), b"\"ann\"".to_vec())]
}

/// Asserts that the job is returned uncharged, stays queued, and has this reason.
async fn assert_postponed(store: &Store, id: &JobId, reason: &str) {
    tokio::time::sleep(200 * SECOND).await;
    let job = get_job(store, id).await;
    assert_eq!((job.state, job.attempts), (JobState::Queued, 0), "{job:?}");
    assert_eq!(job.reason.as_deref(), Some(reason));
}

/// Enqueues a job with an envelope of a newer version.
async fn enqueue_newer_version(store: &Store, on_failure: OnFailure) -> JobId {
    let key = lock_key_of("/x");
    let newer = Bytes::from_static(b"\x03from the future");
    let call = envelope_command(key.clone(), JobId::new(&key), 1, newer);
    let policy = JobPolicy { on_failure, ..call.policy };
    send_enqueue(store, EnqueueCommand { policy, ..call }).await
}

/// A strict order also holds during a deployment. Live requests do not wait for the blocked job.
#[tokio::test(start_paused = true)]
async fn newer_version_job_blocks_its_ordered_queue() {
    let (store, routes) = (Store::memory(), CountingReplayer::default());
    let id = enqueue_newer_version(&store, OnFailure::Block).await;
    let behind = enqueue_job(&store, "/x").await;
    let worker = SpawnedWorker::spawn_on(&store, &routes);
    assert_postponed(&store, &id, "newer version").await;
    assert_eq!(get_job(&store, &behind).await.state, JobState::Queued);
    store
        .lock(lock_key_of("/x"))
        .wait(SECOND)
        .acquire()
        .await
        .expect("for a live request it is free")
        .release()
        .await;
    // Cancelling the job unblocks its queue.
    let cancelled = store.deferred_jobs().cancel(&id).await.expect("it is there");
    assert_eq!(cancelled, Some(JobState::Cancelled));
    assert_eq!(wait_until_ended(&store, &behind).await, JobState::Done);
    worker.stop().await;
}

#[tokio::test(start_paused = true)]
async fn newer_version_job_is_skipped_where_allowed() {
    let (store, routes) = (Store::memory(), CountingReplayer::default());
    let id = enqueue_newer_version(&store, OnFailure::Skip).await;
    let behind = [enqueue_job(&store, "/x").await, enqueue_job(&store, "/x").await];
    let worker = SpawnedWorker::spawn_on(&store, &routes);
    for behind in behind {
        assert_eq!(wait_until_ended(&store, &behind).await, JobState::Done);
    }
    assert_postponed(&store, &id, "newer version").await;
    // The job is neither lost nor retried all the time.
    let tried = get_job(&store, &id).await.history.recent_runs.len();
    assert!((2..=20).contains(&tried), "{tried}");
    let later = enqueue_job(&store, "/x").await;
    assert_eq!(wait_until_ended(&store, &later).await, JobState::Done);
    worker.stop().await;
}

/// A capable worker runs the job in its order. Until then the lock's other jobs run.
#[tokio::test(start_paused = true)]
async fn skipped_job_runs_when_a_capable_worker_starts() {
    let (store, routes) = (Store::memory(), CountingReplayer::default());
    let some = FnReplayer::new(|head: crate::gate::HttpRequestHead, marker| async move {
        if head.target.ends_with("/new") {
            return outcome_with_status(404);
        }
        marker.pass_own_lock(&lock_key_of(&head.target));
        outcome_with_status(200)
    });
    let old = SpawnedWorker::spawn_worker(DeferWorker::new(&store, some));
    let_tasks_settle().await;
    let call = enqueue_command(
        &store,
        crate::gate::HttpRequestHead::new("POST", "/x/new", Vec::new(), None),
        b"",
    );
    let policy = JobPolicy { on_failure: OnFailure::Skip, ..call.policy };
    let id = send_enqueue(&store, EnqueueCommand { policy, ..call }).await;
    assert_postponed(&store, &id, "unroutable").await;
    let behind = enqueue_job(&store, "/x/old").await;
    assert_eq!(wait_until_ended(&store, &behind).await, JobState::Done);
    let new = SpawnedWorker::spawn_on(&store.as_another_process(), &routes);
    assert_eq!(wait_until_ended(&store, &id).await, JobState::Done);
    assert_eq!((routes.run_count("/x/new"), get_job(&store, &id).await.attempts), (1, 1));
    old.stop().await;
    new.stop().await;
}

/// Replayer that checks the restored user of a run.
fn user_checking_replayer() -> FnReplayer {
    FnReplayer::new(|head, marker| async move {
        marker.pass_own_lock(&lock_key_of(&head.target));
        let user = marker.restored_snapshots::<RestoredUser>().next().cloned();
        outcome_with_status(if user == Some(RestoredUser("ann".to_owned())) { 200 } else { 418 })
    })
}

#[tokio::test(start_paused = true)]
async fn snapshot_waits_for_a_restoring_worker() {
    let store = Store::memory();
    let old = SpawnedWorker::spawn_worker(DeferWorker::new(&store, user_checking_replayer()));
    let_tasks_settle().await;
    let id = enqueue_with_attempts(&store, "/x", 1, ann_snapshot()).await;
    assert_postponed(&store, &id, "unknown snapshot").await;
    // The old worker is alive and may watch the shard; then it forwards the job.
    let other = store.as_another_process();
    let new = DeferWorker::new(&other, user_checking_replayer())
        .restore_with::<RestoredUser, _>(|user| user);
    let new = SpawnedWorker::spawn_worker(new);
    assert_eq!(wait_until_ended(&store, &id).await, JobState::Done);
    let response = get_job(&store, &id).await.response.expect("the response is stored");
    assert_eq!((response[0], response[9]), (1, 200), "the user was there: {response:?}");
    old.stop().await;
    new.stop().await;
}

/// The worker that watches the shard cannot run the job and forwards it.
#[tokio::test(start_paused = true)]
async fn job_unreachable_for_one_worker_runs_on_another() {
    for (reason, status) in [("unreachable", None), ("unroutable", Some(404))] {
        let (store, routes) = (Store::memory(), CountingReplayer::default());
        let failing = move |_, _| async move {
            status.map_or(ReplayOutcome::Unreachable, outcome_with_status)
        };
        let cut_off =
            SpawnedWorker::spawn_worker(DeferWorker::new(&store, FnReplayer::new(failing)));
        let_tasks_settle().await;
        let id = enqueue_job(&store, "/x").await;
        assert_postponed(&store, &id, reason).await;
        let other = SpawnedWorker::spawn_on(&store.as_another_process(), &routes);
        // Either worker may watch the shard.
        assert_eq!(wait_until_ended(&store, &id).await, JobState::Done);
        assert_eq!(routes.run_count("/x"), 1, "{reason}");
        cut_off.stop().await;
        other.stop().await;
    }
}
