//! Log records of deferred jobs: one for each end, without secrets and job ids.

use std::time::Duration;

use bytes::Bytes;

use super::{
    FnReplayer, SECOND, SpawnedWorker, enqueue_command, enqueue_delayed, enqueue_job,
    enqueue_request, envelope_command, get_job, let_tasks_settle, lock_key_of, outcome_with_status,
    send_enqueue, wait_until_ended,
};
use crate::{
    defer::{ReplayOutcome, StatusReply, StatusResource, tests::DeferWorker},
    gate::{HttpRequestHead, fake_request::FakeGateRequest},
    store::{
        BackendFault, CapturedLog, EnqueueCommand, JobId, JobPolicy, JobState, Store, faulty_store,
    },
};

/// Secret in the query, in a header and in the body of each request.
const SECRET: &str = "DE89370400440532013000";

/// A job id, 34 hex digits, grants access to the job's status. A node id has 16 digits.
#[track_caller]
fn assert_no_secrets(log: &CapturedLog, ids: &[JobId]) {
    let text = log.text();
    let digit_runs = text.split(|c: char| !c.is_ascii_hexdigit());
    let longest = digit_runs.max_by_key(|run| run.len()).unwrap_or_default();
    assert!(longest.len() <= 16, "{longest} in:\n{text}");
    assert!(!text.contains(SECRET), "{text}");
    for id in ids {
        assert!(!text.contains(id.as_str()), "{id:?} in:\n{text}");
    }
}

/// Request head with `SECRET` in its query and in a header.
fn secret_request_head(target: &str) -> HttpRequestHead {
    let headers = vec![("x-account".to_owned(), SECRET.as_bytes().to_vec())];
    HttpRequestHead::new("POST", format!("{target}?account={SECRET}"), headers, None)
}

async fn enqueue_secret_request(store: &Store, target: &str) -> JobId {
    enqueue_request(store, secret_request_head(target), SECRET.as_bytes()).await
}

/// Replayer whose outcome is selected by the last segment of the path.
fn scripted_replayer() -> FnReplayer {
    FnReplayer::new(|head, marker| async move {
        let path = head.target.split('?').next().unwrap_or_default().to_owned();
        let scenario = path.rsplit('/').next().unwrap_or_default();
        if scenario != "nowhere" && scenario != "beside" {
            marker.pass_own_lock(&lock_key_of(&head.target));
        }
        match scenario {
            "login" => outcome_with_status(401),
            "nowhere" => outcome_with_status(404),
            "broken" => outcome_with_status(500),
            "panics" => ReplayOutcome::Panicked,
            "endless" => std::future::pending().await,
            _ => outcome_with_status(200),
        }
    })
}

#[tokio::test(start_paused = true)]
async fn each_run_end_is_logged_without_secrets() {
    let (log, _reads) = CapturedLog::start_capture();
    let store = Store::memory();
    let worker = SpawnedWorker::spawn_worker(DeferWorker::new(&store, scripted_replayer()));
    let_tasks_settle().await;
    let mut ids = Vec::new();
    for (scenario, state) in [
        ("fine", JobState::Done),
        ("login", JobState::Dead),
        ("beside", JobState::Dead),
        ("broken", JobState::Dead),
        ("panics", JobState::Dead),
    ] {
        let id = enqueue_secret_request(&store, &format!("/{scenario}/{scenario}")).await;
        assert_eq!(wait_until_ended(&store, &id).await, state, "{scenario}");
        ids.push(id);
    }
    let key = lock_key_of("/unreadable");
    let unreadable =
        envelope_command(key.clone(), JobId::new(&key), 1, Bytes::from_static(b"\x01\xff"));
    ids.push(send_enqueue(&store, unreadable).await);
    assert_eq!(wait_until_ended(&store, &ids[5]).await, JobState::Dead);
    ids.push(enqueue_secret_request(&store, "/nowhere/nowhere").await);
    let_tasks_settle().await;
    worker.stop().await;
    for line in [
        "worker started",
        "run started",
        "run ended",
        "run refused by authentication; put the worker's routes inside the authentication layer",
        "the run did not pass its LockLayer; give the worker the same routes",
        "the stored request was modified or moved; the job is dead",
        "no route of this worker matches the job",
        "worker is draining",
        // The job without a route is left, and the store is in memory.
        "worker stopped; the deferred requests that have not run are lost",
        "lost=1",
        "method=\"POST\"",
        "status=500 reason=\"failed\" then=\"dead\"",
        "reason=\"panicked\" then=\"dead\"",
        "outcome=\"failed\" then=\"dead\"",
    ] {
        log.assert_contains(line);
    }
    for id in &ids {
        log.assert_contains(&format!("job={} ", id.log_prefix()));
    }
    assert_no_secrets(&log, &ids);
}

