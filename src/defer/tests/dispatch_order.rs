//! Store calls of a worker, and the order of its runs.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::{sync::Semaphore, time::Instant};

use super::{
    CountingReplayer, FnReplayer, SECOND, SpawnedWorker, enqueue_job, let_tasks_settle,
    lock_key_of, outcome_with_status, wait_until_ended,
};
use crate::{
    defer::tests::DeferWorker,
    store::{JobState, Store, faulty_store},
};

#[tokio::test(start_paused = true)]
async fn jobs_of_one_lock_take_one_claim_in_total() {
    let (store, faults) = faulty_store();
    let routes = CountingReplayer::default();
    let mut jobs = Vec::new();
    for n in 0..20 {
        jobs.push(enqueue_job(&store, &format!("/x/{n}")).await);
    }
    let worker = SpawnedWorker::spawn_on(&store, &routes);
    for id in &jobs {
        assert_eq!(wait_until_ended(&store, id).await, JobState::Done);
    }
    assert_eq!((faults.call_count("claim"), faults.call_count("settle")), (1, 20));
    worker.stop().await;
}

#[tokio::test(start_paused = true)]
async fn wakeup_costs_one_claim_and_idle_worker_only_heartbeats() {
    let (store, faults) = faulty_store();
    let worker = SpawnedWorker::spawn_on(&store, &CountingReplayer::default());
    let_tasks_settle().await;
    let before = (faults.call_count("due"), faults.call_count("claim"));
    let id = enqueue_job(&store, "/x").await;
    assert_eq!(wait_until_ended(&store, &id).await, JobState::Done);
    assert_eq!((faults.call_count("due"), faults.call_count("claim")), (before.0, before.1 + 1));
    tokio::time::sleep(SECOND).await;
    let (due, heartbeats) = (faults.call_count("due"), faults.call_count("beat"));
    tokio::time::sleep(60 * SECOND).await;
    assert_eq!(faults.call_count("due"), due, "it does not poll");
    assert_eq!(faults.call_count("beat") - heartbeats, 12);
    worker.stop().await;
}

#[tokio::test(start_paused = true)]
async fn long_queue_does_not_delay_another() {
    let store = Store::memory();
    let order = Arc::new(Mutex::new(Vec::new()));
    let ran = Arc::clone(&order);
    let routes = FnReplayer::new(move |head, marker| {
        ran.lock().push(head.target.clone());
        async move {
            tokio::time::sleep(Duration::from_millis(5)).await;
            marker.pass_own_lock(&lock_key_of(&head.target));
            outcome_with_status(200)
        }
    });
    let worker = SpawnedWorker::spawn_worker(DeferWorker::new(&store, routes).concurrency(1));
    let_tasks_settle().await;
    for n in 0..100 {
        enqueue_job(&store, &format!("/x/{n}")).await;
    }
    tokio::time::sleep(Duration::from_millis(20)).await;
    let other = enqueue_job(&store, "/y").await;
    let before = order.lock().len();
    assert!(before < 20, "{before}");
    assert_eq!(wait_until_ended(&store, &other).await, JobState::Done);
    let at = order.lock().iter().position(|target| target == "/y").expect("it ran");
    assert!(at - before <= 10, "after {} more", at - before);
    worker.stop().await;
}

/// One worker has no free slot; the other one runs the jobs of its shards at once.
#[tokio::test(start_paused = true)]
async fn worker_without_free_slots_forwards_jobs() {
    let store = Store::memory();
    let stuck = Arc::new(Semaphore::new(0));
    let gate = Arc::clone(&stuck);
    let routes = move || {
        let gate = Arc::clone(&gate);
        FnReplayer::new(move |head, marker| {
            let gate = Arc::clone(&gate);
            async move {
                marker.pass_own_lock(&lock_key_of(&head.target));
                if head.target.ends_with("/stuck") {
                    drop(gate.acquire().await);
                }
                outcome_with_status(200)
            }
        })
    };
    let one = SpawnedWorker::spawn_worker(DeferWorker::new(&store, routes()).concurrency(1));
    let_tasks_settle().await;
    // Enqueued before the second worker starts, so that the first one runs it.
    let first = enqueue_job(&store, "/first/stuck").await;
    let_tasks_settle().await;
    let two = SpawnedWorker::spawn_worker(DeferWorker::new(&store.as_another_process(), routes()));
    // By now each worker has seen the other one's heartbeat.
    tokio::time::sleep(6 * SECOND).await;
    let mut jobs = Vec::new();
    for n in 0..64 {
        jobs.push(enqueue_job(&store, &format!("/{n}/fine")).await);
    }
    let began = Instant::now();
    for id in &jobs {
        assert_eq!(wait_until_ended(&store, id).await, JobState::Done);
    }
    let took = began.elapsed();
    assert!(took < SECOND / 2, "{took:?}");
    stuck.add_permits(1);
    assert_eq!(wait_until_ended(&store, &first).await, JobState::Done);
    one.stop().await;
    two.stop().await;
}
