//! Authorization checks before runs.

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

use super::{
    CountingReplayer, SECOND, SpawnedWorker, enqueue_with_attempts, get_job, let_tasks_settle,
    wait_until_ended,
};
use crate::{
    defer::{ExtensionSnapshot, PendingRun, RunAuthorization, tests::DeferWorker},
    store::{BackendFault, JobId, JobState, Store, faulty_store},
};

#[derive(Clone, Debug, Serialize, Deserialize)]
struct AuthorizedUser(String);

impl ExtensionSnapshot for AuthorizedUser {
    const NAME: &'static str = "user";
}

async fn enqueue_by_user(store: &Store, target: &str, user: &str) -> JobId {
    let user = ("user".to_owned(), format!("\"{user}\"").into_bytes());
    enqueue_with_attempts(store, target, 5, vec![user]).await
}

fn restoring_worker(store: &Store, routes: &CountingReplayer) -> DeferWorker {
    DeferWorker::new(store, routes.clone()).restore_with::<AuthorizedUser, _>(|user| user)
}

/// The check may depend on an unavailable service, or it may panic.
#[tokio::test(start_paused = true)]
async fn undecided_authorization_is_repeated_uncharged() {
    let (store, routes) = (Store::memory(), CountingReplayer::default());
    let check_count = Arc::<AtomicU32>::default();
    let count = Arc::clone(&check_count);
    let check = move |run: PendingRun| {
        assert_eq!((run.head().method.as_str(), run.job().attempt), ("POST", 1));
        let check_count = count.fetch_add(1, Ordering::SeqCst);
        async move {
            tokio::time::sleep(SECOND).await;
            match check_count {
                0 => RunAuthorization::Unknown,
                1 => panic!("as it may"),
                _ => RunAuthorization::Granted,
            }
        }
    };
    let worker = SpawnedWorker::spawn_worker(restoring_worker(&store, &routes).authorize(check));
    let id = enqueue_by_user(&store, "/x", "ann").await;
    assert_eq!(wait_until_ended(&store, &id).await, JobState::Done);
    let job = get_job(&store, &id).await;
    assert_eq!((routes.run_count("/x"), job.attempts), (1, 1), "uncharged: {job:?}");
    assert_eq!(check_count.load(Ordering::SeqCst), 3);
    worker.stop().await;
}

#[tokio::test(start_paused = true)]
async fn worker_stop_ends_a_pending_authorization() {
    let (store, routes) = (Store::memory(), CountingReplayer::default());
    let began = Arc::<Notify>::default();
    let begins = Arc::clone(&began);
    let check = move |_| {
        begins.notify_one();
        std::future::pending()
    };
    let stopped = SpawnedWorker::spawn_worker(restoring_worker(&store, &routes).authorize(check));
    let id = enqueue_by_user(&store, "/x", "ann").await;
    began.notified().await;
    stopped.stop().await;
    let job = get_job(&store, &id).await;
    assert_eq!((job.state, job.attempts), (JobState::Queued, 0), "{job:?}");
    let other = SpawnedWorker::spawn_worker(restoring_worker(&store, &routes));
    assert_eq!(wait_until_ended(&store, &id).await, JobState::Done);
    other.stop().await;
}

/// The check runs under the lock, so another run on that lock must not overlap with it.
#[tokio::test(start_paused = true)]
async fn lock_loss_ends_a_pending_authorization() {
    let ((store, faults), routes) = (faulty_store(), CountingReplayer::default());
    let check_count = Arc::<AtomicU32>::default();
    let count = Arc::clone(&check_count);
    let check = move |_| {
        let first = count.fetch_add(1, Ordering::SeqCst) == 0;
        async move {
            if first {
                std::future::pending::<()>().await;
            }
            RunAuthorization::Granted
        }
    };
    let worker = SpawnedWorker::spawn_worker(restoring_worker(&store, &routes).authorize(check));
    let_tasks_settle().await;
    let id = enqueue_by_user(&store, "/x", "ann").await;
    let_tasks_settle().await;
    faults.set("renew", BackendFault::Unavailable, 1_000);
    tokio::time::sleep(30 * SECOND).await;
    faults.set("renew", BackendFault::Unavailable, 0);
    assert_eq!(wait_until_ended(&store, &id).await, JobState::Done);
    assert_eq!((routes.run_count("/x"), check_count.load(Ordering::SeqCst)), (1, 2));
    worker.stop().await;
}

/// Otherwise the lock would expire during the check, and a job with one attempt would be dead.
#[tokio::test(start_paused = true)]
async fn hanging_authorization_ends_before_its_lock() {
    let (store, routes) = (Store::memory(), CountingReplayer::default());
    let check_count = Arc::<AtomicU32>::default();
    let count = Arc::clone(&check_count);
    let check = move |_| {
        let first = count.fetch_add(1, Ordering::SeqCst) == 0;
        async move {
            if first {
                std::future::pending::<()>().await;
            }
            RunAuthorization::Granted
        }
    };
    let worker = SpawnedWorker::spawn_worker(
        restoring_worker(&store, &routes).max_run_time(5 * SECOND).authorize(check),
    );
    let_tasks_settle().await;
    let user = ("user".to_owned(), b"\"ann\"".to_vec());
    let id = enqueue_with_attempts(&store, "/x", 1, vec![user]).await;
    assert_eq!(wait_until_ended(&store, &id).await, JobState::Done);
    let job = get_job(&store, &id).await;
    assert_eq!((routes.run_count("/x"), job.attempts), (1, 1), "uncharged: {job:?}");
    assert_eq!(check_count.load(Ordering::SeqCst), 2);
    worker.stop().await;
}
