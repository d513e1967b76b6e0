//! Who runs what after a worker has gone, and when.

use std::time::Duration;

use tokio::time::Instant;

use super::{Routes, SECOND, Working, ended, put_off, settled};
use crate::store::{Fault, JobId, JobState, Store, faulty};

/// Jobs in shards of both of them.
async fn everywhere(store: &Store) -> Vec<JobId> {
    let mut jobs = Vec::new();
    for i in 0..64 {
        jobs.push(put_off(store, &format!("/{i}")).await);
    }
    jobs
}

async fn all_done(store: &Store, jobs: &[JobId]) -> Duration {
    let started = Instant::now();
    for id in jobs {
        assert_eq!(ended(store, id).await, JobState::Done);
    }
    started.elapsed()
}

#[tokio::test(start_paused = true)]
async fn the_shards_of_one_of_many_that_died_are_taken_over_after_its_lease() {
    for number in [2, 3, 20] {
        let (store, routes) = (Store::memory(), Routes::default());
        let mut workers = vec![Working::on(&store, &routes)];
        for _ in 1..number {
            // Not all in step.
            tokio::time::sleep(SECOND * 7 / number).await;
            workers.push(Working::on(&store.as_another_process(), &routes));
        }
        tokio::time::sleep(30 * SECOND).await;
        workers.swap_remove(1).die().await;
        let jobs = everywhere(&store).await;
        let took = all_done(&store, &jobs).await;
        assert!(took <= 15 * SECOND, "{number}: {took:?}");
        for worker in workers {
            worker.stop().await;
        }
    }
}

/// An accepted request wakes the one that looks after its shard, and costs the others nothing.
#[tokio::test(start_paused = true)]
async fn a_job_costs_the_same_however_many_workers_are_idle() {
    let mut costs = Vec::new();
    for number in [1, 10] {
        let ((store, faults), routes) = (faulty(), Routes::default());
        let mut workers = Vec::new();
        for _ in 0..number {
            workers.push(Working::on(&store.as_another_process(), &routes));
        }
        // They have divided the shards.
        tokio::time::sleep(30 * SECOND).await;
        let steps = ["claim", "settle", "heads", "due", "acquire", "unclaim", "envelope"];
        let before = steps.map(|step| faults.seen(step));
        let jobs = everywhere(&store).await;
        let took = all_done(&store, &jobs).await;
        // Far less than a beat, at which each of them looks for itself.
        assert!(took < SECOND, "{took:?}");
        let after = steps.map(|step| faults.seen(step));
        let cost: Vec<_> = (0..steps.len()).map(|n| (steps[n], after[n] - before[n])).collect();
        assert_eq!(cost[0].1, jobs.len(), "one claim for each: {cost:?}");
        costs.push(cost);
        for worker in workers {
            worker.stop().await;
        }
    }
    assert_eq!(costs[0], costs[1]);
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_stops_is_heard_though_its_first_word_is_lost() {
    let routes = Routes::default();
    let (store, faults) = faulty();
    let first = Working::on(&store, &routes);
    settled().await;
    let second = Working::on(&store.as_another_process(), &routes);
    tokio::time::sleep(SECOND).await;
    faults.set("beat", Fault::Away, 1);
    first.stop().await;
    assert_eq!(faults.left("beat"), 0);
    let jobs = everywhere(&store).await;
    let took = all_done(&store, &jobs).await;
    assert!(took < SECOND, "{took:?}");
    second.stop().await;
}
