//! Retries that become due between two heartbeats.

use bytes::Bytes;
use tokio::time::Instant;

use super::{
    FnReplayer, SECOND, SpawnedWorker, enqueue_job, enqueue_with_attempts, let_tasks_settle,
    lock_key_of, outcome_with_status, wait_until_ended,
};
use crate::{
    defer::{ReplayBody, ReplayOutcome, ReplayResponse, tests::DeferWorker},
    gate::ReplayMarker,
    store::{JobState, Store},
};

/// Answers the first attempt with 503 and `Retry-After`, later ones with 200.
fn retry_later_once(marker: &ReplayMarker, seconds: &str) -> ReplayOutcome {
    if marker.job().attempt > 1 {
        return outcome_with_status(200);
    }
    let headers = vec![("retry-after".to_owned(), seconds.as_bytes().to_vec())];
    ReplayOutcome::Answered(ReplayResponse {
        status: 503,
        headers,
        body: ReplayBody::Full(Bytes::new()),
    })
}

/// The claim's entry in the due index lies at the end of the lease, so it cannot start the retry.
#[tokio::test(start_paused = true)]
async fn retry_beyond_a_short_lease_starts_when_due() {
    let store = Store::memory();
    let routes = FnReplayer::new(|head, marker| {
        marker.pass_own_lock(&lock_key_of(&head.target));
        std::future::ready(retry_later_once(&marker, "2"))
    });
    let worker = SpawnedWorker::spawn_worker(DeferWorker::new(&store, routes).lease(SECOND));
    let_tasks_settle().await;
    let began = Instant::now();
    let id = enqueue_with_attempts(&store, "/x", 2, Vec::new()).await;
    assert_eq!(wait_until_ended(&store, &id).await, JobState::Done);
    // `Retry-After` with up to a second of jitter, and the delay of a poll. The next heartbeat is
    // after 5 s.
    let took = began.elapsed();
    assert!((2 * SECOND..4 * SECOND).contains(&took), "{took:?}");
    worker.stop().await;
}

/// A retry becomes due without a wake-up. Only the worker that watches its shard polls for it, and
/// that worker has no free slot.
#[tokio::test(start_paused = true)]
async fn due_job_of_a_full_worker_runs_on_another() {
    let store = Store::memory();
    let routes = FnReplayer::new(|head, marker| async move {
        marker.pass_own_lock(&lock_key_of(&head.target));
        if head.target == "/long" {
            tokio::time::sleep(120 * SECOND).await;
            return outcome_with_status(200);
        }
        retry_later_once(&marker, "1")
    });
    let worker = |store: &Store| {
        SpawnedWorker::spawn_worker(DeferWorker::new(store, routes.clone()).concurrency(1))
    };
    let (one, two) = (worker(&store), worker(&store.as_another_process()));
    // By then each worker owns its part of the shards.
    tokio::time::sleep(20 * SECOND).await;
    let long = enqueue_job(&store, "/long").await;
    let_tasks_settle().await;
    // Eight rounds, since the phase of the heartbeats must not matter.
    for round in 0..8 {
        let began = Instant::now();
        let mut jobs = Vec::new();
        for n in 0..20 {
            jobs.push(enqueue_with_attempts(&store, &format!("/{n}/{round}"), 2, Vec::new()).await);
        }
        for id in &jobs {
            assert_eq!(wait_until_ended(&store, id).await, JobState::Done);
        }
        let took = began.elapsed();
        assert!(took < 4 * SECOND, "{took:?} in round {round}");
    }
    assert_eq!(wait_until_ended(&store, &long).await, JobState::Done);
    one.stop().await;
    two.stop().await;
}
