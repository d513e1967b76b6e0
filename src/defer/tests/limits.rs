//! What all workers of a queue together may do.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::time::Instant;

use super::{Function, SECOND, Working, answered, ended, key_of, put_off, settled};
use crate::{
    defer::{DeferWorker, job_stepper::JobStepper},
    store::{JobState, Store, faulty},
};

/// Routes that count how many run at once: now, and most.
fn counting() -> (Function, Arc<AtomicUsize>) {
    let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let told = Arc::clone(&most);
    let routes = Function::new(move |head, marker| {
        let (now, most) = (Arc::clone(&now), Arc::clone(&most));
        async move {
            most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            tokio::time::sleep(SECOND / 10).await;
            marker.pass(&key_of(&head.target));
            now.fetch_sub(1, Ordering::SeqCst);
            answered(200)
        }
    });
    (routes, told)
}

#[tokio::test(start_paused = true)]
async fn no_more_run_at_once_than_the_queue_allows_and_no_fewer() {
    let store = Store::memory();
    let (routes, most) = counting();
    let worker =
        |store: &Store| Working::with(DeferWorker::new(store, routes.clone()).queue_concurrency(3));
    let (one, two) = (worker(&store), worker(&store.as_another_process()));
    settled().await;
    let mut jobs = Vec::new();
    for n in 0..60 {
        jobs.push(put_off(&store, &format!("/{}/{n}", n % 30)).await);
    }
    let began = Instant::now();
    for id in &jobs {
        assert_eq!(ended(&store, id).await, JobState::Done);
    }
    assert_eq!(most.load(Ordering::SeqCst), 3);
    // 60 runs of 100 ms, three at once.
    assert!(began.elapsed() < 4 * SECOND, "{:?}", began.elapsed());
    one.stop().await;
    two.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_permit_of_a_worker_that_died_comes_back_with_its_lease() {
    let store = Store::memory();
    let (routes, _) = counting();
    let endless = Function::new(|_, _| std::future::pending());
    let dead = DeferWorker::new(&store, endless).queue_concurrency(1);
    let dead = Working::with(dead);
    put_off(&store, "/x").await;
    settled().await;
    dead.die().await;
    let other = store.as_another_process();
    let worker = Working::with(DeferWorker::new(&other, routes).queue_concurrency(1));
    let id = put_off(&store, "/y").await;
    let began = Instant::now();
    assert_eq!(ended(&store, &id).await, JobState::Done);
    assert!(began.elapsed() < 16 * SECOND, "{:?}", began.elapsed());
    worker.stop().await;
}

#[tokio::test(start_paused = true)]
async fn no_more_start_per_time_than_the_queue_allows() {
    let (store, faults) = faulty();
    let starts = Arc::new(Mutex::new(Vec::new()));
    let told = Arc::clone(&starts);
    let routes = Function::new(move |head, marker| {
        starts.lock().push(Instant::now());
        marker.pass(&key_of(&head.target));
        async { answered(200) }
    });
    let worker = DeferWorker::new(&store, routes).queue_rate(10, SECOND);
    let worker = Working::with(worker);
    settled().await;
    let mut jobs = Vec::new();
    for n in 0..30 {
        jobs.push(put_off(&store, &format!("/{}/{n}", n % 10)).await);
    }
    for id in &jobs {
        assert_eq!(ended(&store, id).await, JobState::Done);
    }
    let starts = told.lock().clone();
    for (n, start) in starts.iter().enumerate() {
        let within = starts[..n].iter().filter(|other| **other + SECOND > *start).count();
        assert!(within <= 10, "{within} before the one of number {n}");
    }
    let took = *starts.last().expect("they ran") - starts[0];
    let all = Duration::from_millis(2_900);
    assert!((all..all + SECOND).contains(&took), "{took:?}");
    assert!(faults.seen("charge") < 100, "{} charges", faults.seen("charge"));
    worker.stop().await;
}

/// A test's worker waits for nothing: its clock stands still meanwhile.
#[tokio::test(start_paused = true)]
async fn a_worker_that_is_told_to_run_what_is_due_does_not_wait_for_a_permit() {
    let store = Store::memory();
    let endless = Function::new(|_, _| std::future::pending());
    let busy = Working::with(DeferWorker::new(&store, endless).queue_concurrency(1));
    put_off(&store, "/x").await;
    settled().await;
    let other = store.as_another_process();
    let (routes, _) = counting();
    let mut stepper = JobStepper::new(DeferWorker::new(&other, routes).queue_concurrency(1));
    let id = put_off(&store, "/y").await;
    assert_eq!(stepper.run_due().await.expect("it is there"), []);
    busy.die().await;
    // Until the other one's lease is over.
    tokio::time::sleep(20 * SECOND).await;
    let ran = stepper.run_due().await.expect("it is there");
    assert!(ran.iter().any(|run| run.id == id), "{ran:?}");
}
