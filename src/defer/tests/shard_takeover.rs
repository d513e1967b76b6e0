//! Takeover of the shards of a worker that stopped or died.

use std::time::Duration;

use tokio::time::Instant;

use super::{
    CountingReplayer, SECOND, SpawnedWorker, enqueue_job, let_tasks_settle, wait_until_ended,
};
use crate::store::{BackendFault, JobId, JobState, Store, faulty_store};

/// Enqueues jobs in shards of all workers.
async fn enqueue_in_all_shards(store: &Store) -> Vec<JobId> {
    let mut jobs = Vec::new();
    for i in 0..64 {
        jobs.push(enqueue_job(store, &format!("/{i}")).await);
    }
    jobs
}

async fn time_until_done(store: &Store, jobs: &[JobId]) -> Duration {
    let started = Instant::now();
    for id in jobs {
        assert_eq!(wait_until_ended(store, id).await, JobState::Done);
    }
    started.elapsed()
}

#[tokio::test(start_paused = true)]
async fn shards_of_a_killed_worker_are_taken_over_after_its_lease() {
    for number in [2, 3, 20] {
        let (store, routes) = (Store::memory(), CountingReplayer::default());
        let mut workers = vec![SpawnedWorker::spawn_on(&store, &routes)];
        for _ in 1..number {
            // Staggers the heartbeats.
            tokio::time::sleep(SECOND * 7 / number).await;
            workers.push(SpawnedWorker::spawn_on(&store.as_another_process(), &routes));
        }
        tokio::time::sleep(30 * SECOND).await;
        workers.swap_remove(1).kill().await;
        let jobs = enqueue_in_all_shards(&store).await;
        let took = time_until_done(&store, &jobs).await;
        assert!(took <= 15 * SECOND, "{number}: {took:?}");
        for worker in workers {
            worker.stop().await;
        }
    }
}

/// An enqueue wakes only the worker that watches the shard; the others make no call.
#[tokio::test(start_paused = true)]
async fn job_cost_is_independent_of_idle_workers() {
    let mut costs = Vec::new();
    for number in [1, 10] {
        let ((store, faults), routes) = (faulty_store(), CountingReplayer::default());
        let mut workers = Vec::new();
        for _ in 0..number {
            workers.push(SpawnedWorker::spawn_on(&store.as_another_process(), &routes));
        }
        // By then the workers have divided the shards.
        tokio::time::sleep(30 * SECOND).await;
        let operations = ["claim", "settle", "heads", "due", "acquire", "unclaim", "envelope"];
        let before = operations.map(|operation| faults.call_count(operation));
        let jobs = enqueue_in_all_shards(&store).await;
        let took = time_until_done(&store, &jobs).await;
        // Far less than the interval of heartbeats, with which each worker polls.
        assert!(took < SECOND, "{took:?}");
        let after = operations.map(|operation| faults.call_count(operation));
        let cost: Vec<_> =
            (0..operations.len()).map(|n| (operations[n], after[n] - before[n])).collect();
        assert_eq!(cost[0].1, jobs.len(), "one claim for each: {cost:?}");
        costs.push(cost);
        for worker in workers {
            worker.stop().await;
        }
    }
    assert_eq!(costs[0], costs[1]);
}

#[tokio::test(start_paused = true)]
async fn stopping_worker_is_noticed_despite_a_lost_heartbeat() {
    let routes = CountingReplayer::default();
    let (store, faults) = faulty_store();
    let first = SpawnedWorker::spawn_on(&store, &routes);
    let_tasks_settle().await;
    let second = SpawnedWorker::spawn_on(&store.as_another_process(), &routes);
    tokio::time::sleep(SECOND).await;
    faults.set("beat", BackendFault::Unavailable, 1);
    first.stop().await;
    assert_eq!(faults.remaining("beat"), 0);
    let jobs = enqueue_in_all_shards(&store).await;
    let took = time_until_done(&store, &jobs).await;
    assert!(took < SECOND, "{took:?}");
    second.stop().await;
}
