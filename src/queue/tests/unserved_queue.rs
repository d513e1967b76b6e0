//! A queue without a worker.

use super::{
    SECOND, SpawnedQueueWorker, TaskRunLog, push_text, scripted_worker, text_queue, wait_until_idle,
};
use crate::store::{CapturedLog, Store};

const WARNING: &str = "no worker polls their queue";

#[tokio::test(start_paused = true)]
async fn queue_without_worker_is_reported_once_a_minute() {
    let store = Store::memory();
    let queue = text_queue(&store);
    let (log, _guard) = CapturedLog::start_capture();
    for _ in 0..3 {
        push_text(&queue, "waits").await;
        tokio::time::sleep(SECOND * 15).await;
    }
    assert_eq!(log.text().matches(WARNING).count(), 1, "{}", log.text());
    log.assert_contains("waiting=1");
    tokio::time::sleep(SECOND * 60).await;
    push_text(&queue, "waits").await;
    tokio::time::sleep(SECOND * 15).await;
    assert_eq!(log.text().matches(WARNING).count(), 2, "{}", log.text());
}

/// Each push comes long after the last full poll of the idle worker.
#[tokio::test(start_paused = true)]
async fn queue_with_worker_in_another_process_is_not_reported() {
    let store = Store::memory();
    let (queue, runs) = (text_queue(&store), TaskRunLog::default());
    let (log, _guard) = CapturedLog::start_capture();
    let other = text_queue(&store.as_another_process());
    let worker = SpawnedQueueWorker::start(scripted_worker(&other, &runs));
    wait_until_idle().await;
    for payload in ["ok", "fail", "sleep 70000", "later", "ok"] {
        push_text(&queue, payload).await;
        queue.push(&"ok".to_owned()).delay(SECOND * 3600).await.expect("there is room");
        tokio::time::sleep(SECOND * 90).await;
    }
    worker.stop().await;
    assert!(!log.text().contains(WARNING), "{}", log.text());
}
