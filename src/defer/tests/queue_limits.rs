//! Limits shared by all workers of a queue.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::time::Instant;

use super::{
    FnReplayer, SECOND, SpawnedWorker, enqueue_job, let_tasks_settle, lock_key_of,
    outcome_with_status, wait_until_ended,
};
use crate::{
    defer::{job_stepper::JobStepper, tests::DeferWorker},
    store::{JobState, Store, faulty_store},
};

/// Replayer that records the highest number of concurrent runs.
fn concurrency_counting_replayer() -> (FnReplayer, Arc<AtomicUsize>) {
    let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let peak = Arc::clone(&most);
    let routes = FnReplayer::new(move |head, marker| {
        let (now, most) = (Arc::clone(&now), Arc::clone(&most));
        async move {
            most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            tokio::time::sleep(SECOND / 10).await;
            marker.pass_own_lock(&lock_key_of(&head.target));
            now.fetch_sub(1, Ordering::SeqCst);
            outcome_with_status(200)
        }
    });
    (routes, peak)
}

#[tokio::test(start_paused = true)]
async fn queue_concurrency_is_reached_and_not_exceeded() {
    let store = Store::memory();
    let (routes, most) = concurrency_counting_replayer();
    let worker = |store: &Store| {
        SpawnedWorker::spawn_worker(DeferWorker::new(store, routes.clone()).queue_concurrency(3))
    };
    let (one, two) = (worker(&store), worker(&store.as_another_process()));
    let_tasks_settle().await;
    let mut jobs = Vec::new();
    for n in 0..60 {
        jobs.push(enqueue_job(&store, &format!("/{}/{n}", n % 30)).await);
    }
    let began = Instant::now();
    for id in &jobs {
        assert_eq!(wait_until_ended(&store, id).await, JobState::Done);
    }
    assert_eq!(most.load(Ordering::SeqCst), 3);
    // 60 runs of 100 ms, three at once.
    assert!(began.elapsed() < 4 * SECOND, "{:?}", began.elapsed());
    one.stop().await;
    two.stop().await;
}

#[tokio::test(start_paused = true)]
async fn permit_of_a_killed_worker_returns_after_its_lease() {
    let store = Store::memory();
    let (routes, _) = concurrency_counting_replayer();
    let endless = FnReplayer::new(|_, _| std::future::pending());
    let dead = DeferWorker::new(&store, endless).queue_concurrency(1);
    let dead = SpawnedWorker::spawn_worker(dead);
    enqueue_job(&store, "/x").await;
    let_tasks_settle().await;
    dead.kill().await;
    let other = store.as_another_process();
    let worker = SpawnedWorker::spawn_worker(DeferWorker::new(&other, routes).queue_concurrency(1));
    let id = enqueue_job(&store, "/y").await;
    let began = Instant::now();
    assert_eq!(wait_until_ended(&store, &id).await, JobState::Done);
    assert!(began.elapsed() < 16 * SECOND, "{:?}", began.elapsed());
    worker.stop().await;
}

#[tokio::test(start_paused = true)]
async fn queue_rate_bounds_the_starts() {
    let (store, faults) = faulty_store();
    let starts = Arc::new(Mutex::new(Vec::new()));
    let recorded = Arc::clone(&starts);
    let routes = FnReplayer::new(move |head, marker| {
        starts.lock().push(Instant::now());
        marker.pass_own_lock(&lock_key_of(&head.target));
        async { outcome_with_status(200) }
    });
    let worker = DeferWorker::new(&store, routes).queue_rate(10, SECOND);
    let worker = SpawnedWorker::spawn_worker(worker);
    let_tasks_settle().await;
    let mut jobs = Vec::new();
    for n in 0..30 {
        jobs.push(enqueue_job(&store, &format!("/{}/{n}", n % 10)).await);
    }
    for id in &jobs {
        assert_eq!(wait_until_ended(&store, id).await, JobState::Done);
    }
    let starts = recorded.lock().clone();
    for (n, start) in starts.iter().enumerate() {
        let recent = starts[..n].iter().filter(|other| **other + SECOND > *start).count();
        assert!(recent <= 10, "{recent} starts in the second before start {n}");
    }
    let took = *starts.last().expect("they ran") - starts[0];
    let all = Duration::from_millis(2_900);
    assert!((all..all + SECOND).contains(&took), "{took:?}");
    assert!(faults.call_count("charge") < 100, "{} charges", faults.call_count("charge"));
    worker.stop().await;
}

/// A stepper waits for nothing, since the manual clock does not advance meanwhile.
#[tokio::test(start_paused = true)]
async fn job_stepper_does_not_wait_for_a_permit() {
    let store = Store::memory();
    let endless = FnReplayer::new(|_, _| std::future::pending());
    let busy = SpawnedWorker::spawn_worker(DeferWorker::new(&store, endless).queue_concurrency(1));
    enqueue_job(&store, "/x").await;
    let_tasks_settle().await;
    let other = store.as_another_process();
    let (routes, _) = concurrency_counting_replayer();
    let mut stepper = JobStepper::new(DeferWorker::new(&other, routes).queue_concurrency(1));
    let id = enqueue_job(&store, "/y").await;
    assert_eq!(stepper.run_due().await.expect("it is there"), []);
    busy.kill().await;
    // Until the lease of the killed worker has expired.
    tokio::time::sleep(20 * SECOND).await;
    let ran = stepper.run_due().await.expect("it is there");
    assert!(ran.iter().any(|run| run.id == id), "{ran:?}");
}
