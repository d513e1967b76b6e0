//! A job behind a lock whose holder has gone.

use super::{
    CountingReplayer, DeferWorker, FnReplayer, SECOND, SpawnedWorker, encode_request, enqueue_job,
    envelope_command, get_job, lock_key_of, outcome_with_status, send_enqueue, wait_until_ended,
};
use crate::{
    defer::envelope::EnvelopeBinding,
    gate::HttpRequestHead,
    store::{CapturedLog, JobId, JobState, Store, acquire_as_killed_process},
};

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
    assert!(line.contains("lock=b "), "the key as the application gave it: {line}");
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

/// Enqueues a `PUT` of `/orders/{id}` with three attempts.
async fn enqueue_repeatable(store: &Store, target: &str) -> JobId {
    let key = lock_key_of(target);
    let head = HttpRequestHead::new("PUT", target, Vec::new(), None);
    let id = JobId::new(&key);
    let at = EnvelopeBinding { store, id: &id, lock: &key };
    let envelope = encode_request(at, head, Vec::new(), Vec::new(), 3, Some("/orders/{id}"), b"");
    send_enqueue(store, envelope_command(key.clone(), id, 3, envelope)).await
}

/// Worker whose first run of a job does not end.
fn spawn_worker_with_endless_first_run(store: &Store) -> SpawnedWorker {
    let routes = FnReplayer::new(|head: HttpRequestHead, marker| async move {
        if marker.job().attempt == 1 {
            std::future::pending::<()>().await;
        }
        marker.pass_own_lock(&lock_key_of(&head.target));
        outcome_with_status(200)
    });
    SpawnedWorker::spawn_worker(DeferWorker::new(store, routes).lease(10 * SECOND))
}

/// Kills the process of the first run of a job, and waits until another one has ended the job.
async fn end_after_killed_run(store: &Store, id: &JobId) -> JobState {
    let killed = spawn_worker_with_endless_first_run(&store.as_another_process());
    while get_job(store, id).await.state != JobState::Running {
        tokio::time::sleep(SECOND / 10).await;
    }
    // Its lease is renewed meanwhile.
    tokio::time::sleep(20 * SECOND).await;
    killed.kill().await;
    let worker = spawn_worker_with_endless_first_run(store);
    let state = wait_until_ended(store, id).await;
    worker.stop().await;
    state
}

#[tokio::test(start_paused = true)]
async fn a_job_that_its_killed_process_may_have_done_is_counted_as_dead() {
    let store = Store::memory();
    let id = enqueue_job(&store, "/7").await;
    assert_eq!(end_after_killed_run(&store, &id).await, JobState::Dead);
    let stats = store.stats();
    assert_eq!((stats.runs_lost, stats.runs_done, stats.runs_dead), (0, 0, 1));
}

#[tokio::test(start_paused = true)]
async fn a_job_reports_that_the_process_of_its_last_run_has_gone() {
    let (log, _reads) = CapturedLog::start_capture();
    let store = Store::memory().log_names(true);
    let id = enqueue_repeatable(&store, "/7").await;
    assert_eq!(end_after_killed_run(&store, &id).await, JobState::Done);
    let stats = store.stats();
    assert_eq!((stats.runs_lost, stats.runs_done, stats.runs_dead), (1, 1, 0));
    let text = log.text();
    let mut lines = text.lines().filter(|line| line.contains("lock taken over: "));
    let line = lines.next().expect("it is reported");
    assert_eq!(lines.next(), None, "{text}");
    for part in
        ["the last run of this job", "method=\"PUT\"", "route=\"/orders/{id}\"", "attempt=2"]
    {
        assert!(line.contains(part), "{part} in {line}");
    }
    assert!(line.contains(&format!("job={}", id.log_prefix())), "{line}");
    let held_ms = line.split("held_ms=").nth(1).and_then(|rest| rest.split(' ').next());
    let held_ms: u64 = held_ms.and_then(|ms| ms.parse().ok()).expect("a number");
    // The run before the kill, and at most one lease and one poll after it.
    assert!((20_000..45_000).contains(&held_ms), "{line}");
}
