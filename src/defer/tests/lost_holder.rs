//! A job behind a lock whose holder has gone.

use super::{CountingReplayer, SECOND, SpawnedWorker, enqueue_job, lock_key_of, wait_until_ended};
use crate::store::{
    AcquireCommand, AcquireReply, CapturedLog, JobState, LockMode, LockToken, Store,
};

const TAKEN_OVER: &str = "lock taken over: its last holder did not release it";

/// Takes the lock as a process does that is killed then: it neither renews nor releases it.
async fn acquire_and_die(store: &Store, target: &str) {
    let dead = store.as_another_process();
    let command = AcquireCommand {
        key: lock_key_of(target),
        token: LockToken::new(dead.node()),
        mode: LockMode::Exclusive,
        lease: 10 * SECOND,
        max_wait: None,
        resume_seq: 0,
        record_name: None,
    };
    let reply = dead.backend().acquire(command).await.expect("the store is in this process");
    assert!(matches!(reply, AcquireReply::Granted { .. }), "{reply:?}");
}

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

    acquire_and_die(&store, "/b").await;
    let waiting = enqueue_job(&store, "/b").await;
    assert_eq!(wait_until_ended(&store, &waiting).await, JobState::Done);
    worker.stop().await;
    let text = log.text();
    let line = text.lines().find(|line| line.contains(TAKEN_OVER)).expect("it is reported");
    assert!(line.contains(&format!("lock={}", lock_key_of("/b"))), "{line}");
    assert!(line.contains(&format!("job={}", waiting.log_prefix())), "{line}");
    assert!(line.contains("waited_ms=10"), "the whole lease: {line}");
}
