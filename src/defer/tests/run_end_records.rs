//! What the log records of a run's end say: the status of its response, and its route.

use super::{
    FnReplayer, SpawnedWorker, enqueue_job, let_tasks_settle, lock_key_of, outcome_with_status,
    send_enqueue, wait_until_ended,
};
use crate::{
    defer::{
        envelope::{EnvelopeBinding, encode_request},
        tests::{DeferWorker, envelope_command},
    },
    gate::HttpRequestHead,
    store::{CapturedLog, JobId, JobState, Store},
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

/// The route is known from the request, although the run has reached none. The worker has the
/// routes without the prefix of the server, or without the layers.
#[tokio::test(start_paused = true)]
async fn faults_of_the_workers_routes_have_the_route_of_the_request() {
    let (log, _reads) = CapturedLog::start_capture();
    let store = Store::memory();
    let replayer = FnReplayer::new(|head, _| async move {
        outcome_with_status(match head.target.as_str() {
            "/unknown/7" => 404,
            "/refused/7" => 401,
            _ => 200,
        })
    });
    let worker = SpawnedWorker::spawn_worker(DeferWorker::new(&store, replayer));
    for target in ["/unknown/7", "/refused/7", "/unlocked/7"] {
        let key = lock_key_of(target);
        let (id, head) = (JobId::new(&key), HttpRequestHead::new("POST", target, Vec::new(), None));
        let at = EnvelopeBinding { store: &store, id: &id, lock: &key };
        let route = Some(target.replace('7', "{id}"));
        let envelope = encode_request(at, head, Vec::new(), Vec::new(), 1, route.as_deref(), b"");
        send_enqueue(&store, envelope_command(key.clone(), id, 1, envelope)).await;
    }
    let_tasks_settle().await;
    worker.stop().await;
    let text = log.text();
    for (route, status, message) in [
        (
            "/unknown/{id}",
            404,
            "no route of this worker matches the job; give the worker the whole",
        ),
        ("/refused/{id}", 401, "run refused by authentication"),
        ("/unlocked/{id}", 200, "the run did not pass its LockLayer"),
    ] {
        let line = text.lines().find(|line| line.contains(message)).expect("it is logged");
        let fields = format!("method=\"POST\" route=\"{route}\" status={status}");
        assert!(line.contains(" ERROR ") && line.contains(&fields), "{line}");
    }
}
