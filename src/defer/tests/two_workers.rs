//! Two workers on one store handle.

use std::sync::Arc;

use tokio::{sync::Barrier, time::Instant};

use super::{
    CountingReplayer, FnReplayer, SECOND, SpawnedWorker, enqueue_command, enqueue_job,
    let_tasks_settle, lock_key_of, outcome_with_status, wait_until_ended,
};
use crate::{
    defer::tests::DeferWorker,
    gate::HttpRequestHead,
    store::{EnqueueCommand, EnqueueOutcome, JobPolicy, JobState, Store},
};

/// Each run waits until the other one has started, and each worker has one slot. So both workers
/// must be woken.
#[tokio::test(start_paused = true)]
async fn both_workers_are_woken_for_new_jobs() {
    let store = Store::memory();
    let both = Arc::new(Barrier::new(2));
    let routes = || {
        let both = Arc::clone(&both);
        FnReplayer::new(move |head, marker| {
            let both = Arc::clone(&both);
            async move {
                marker.pass_own_lock(&lock_key_of(&head.target));
                both.wait().await;
                outcome_with_status(200)
            }
        })
    };
    let worker = || SpawnedWorker::spawn_worker(DeferWorker::new(&store, routes()).concurrency(1));
    let (one, two) = (worker(), worker());
    let_tasks_settle().await;
    for _ in 0..5 {
        let began = Instant::now();
        for id in [enqueue_job(&store, "/a").await, enqueue_job(&store, "/b").await] {
            assert_eq!(wait_until_ended(&store, &id).await, JobState::Done);
        }
        assert!(began.elapsed() < SECOND / 10, "{:?}", began.elapsed());
    }
    one.stop().await;
    two.stop().await;
}

#[tokio::test(start_paused = true)]
async fn stopped_or_killed_worker_leaves_queue_to_the_other() {
    for is_killed in [false, true] {
        let (store, routes) = (Store::memory(), CountingReplayer::default());
        let (one, two) =
            (SpawnedWorker::spawn_on(&store, &routes), SpawnedWorker::spawn_on(&store, &routes));
        let_tasks_settle().await;
        // The result does not depend on the order of the workers' starts.
        let (leaving, remaining) = if is_killed { (one, two) } else { (two, one) };
        if is_killed {
            leaving.kill().await;
        } else {
            leaving.stop().await;
        }
        let began = Instant::now();
        let call =
            enqueue_command(&store, HttpRequestHead::new("POST", "/a", Vec::new(), None), b"");
        let policy = JobPolicy { needs_worker: true, ..call.policy };
        let id = call.id.clone();
        let stored = store.backend().enqueue(EnqueueCommand { policy, ..call }).await;
        assert!(matches!(stored, Ok(EnqueueOutcome::Stored { .. })), "there is one: {stored:?}");
        assert_eq!(wait_until_ended(&store, &id).await, JobState::Done);
        assert!(began.elapsed() < SECOND / 10, "{:?}", began.elapsed());
        remaining.stop().await;
        let call =
            enqueue_command(&store, HttpRequestHead::new("POST", "/a", Vec::new(), None), b"");
        let stored = store.backend().enqueue(EnqueueCommand { policy, ..call }).await;
        assert_eq!(stored.expect("it is there"), EnqueueOutcome::NoWorker, "the last has gone");
    }
}

/// One worker lacks the route; the other one has it.
#[tokio::test(start_paused = true)]
async fn job_unroutable_for_one_worker_runs_on_the_other() {
    let (store, routes) = (Store::memory(), CountingReplayer::default());
    let without = |_, _| async { outcome_with_status(404) };
    let one = SpawnedWorker::spawn_worker(DeferWorker::new(&store, FnReplayer::new(without)));
    let two = SpawnedWorker::spawn_on(&store, &routes);
    let_tasks_settle().await;
    for n in 0..20 {
        let id = enqueue_job(&store, &format!("/{n}/x")).await;
        assert_eq!(wait_until_ended(&store, &id).await, JobState::Done);
        assert_eq!(routes.run_count(&format!("/{n}/x")), 1);
    }
    one.stop().await;
    two.stop().await;
}
