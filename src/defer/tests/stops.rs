//! Workers that stop or die in the middle, and runs that fail.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::{
    Function, SECOND, Working, answered, ended, key_of, look, put_off, put_off_with, settled,
};
use crate::{
    defer::{Answer, DeferWorker, Kept, Ran},
    store::{JobState, Store},
};

/// Routes that never answer; those of `/../begun` have passed their lock.
fn endless() -> Function {
    Function::new(|head, marker| async move {
        if head.target.ends_with("/begun") {
            marker.pass(&key_of(&head.target));
        }
        std::future::pending().await
    })
}

#[tokio::test(start_paused = true)]
async fn a_drain_hands_back_what_has_not_begun_and_buries_what_may_have_run() {
    let store = Store::memory();
    let worker = Working::with(DeferWorker::on(&store, endless()).drain(SECOND));
    let waiting = put_off(&store, "/a").await;
    let begun = put_off(&store, "/b/begun").await;
    let again = put_off_with(&store, "/c/begun", 3, Vec::new()).await;
    settled().await;
    worker.stop().await;
    for id in [&waiting, &again] {
        let job = look(&store, id).await;
        assert_eq!((job.state, job.attempts), (JobState::Queued, 0), "{job:?}");
    }
    let job = look(&store, &begun).await;
    assert_eq!((job.state, job.reason.as_deref()), (JobState::Dead, Some("drained, may have run")));
}

#[tokio::test(start_paused = true)]
async fn a_drain_claims_nothing_more() {
    let store = Store::memory();
    let (runs, told) = (Arc::new(Mutex::new(0)), Arc::new(Mutex::new(0)));
    let counts = (Arc::clone(&runs), Arc::clone(&told));
    let routes = Function::new(move |head, marker| {
        *runs.lock() += 1;
        let told = Arc::clone(&told);
        async move {
            marker.pass(&key_of(&head.target));
            tokio::time::sleep(SECOND).await;
            *told.lock() += 1;
            answered(200)
        }
    });
    let mut jobs = Vec::new();
    for n in 0..10 {
        jobs.push(put_off(&store, &format!("/x/{n}")).await);
    }
    let worker = Working::with(DeferWorker::on(&store, routes));
    settled().await;
    worker.stop().await;
    assert_eq!((*counts.0.lock(), *counts.1.lock()), (1, 1));
    assert_eq!(look(&store, &jobs[0]).await.state, JobState::Done);
    let next = look(&store, &jobs[1]).await;
    assert_eq!((next.state, next.attempts), (JobState::Queued, 0));
}

/// A request that takes its worker with it each time.
#[tokio::test(start_paused = true)]
async fn poison_is_a_dead_letter_after_its_attempts() {
    let store = Store::memory();
    let id = put_off_with(&store, "/x/begun", 3, Vec::new()).await;
    let once = put_off(&store, "/y/begun").await;
    for _ in 0..3 {
        let other = store.as_another_process();
        let worker = Working::with(DeferWorker::on(&other, endless()));
        tokio::time::sleep(20 * SECOND).await;
        worker.die().await;
    }
    let other = store.as_another_process();
    let worker = Working::with(DeferWorker::on(&other, endless()));
    for (id, attempts) in [(&id, 3), (&once, 1)] {
        assert_eq!(ended(&store, id).await, JobState::Dead);
        let job = look(&store, id).await;
        assert_eq!((job.attempts, job.past.crashes), (attempts, attempts), "{job:?}");
        assert!(job.reason.as_deref().is_some_and(|reason| reason.contains("crashed")), "{job:?}");
    }
    worker.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_retry_after_is_waited_for_and_failures_are_told_apart() {
    let store = Store::memory();
    let runs = Arc::new(Mutex::new(Vec::new()));
    let told = Arc::clone(&runs);
    let routes = Function::new(move |head, marker| {
        let mut runs = runs.lock();
        runs.push(Instant::now());
        marker.pass(&key_of(&head.target));
        let retry = vec![("retry-after".to_owned(), b"20".to_vec())];
        let body = Kept::TooLong;
        let ran = match runs.len() {
            1 => Ran::Answered(Answer { status: 503, headers: retry, body }),
            2 => Ran::Panicked,
            3 => Ran::Failed,
            _ => answered(200),
        };
        async { ran }
    });
    let worker = DeferWorker::on(&store, routes).backoff(SECOND, 2 * SECOND);
    let worker = Working::with(worker);
    let id = put_off_with(&store, "/x", 5, Vec::new()).await;
    assert_eq!(ended(&store, &id).await, JobState::Done);
    let runs = told.lock().clone();
    let waited = runs[1] - runs[0];
    assert!((20 * SECOND..22 * SECOND).contains(&waited), "{waited:?}");
    assert!(runs[3] - runs[1] < 5 * SECOND);
    let past = look(&store, &id).await.past;
    let outcomes: Vec<_> = past.runs.iter().filter_map(|run| run.split(' ').nth(3)).collect();
    assert_eq!(outcomes, ["failed", "panicked", "error", "done"]);
    worker.stop().await;
}
