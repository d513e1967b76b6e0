//! Runs reported late to their worker, and failing renewals of their leases.

use std::time::Duration;

use super::{
    SECOND, SpawnedQueueWorker, TaskRunLog, push_text, scripted_worker, text_queue, wait_until_idle,
};
use crate::store::{BackendFault, faulty_store};

/// Asserts that a task runs once and succeeds, whatever faults its polls and renewals meet first.
async fn assert_runs_once(poll_faults: (BackendFault, usize), renewal_faults: usize) {
    let (store, faults) = faulty_store();
    let (queue, log) = (text_queue(&store).once(), TaskRunLog::default());
    push_text(&queue, "sleep 5000").await;
    faults.set("turn", poll_faults.0, poll_faults.1);
    faults.set("renew_runs", BackendFault::Unavailable, renewal_faults);
    let worker = SpawnedQueueWorker::start(scripted_worker(&queue, &log));
    tokio::time::sleep(SECOND * 60).await;
    assert_eq!((log.attempts(), faults.remaining("turn")), (vec![1], 0));
    let stats = queue.stats().await.unwrap();
    assert_eq!((stats.done, stats.crashed, stats.dead_letters), (1, 0, 0));
    worker.stop().await;
}

/// A poll that the store refused has started no run, so the lease of the run that starts in the end
/// is a full one.
#[tokio::test(start_paused = true)]
async fn run_lease_starts_with_the_first_uncertain_poll() {
    assert_runs_once((BackendFault::Unavailable, 13), 2).await;
}

/// The first copy of the poll starts the run, and the reply to the eleventh reports it.
#[tokio::test(start_paused = true)]
async fn run_reported_late_is_renewed_in_time() {
    assert_runs_once((BackendFault::ReplyTimeout, 10), 0).await;
}

/// The other run was renewed at 10 s and is due again at 13.3 s. The lease of this run would end at
/// 12.7 s.
#[tokio::test(start_paused = true)]
async fn run_reported_late_is_renewed_before_the_other_runs() {
    let (store, faults) = faulty_store();
    let (queue, log) = (text_queue(&store), TaskRunLog::default());
    push_text(&queue, "sleep 60000").await;
    let worker = SpawnedQueueWorker::start(scripted_worker(&queue, &log));
    tokio::time::sleep(Duration::from_millis(2_700)).await;
    faults.set("turn", BackendFault::ReplyTimeout, 10);
    push_text(&queue, "sleep 20000").await;
    tokio::time::sleep(SECOND * 8).await;
    assert_eq!((log.attempts(), faults.remaining("turn")), (vec![1, 1], 0));
    let own = text_queue(&store.as_another_process());
    let other = SpawnedQueueWorker::start(scripted_worker(&own, &log));
    tokio::time::sleep(SECOND * 60).await;
    assert_eq!(log.attempts(), [1, 1], "each attempt ran once");
    let stats = queue.stats().await.unwrap();
    assert_eq!((stats.done, stats.crashed), (2, 0));
    worker.stop().await;
    other.stop().await;
}

/// The renewal is retried until the lease ends, at a limited rate.
#[tokio::test(start_paused = true)]
async fn failed_renewal_is_retried_until_the_lease_ends() {
    let (store, faults) = faulty_store();
    let (queue, log) = (text_queue(&store).once(), TaskRunLog::default());
    push_text(&queue, "sleep 15000").await;
    let worker = SpawnedQueueWorker::start(scripted_worker(&queue, &log));
    wait_until_idle().await;
    faults.set("renew_runs", BackendFault::Unavailable, 1_000);
    tokio::time::sleep(SECOND * 9 + SECOND / 2).await;
    let renewals = faults.call_count("renew_runs");
    assert!((8..=16).contains(&renewals), "{renewals}");
    faults.set("renew_runs", BackendFault::Unavailable, 0);
    tokio::time::sleep(SECOND * 20).await;
    assert_eq!(log.attempts(), [1]);
    let stats = queue.stats().await.unwrap();
    assert_eq!((stats.done, stats.crashed), (1, 0));
    worker.stop().await;
}

/// With a lease shorter than the round trip, each claim arrives too late; the log must give the
/// reason.
#[tokio::test(start_paused = true)]
async fn lease_shorter_than_the_round_trip_is_logged_once() {
    let (store, faults) = faulty_store();
    let (queue, log) = (text_queue(&store), TaskRunLog::default());
    let (captured_log, _guard) = crate::store::CapturedLog::start_capture();
    push_text(&queue, "x").await;
    faults.set("turn", BackendFault::SlowReply(Duration::from_millis(150)), 20);
    let worker =
        SpawnedQueueWorker::start(scripted_worker(&queue, &log).lease(Duration::from_millis(100)));
    tokio::time::sleep(SECOND * 2).await;
    assert_eq!(log.attempts(), [0; 0], "each came too late");
    assert_eq!(
        captured_log.text().matches("set a longer QueueWorker::lease").count(),
        1,
        "{}",
        captured_log.text()
    );
    tokio::time::sleep(SECOND * 10).await;
    worker.stop().await;
    assert_eq!(log.attempts(), [1]);
}
