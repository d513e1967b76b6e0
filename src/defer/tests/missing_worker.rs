//! A queue without a worker.

use super::{CountingReplayer, SECOND, SpawnedWorker, enqueue_job, wait_until_ended};
use crate::{defer::missing_worker_warning::MissingWorkerWarning, store::Store};

#[tokio::test(start_paused = true)]
async fn missing_worker_is_reported_once_per_occurrence() {
    let store = Store::memory();
    let workers = store.extension::<MissingWorkerWarning>();

    let first = enqueue_job(&store, "/1").await;
    let mut warned = Vec::new();
    for _ in 0..3 {
        warned.push(workers.check_workers(&store, &first).await);
        tokio::time::sleep(SECOND * 11).await;
    }
    assert_eq!(warned, [true, false, false]);

    let other = store.as_another_process();
    let worker = SpawnedWorker::spawn_on(&other, &CountingReplayer::default());
    wait_until_ended(&store, &first).await;
    assert!(!workers.check_workers(&store, &first).await, "another worker has run it");
    worker.stop().await;

    tokio::time::sleep(SECOND * 11).await;
    let second = enqueue_job(&store, "/2").await;
    assert!(workers.check_workers(&store, &second).await);
}
