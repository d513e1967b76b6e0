//! Checks at the start of runs.

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

use super::{Routes, SECOND, Working, ended, look, put_off_with, settled};
use crate::{
    defer::{DeferWorker, ExtensionSnapshot, PendingRun, RunAuthorization},
    store::{Fault, JobId, JobState, Store, faulty},
};

#[derive(Clone, Debug, Serialize, Deserialize)]
struct User(String);

impl ExtensionSnapshot for User {
    const NAME: &'static str = "user";
}

async fn put_off_by(store: &Store, target: &str, user: &str) -> JobId {
    let user = ("user".to_owned(), format!("\"{user}\"").into_bytes());
    put_off_with(store, target, 5, vec![user]).await
}

fn worker(store: &Store, routes: &Routes) -> DeferWorker {
    DeferWorker::new(store, routes.clone()).restore_with::<User, _>(|user| user)
}

/// The check may ask somewhere, and what it asks may be away, or it may break.
#[tokio::test(start_paused = true)]
async fn a_check_without_a_result_is_made_again() {
    let (store, routes) = (Store::memory(), Routes::default());
    let asked = Arc::<AtomicU32>::default();
    let count = Arc::clone(&asked);
    let check = move |run: PendingRun| {
        assert_eq!((run.head().method.as_str(), run.job().attempt), ("POST", 1));
        let asked = count.fetch_add(1, Ordering::SeqCst);
        async move {
            tokio::time::sleep(SECOND).await;
            match asked {
                0 => RunAuthorization::Unknown,
                1 => panic!("as it may"),
                _ => RunAuthorization::Granted,
            }
        }
    };
    let worker = Working::with(worker(&store, &routes).authorize(check));
    let id = put_off_by(&store, "/x", "ann").await;
    assert_eq!(ended(&store, &id).await, JobState::Done);
    let job = look(&store, &id).await;
    assert_eq!((routes.runs("/x"), job.attempts), (1, 1), "uncharged: {job:?}");
    assert_eq!(asked.load(Ordering::SeqCst), 3);
    worker.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_check_ends_with_its_worker() {
    let (store, routes) = (Store::memory(), Routes::default());
    let began = Arc::<Notify>::default();
    let begins = Arc::clone(&began);
    let check = move |_| {
        begins.notify_one();
        std::future::pending()
    };
    let stopped = Working::with(worker(&store, &routes).authorize(check));
    let id = put_off_by(&store, "/x", "ann").await;
    began.notified().await;
    stopped.stop().await;
    let job = look(&store, &id).await;
    assert_eq!((job.state, job.attempts), (JobState::Queued, 0), "{job:?}");
    let other = Working::with(worker(&store, &routes));
    assert_eq!(ended(&store, &id).await, JobState::Done);
    other.stop().await;
}

/// As a run does: no other one on its lock may meet it.
#[tokio::test(start_paused = true)]
async fn a_check_ends_with_its_lock() {
    let ((store, faults), routes) = (faulty(), Routes::default());
    let asked = Arc::<AtomicU32>::default();
    let count = Arc::clone(&asked);
    let check = move |_| {
        let first = count.fetch_add(1, Ordering::SeqCst) == 0;
        async move {
            if first {
                std::future::pending::<()>().await;
            }
            RunAuthorization::Granted
        }
    };
    let worker = Working::with(worker(&store, &routes).authorize(check));
    settled().await;
    let id = put_off_by(&store, "/x", "ann").await;
    settled().await;
    faults.set("renew", Fault::Away, 1_000);
    tokio::time::sleep(30 * SECOND).await;
    faults.set("renew", Fault::Away, 0);
    assert_eq!(ended(&store, &id).await, JobState::Done);
    assert_eq!((routes.runs("/x"), asked.load(Ordering::SeqCst)), (1, 2));
    worker.stop().await;
}

/// The lock would end under it, and a request that may have run would be dead: this one must not run twice.
#[tokio::test(start_paused = true)]
async fn a_check_that_hangs_ends_before_its_lock() {
    let (store, routes) = (Store::memory(), Routes::default());
    let asked = Arc::<AtomicU32>::default();
    let count = Arc::clone(&asked);
    let check = move |_| {
        let first = count.fetch_add(1, Ordering::SeqCst) == 0;
        async move {
            if first {
                std::future::pending::<()>().await;
            }
            RunAuthorization::Granted
        }
    };
    let worker = Working::with(worker(&store, &routes).max_run_time(5 * SECOND).authorize(check));
    settled().await;
    let user = ("user".to_owned(), b"\"ann\"".to_vec());
    let id = put_off_with(&store, "/x", 1, vec![user]).await;
    assert_eq!(ended(&store, &id).await, JobState::Done);
    let job = look(&store, &id).await;
    assert_eq!((routes.runs("/x"), job.attempts), (1, 1), "uncharged: {job:?}");
    assert_eq!(asked.load(Ordering::SeqCst), 2);
    worker.stop().await;
}
