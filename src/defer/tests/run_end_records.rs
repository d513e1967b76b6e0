//! What the log records of a run's end say: the status of its response, and its route.

use super::{
    FnReplayer, SpawnedWorker, enqueue_job, lock_key_of, outcome_with_status, wait_until_ended,
};
use crate::{
    defer::tests::DeferWorker,
    store::{CapturedLog, JobState, Store},
};

/// A refusal of the handler is `done`, like its success.
#[tokio::test(start_paused = true)]
async fn end_of_a_run_has_the_status_of_the_stored_response() {
    let (log, _reads) = CapturedLog::start_capture();
    let store = Store::memory();
    let replayer = FnReplayer::new(|head, marker| async move {
        marker.pass_own_lock(&lock_key_of(&head.target));
        let status = head.target.rsplit('/').next().and_then(|status| status.parse().ok());
        outcome_with_status(status.expect("the target ends with a status"))
    });
    let worker = SpawnedWorker::spawn_worker(DeferWorker::new(&store, replayer));
    for (target, state) in
        [("/a/200", JobState::Done), ("/b/422", JobState::Done), ("/c/500", JobState::Dead)]
    {
        let id = enqueue_job(&store, target).await;
        assert_eq!(wait_until_ended(&store, &id).await, state, "{target}");
    }
    worker.stop().await;
    log.assert_contains("outcome=\"done\" status=200");
    log.assert_contains("outcome=\"done\" status=422");
    log.assert_contains("outcome=\"failed\" then=\"dead\"");
}
