//! Order of deferred jobs and live waiters on one lock.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;

use tokio::task::JoinHandle;

use super::{
    FnReplayer, SECOND, SpawnedWorker, enqueue_job, let_tasks_settle, lock_key_of,
    outcome_with_status, wait_until_ended,
};
use crate::{
    defer::tests::DeferWorker,
    lock::LockRequest,
    store::{BackendFault, JobState, Store, faulty_store},
};

const MS: Duration = Duration::from_millis(1);

/// Names of the lock's holders in the order of their grants.
type LockOrderLog = Arc<Mutex<Vec<&'static str>>>;

/// Spawns a worker in another process that logs its runs.
async fn spawn_logging_worker(store: &Store, log: &LockOrderLog) -> SpawnedWorker {
    let runs = Arc::clone(log);
    let routes = FnReplayer::new(move |head, marker| {
        marker.pass_own_lock(&lock_key_of(&head.target));
        runs.lock().push("job");
        async { outcome_with_status(200) }
    });
    let worker = SpawnedWorker::spawn_worker(DeferWorker::new(&store.as_another_process(), routes));
    let_tasks_settle().await;
    worker
}

/// Spawns a waiter; it is queued when this returns.
async fn spawn_waiter(
    request: LockRequest,
    name: &'static str,
    log: &LockOrderLog,
) -> JoinHandle<()> {
    let log = Arc::clone(log);
    let task = crate::store::spawn(async move {
        let _guard = request.wait(60 * SECOND).acquire().await.expect("served in time");
        log.lock().push(name);
        tokio::time::sleep(MS / 10).await;
    });
    tokio::time::sleep(MS).await;
    task
}

fn long_handover_request(store: &Store) -> LockRequest {
    store.lock("x").handover_limits(16, 60 * SECOND)
}

/// A handover may overtake waiters of other processes, but never an older job.
#[tokio::test(start_paused = true)]
async fn waiters_behind_a_job_get_the_lock_after_it() {
    let (store, log) = (Store::memory(), LockOrderLog::default());
    let worker = spawn_logging_worker(&store, &log).await;
    let held = long_handover_request(&store).acquire().await.expect("it is free");
    let mut tasks = vec![spawn_waiter(long_handover_request(&store), "before", &log).await];
    let id = enqueue_job(&store, "/x").await;
    tokio::time::sleep(MS).await;
    for name in ["after", "at the end"] {
        tasks.push(spawn_waiter(long_handover_request(&store), name, &log).await);
    }
    held.release().await;
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(*log.lock(), ["before", "job", "after", "at the end"]);
    assert_eq!(wait_until_ended(&store, &id).await, JobState::Done);
    worker.stop().await;
}

/// The join message of the job may arrive before the reply of the grant.
#[tokio::test(start_paused = true)]
async fn job_enqueued_before_the_grant_reply_is_not_overtaken() {
    // Without a wait, the process has no local queue yet.
    for wait in [SECOND, Duration::ZERO] {
        let ((store, faults), log) = (faulty_store(), LockOrderLog::default());
        let worker = spawn_logging_worker(&store, &log).await;
        // A waiter on another lock subscribes the process to join messages.
        let held = store.lock("z").acquire().await.unwrap();
        store.lock("z").wait(MS).acquire().await.unwrap_err();
        drop(held);
        faults.set("acquire", BackendFault::SlowReply(5 * MS), 1);
        let first = if wait.is_zero() {
            long_handover_request(&store)
        } else {
            long_handover_request(&store).wait(wait)
        };
        let first = crate::store::spawn(first.acquire());
        tokio::time::sleep(MS / 2).await;
        let mut expected = vec!["job", "after"];
        let mut tasks = Vec::new();
        if !wait.is_zero() {
            tasks.push(spawn_waiter(long_handover_request(&store), "before", &log).await);
            expected.insert(0, "before");
        }
        enqueue_job(&store, "/x").await;
        let first = first.await.unwrap().unwrap();
        tasks.push(spawn_waiter(long_handover_request(&store), "after", &log).await);
        drop(first);
        for task in tasks {
            task.await.unwrap();
        }
        assert_eq!(*log.lock(), expected);
        worker.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn job_enqueued_during_a_handover_is_not_overtaken() {
    let ((store, faults), log) = (faulty_store(), LockOrderLog::default());
    let worker = spawn_logging_worker(&store, &log).await;
    let request = || store.lock("x").handover_limits(1, 60 * SECOND);
    // Disables the handover prefetch.
    faults.set("still", BackendFault::Unavailable, usize::MAX);
    let first = request().acquire().await.unwrap();
    let mut tasks = Vec::new();
    for name in ["first", "second"] {
        tasks.push(spawn_waiter(request(), name, &log).await);
    }
    faults.set("pass", BackendFault::SlowReply(5 * MS), 1);
    // The first waiter gets the lock without a call. The second needs a call and is granted the
    // lock before the job joins.
    drop(first);
    while faults.remaining("pass") > 0 {
        tokio::time::sleep(MS / 10).await;
    }
    assert_eq!(*log.lock(), ["first"]);
    enqueue_job(&store, "/x").await;
    // Longer than the uncertainty of the server time, which is half of the call's duration.
    tokio::time::sleep(4 * MS).await;
    tasks.push(spawn_waiter(request(), "third", &log).await);
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(*log.lock(), ["first", "second", "job", "third"]);
    worker.stop().await;
}
