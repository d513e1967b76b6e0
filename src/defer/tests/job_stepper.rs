//! `JobStepper` of the test kit, which runs due jobs on request.

use std::{panic::AssertUnwindSafe, sync::Arc};

use futures_util::FutureExt as _;

use super::{CountingReplayer, FnReplayer, enqueue_job, lock_key_of, outcome_with_status};
use crate::{
    clock::Clock,
    defer::{job_stepper::JobStepper, tests::DeferWorker},
    key::Key,
    lock::AcquireError,
    store::{MemoryBackend, Store},
};

/// Queue permits are no application locks, so `simulate_busy_locks` does not affect them.
#[tokio::test]
async fn queue_permits_are_granted_while_locks_seem_busy() {
    let memory = Arc::new(MemoryBackend::new(Clock::manual()));
    let store = Store::with_backend(Arc::clone(&memory) as _);
    memory.simulate_busy_locks(true);
    let refused = store.lock(Key::custom("a")).acquire().await;
    assert!(matches!(refused, Err(AcquireError::Busy(_))), "{refused:?}");
    let routes = CountingReplayer::default();
    let mut worker = JobStepper::new(DeferWorker::new(&store, routes.clone()).queue_concurrency(1));
    for target in ["/a/1", "/b/1", "/a/2"] {
        enqueue_job(&store, target).await;
    }
    assert_eq!(worker.run_due().await.unwrap().len(), 3);
    assert_eq!(
        (routes.run_count("/a/1"), routes.run_count("/b/1"), routes.run_count("/a/2")),
        (1, 1, 1)
    );
}

#[tokio::test]
async fn jobs_enqueuing_jobs_endlessly_panic() {
    let store = Store::memory_with_clock(Clock::manual());
    let job_store = store.clone();
    let routes = FnReplayer::new(move |head, marker| {
        let store = job_store.clone();
        async move {
            marker.pass_own_lock(&lock_key_of(&head.target));
            // Each job has its own lock, since jobs of one lock run in one chain.
            let n: u32 = head.target[1..].parse().expect("a number");
            enqueue_job(&store, &format!("/{}", n + 1)).await;
            outcome_with_status(200)
        }
    });
    let mut worker = JobStepper::new(DeferWorker::new(&store, routes));
    // The default is a hundred times larger and would take long.
    worker.max_passes = 100;
    enqueue_job(&store, "/1").await;
    let panic = AssertUnwindSafe(worker.run_due()).catch_unwind().await.expect_err("no end");
    let message = panic.downcast_ref::<String>().expect("a sentence");
    assert!(message.contains("100 passes") && message.contains("without end"), "{message}");
}
