//! A queue that nobody works on.

use super::{Routes, SECOND, Working, ended, put_off};
use crate::{defer::missing_worker_warning::MissingWorkerWarning, store::Store};

#[tokio::test(start_paused = true)]
async fn a_queue_without_a_worker_is_said_once_and_again_when_it_is_so_again() {
    let store = Store::memory();
    let workers = store.extension::<MissingWorkerWarning>();

    let first = put_off(&store, "/1").await;
    let mut said = Vec::new();
    for _ in 0..3 {
        said.push(workers.check_workers(&store, &first).await);
        tokio::time::sleep(SECOND * 11).await;
    }
    assert_eq!(said, [true, false, false]);

    let other = store.as_another_process();
    let worker = Working::on(&other, &Routes::default());
    ended(&store, &first).await;
    assert!(!workers.check_workers(&store, &first).await, "somebody has run it");
    worker.stop().await;

    tokio::time::sleep(SECOND * 11).await;
    let second = put_off(&store, "/2").await;
    assert!(workers.check_workers(&store, &second).await);
}