#[tokio::test(start_paused = true)]
async fn store_faults_are_logged_without_secrets() {
    let (log, _reads) = CapturedLog::start_capture();
    let (store, faults) = faulty_store();
    let worker = SpawnedWorker::spawn_worker(DeferWorker::new(&store, scripted_replayer()));
    let_tasks_settle().await;
    faults.set("claim", BackendFault::ReplyTimeout, 2);
    faults.set("settle", BackendFault::ReplyTimeout, 1);
    let mut ids = vec![enqueue_secret_request(&store, "/7/fine").await];
    assert_eq!(wait_until_ended(&store, &ids[0]).await, JobState::Done);
    assert_eq!((faults.remaining("claim"), faults.remaining("settle")), (0, 0));
    // The second job loses its lock during the run.
    ids.push(enqueue_secret_request(&store, "/8/endless").await);
    let_tasks_settle().await;
    faults.set("renew", BackendFault::Unavailable, 1_000);
    tokio::time::sleep(30 * SECOND).await;
    faults.set("renew", BackendFault::Unavailable, 0);
    worker.kill().await;
    // The worker of the third job is killed; another worker detects the crash.
    let other = store.as_another_process();
    ids.push(enqueue_secret_request(&store, "/9/endless").await);
    let killed_worker = SpawnedWorker::spawn_worker(DeferWorker::new(&other, scripted_replayer()));
    while get_job(&store, &ids[2]).await.state != JobState::Running {
        tokio::time::sleep(SECOND).await;
    }
    killed_worker.kill().await;
    let third = store.as_another_process();
    let next_worker = SpawnedWorker::spawn_worker(DeferWorker::new(&third, scripted_replayer()));
    assert_eq!(wait_until_ended(&store, &ids[2]).await, JobState::Dead);
    next_worker.stop().await;
    for line in [
        "claim failed",
        "settlement failed",
        "run abandoned: lock lost",
        "job is dead: the process of its run crashed or lost its lock, so it may have run",
    ] {
        log.assert_contains(line);
    }
    assert_no_secrets(&log, &ids);
}

#[tokio::test(start_paused = true)]
async fn status_requests_are_logged_without_secrets() {
    let (log, _reads) = CapturedLog::start_capture();
    let (store, faults) = faulty_store();
    let ids = [enqueue_job(&store, "/7").await, enqueue_delayed(&store, "/8", SECOND).await];
    let status_of = async |method, id: &JobId| {
        let gate = StatusResource::new().store(&store);
        let request = gate.parse_request(&mut FakeGateRequest::new(method), id.as_str(), false);
        match request.expect("it is well formed").execute().await {
            StatusReply::Complete(reply) => reply.status,
            StatusReply::Events(..) => panic!("it streams"),
        }
    };
    assert_eq!(status_of("DELETE", &ids[0]).await, 204);
    faults.set("job", BackendFault::Unavailable, 100);
    assert_eq!(status_of("GET", &ids[1]).await, 503);
    log.assert_contains("job cancelled");
    log.assert_contains("no status: the store is unavailable");
    assert_no_secrets(&log, &ids);
}

#[tokio::test(start_paused = true)]
async fn missing_worker_is_logged_without_secrets() {
    let (log, _reads) = CapturedLog::start_capture();
    let store = Store::memory();
    let call = enqueue_command(&store, secret_request_head("/7/fine"), SECRET.as_bytes());
    let policy = JobPolicy { delay: Duration::from_secs(5), ..JobPolicy::default() };
    let id = send_enqueue(&store, EnqueueCommand { policy, ..call }).await;
    let workers = store.extension::<crate::defer::missing_worker_warning::MissingWorkerWarning>();
    for _ in 0..3 {
        workers.check_workers(&store, &id).await;
        tokio::time::sleep(11 * SECOND).await;
    }
    let line = "requests are deferred and no worker is alive; start a DeferWorker on this store";
    assert_eq!(log.text().matches(line).count(), 1, "{}", log.text());
    assert_no_secrets(&log, &[id]);
}
