//! A job behind a lock whose holder has gone.

use super::{CountingReplayer, SECOND, SpawnedWorker, enqueue_job, lock_key_of, wait_until_ended};
use crate::store::{CapturedLog, JobState, Store, acquire_as_killed_process};

const TAKEN_OVER: &str = "lock taken over: its last holder did not release it";

#[tokio::test(start_paused = true)]
async fn a_job_reports_a_holder_that_did_not_release_its_lock() {
    let (log, _reads) = CapturedLog::start_capture();
    let (store, routes) = (Store::memory().log_names(true), CountingReplayer::default());
    let worker = SpawnedWorker::spawn_on(&store, &routes);
    tokio::time::sleep(20 * SECOND).await;
    let held = store.as_another_process().lock(lock_key_of("/a")).acquire().await.expect("free");
    let released = enqueue_job(&store, "/a").await;
    held.release().await;
    assert_eq!(wait_until_ended(&store, &released).await, JobState::Done);
    assert!(!log.text().contains(TAKEN_OVER), "{}", log.text());

    acquire_as_killed_process(&store, lock_key_of("/b")).await;
    let waiting = enqueue_job(&store, "/b").await;
    assert_eq!(wait_until_ended(&store, &waiting).await, JobState::Done);
    worker.stop().await;
    let text = log.text();
    let line = text.lines().find(|line| line.contains(TAKEN_OVER)).expect("it is reported");
    assert!(line.contains(&format!("lock={}", lock_key_of("/b"))), "{line}");
    assert!(line.contains(&format!("job={}", waiting.log_prefix())), "{line}");
    assert!(line.contains("waited_ms=10"), "the whole lease: {line}");
}

/// A paused queue has no watch, so a release offers nothing.
#[tokio::test(start_paused = true)]
async fn a_job_of_a_paused_queue_reports_no_holder() {
    let (log, _reads) = CapturedLog::start_capture();
    let (store, routes) = (Store::memory(), CountingReplayer::default());
    let worker = SpawnedWorker::spawn_on(&store, &routes);
    tokio::time::sleep(20 * SECOND).await;
    store.deferred_jobs().pause().await.expect("it is there");
    tokio::time::sleep(20 * SECOND).await;
    let held = store.as_another_process().lock(lock_key_of("/a")).acquire().await.expect("free");
    let jobs = [enqueue_job(&store, "/a").await, enqueue_job(&store, "/b").await];
    held.release().await;
    store.deferred_jobs().resume().await.expect("it is there");
    for job in jobs {
        assert_eq!(wait_until_ended(&store, &job).await, JobState::Done);
    }
    worker.stop().await;
    assert!(!log.text().contains(TAKEN_OVER), "{}", log.text());
}
