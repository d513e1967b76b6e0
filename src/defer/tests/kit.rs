//! The worker of the test kit, which runs what is due when it is told to.

use std::{panic::AssertUnwindSafe, sync::Arc};

use futures_util::FutureExt as _;

use super::{Function, Routes, answered, key_of, put_off};
use crate::{
    clock::Clock,
    defer::{DeferWorker, job_stepper::JobStepper},
    key::Key,
    lock::AcquireError,
    store::{MemoryBackend, Store},
};

/// What workers share among them is no resource.
#[tokio::test]
async fn where_each_lock_is_busy_runs_have_their_permits() {
    let memory = Arc::new(MemoryBackend::new(Clock::manual()));
    let store = Store::with_backend(Arc::clone(&memory) as _);
    memory.simulate_busy_locks(true);
    let refused = store.lock(Key::custom("a")).acquire().await;
    assert!(matches!(refused, Err(AcquireError::Busy(_))), "{refused:?}");
    let routes = Routes::default();
    let mut worker = JobStepper::new(DeferWorker::new(&store, routes.clone()).queue_concurrency(1));
    for target in ["/a/1", "/b/1", "/a/2"] {
        put_off(&store, target).await;
    }
    assert_eq!(worker.run_due().await.unwrap().len(), 3);
    assert_eq!((routes.runs("/a/1"), routes.runs("/b/1"), routes.runs("/a/2")), (1, 1, 1));
}

#[tokio::test]
async fn jobs_that_make_jobs_without_end_are_a_fault() {
    let store = Store::memory_with_clock(Clock::manual());
    let again = store.clone();
    let routes = Function::new(move |head, marker| {
        let store = again.clone();
        async move {
            marker.pass(&key_of(&head.target));
            // Of another line: those of one are run in a row.
            let n: u32 = head.target[1..].parse().expect("a number");
            put_off(&store, &format!("/{}", n + 1)).await;
            answered(200)
        }
    });
    let mut worker = JobStepper::new(DeferWorker::new(&store, routes));
    // An application has a hundred times as many, which take long here.
    worker.max_passes = 100;
    put_off(&store, "/1").await;
    let panic = AssertUnwindSafe(worker.run_due()).catch_unwind().await.expect_err("no end");
    let said = panic.downcast_ref::<String>().expect("a sentence");
    assert!(said.contains("100 passes") && said.contains("without end"), "{said}");
}
