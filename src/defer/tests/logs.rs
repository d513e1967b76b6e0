//! What the log says of deferred requests: a line for each end, and nothing that opens one.

use std::time::Duration;

use bytes::Bytes;

use super::{
    Function, SECOND, Working, answered, ended, key_of, look, put_in, put_late, put_off,
    put_off_request, request, settled, stored_as,
};
use crate::{
    defer::{DeferWorker, ReplayOutcome, StatusGate, StatusReply},
    gate::{HttpRequestHead, fake::FakeView},
    store::{EnqueueCommand, Fault, JobId, JobPolicy, JobState, Log, Store, faulty},
};

/// In the query, in a field and in the body of each request.
const SECRET: &str = "DE89370400440532013000";

/// An id of a job is what opens its status: 34 hex digits. A node has 16.
#[track_caller]
fn opens_nothing(log: &Log, ids: &[JobId]) {
    let text = log.text();
    let runs = text.split(|c: char| !c.is_ascii_hexdigit());
    let longest = runs.max_by_key(|run| run.len()).unwrap_or_default();
    assert!(longest.len() <= 16, "{longest} in:\n{text}");
    assert!(!text.contains(SECRET), "{text}");
    for id in ids {
        assert!(!text.contains(id.as_str()), "{id:?} in:\n{text}");
    }
}

/// A request that has secrets wherever it can.
fn head(target: &str) -> HttpRequestHead {
    let fields = vec![("x-account".to_owned(), SECRET.as_bytes().to_vec())];
    HttpRequestHead::new("POST", format!("{target}?account={SECRET}"), fields, None)
}

async fn put(store: &Store, target: &str) -> JobId {
    put_off_request(store, head(target), SECRET.as_bytes()).await
}

/// What the last part of the path says.
fn obedient() -> Function {
    Function::new(|head, marker| async move {
        let path = head.target.split('?').next().unwrap_or_default().to_owned();
        let what = path.rsplit('/').next().unwrap_or_default();
        if what != "nowhere" && what != "beside" {
            marker.pass(&key_of(&head.target));
        }
        match what {
            "login" => answered(401),
            "nowhere" => answered(404),
            "broken" => answered(500),
            "panics" => ReplayOutcome::Panicked,
            "endless" => std::future::pending().await,
            _ => answered(200),
        }
    })
}

#[tokio::test(start_paused = true)]
async fn each_end_of_a_run_is_told_and_opens_nothing() {
    let (log, _reads) = Log::begin();
    let store = Store::memory();
    let worker = Working::with(DeferWorker::new(&store, obedient()));
    settled().await;
    let mut ids = Vec::new();
    for (what, state) in [
        ("fine", JobState::Done),
        ("login", JobState::Dead),
        ("beside", JobState::Dead),
        ("broken", JobState::Dead),
        ("panics", JobState::Dead),
    ] {
        let id = put(&store, &format!("/{what}/{what}")).await;
        assert_eq!(ended(&store, &id).await, state, "{what}");
        ids.push(id);
    }
    let key = key_of("/unreadable");
    let unreadable = stored_as(key.clone(), JobId::new(&key), 1, Bytes::from_static(b"\x01\xff"));
    ids.push(put_in(&store, unreadable).await);
    assert_eq!(ended(&store, &ids[5]).await, JobState::Dead);
    ids.push(put(&store, "/nowhere/nowhere").await);
    settled().await;
    worker.stop().await;
    for line in [
        "worker started",
        "run started",
        "run ended",
        "deferred request refused by authentication; give the worker the routes inside",
        "a deferred request was answered without passing its LockLayer; give the worker the same",
        "deferred request can't be read: it was changed or moved",
        "deferred request matches no route of this worker",
        "worker stops",
        "worker stopped",
    ] {
        log.has(line);
    }
    opens_nothing(&log, &ids);
}

#[tokio::test(start_paused = true)]
async fn what_goes_wrong_with_the_store_is_told_and_opens_nothing() {
    let (log, _reads) = Log::begin();
    let (store, faults) = faulty();
    let worker = Working::with(DeferWorker::new(&store, obedient()));
    settled().await;
    faults.set("claim", Fault::NoReply, 2);
    faults.set("settle", Fault::NoReply, 1);
    let mut ids = vec![put(&store, "/7/fine").await];
    assert_eq!(ended(&store, &ids[0]).await, JobState::Done);
    assert_eq!((faults.left("claim"), faults.left("settle")), (0, 0));
    // Its lock is lost under it.
    ids.push(put(&store, "/8/endless").await);
    settled().await;
    faults.set("renew", Fault::Away, 1_000);
    tokio::time::sleep(30 * SECOND).await;
    faults.set("renew", Fault::Away, 0);
    worker.die().await;
    // Its worker is dead, and another one finds that.
    let other = store.as_another_process();
    ids.push(put(&store, "/9/endless").await);
    let dies = Working::with(DeferWorker::new(&other, obedient()));
    while look(&store, &ids[2]).await.state != JobState::Running {
        tokio::time::sleep(SECOND).await;
    }
    dies.die().await;
    let third = store.as_another_process();
    let finds = Working::with(DeferWorker::new(&third, obedient()));
    assert_eq!(ended(&store, &ids[2]).await, JobState::Dead);
    finds.stop().await;
    for line in [
        "claim failed",
        "settling failed",
        "run abandoned: lock lost",
        "deferred request has ended: crashed, lost or too late",
    ] {
        log.has(line);
    }
    opens_nothing(&log, &ids);
}

#[tokio::test(start_paused = true)]
async fn what_a_status_is_asked_for_is_told_and_opens_nothing() {
    let (log, _reads) = Log::begin();
    let (store, faults) = faulty();
    let ids = [put_off(&store, "/7").await, put_late(&store, "/8", SECOND).await];
    let ask = async |method, id: &JobId| {
        let gate = StatusGate::new().store(&store);
        let asked = gate.parse_request(&mut FakeView::new(method), id.as_str(), false);
        match asked.expect("it is well formed").execute().await {
            StatusReply::Complete(reply) => reply.status,
            StatusReply::Events(..) => panic!("it streams"),
        }
    };
    assert_eq!(ask("DELETE", &ids[0]).await, 204);
    faults.set("job", Fault::Away, 100);
    assert_eq!(ask("GET", &ids[1]).await, 503);
    log.has("deferred request cancelled");
    log.has("no status: store away");
    opens_nothing(&log, &ids);
}

/// Also of a worker that can't be told apart from none.
#[tokio::test(start_paused = true)]
async fn a_queue_that_nobody_works_on_is_told_and_opens_nothing() {
    let (log, _reads) = Log::begin();
    let store = Store::memory();
    let call = request(&store, head("/7/fine"), SECRET.as_bytes());
    let policy = JobPolicy { delay: Duration::from_secs(5), ..JobPolicy::default() };
    let id = put_in(&store, EnqueueCommand { policy, ..call }).await;
    let workers = store.extension::<crate::defer::missing_worker_warning::MissingWorkerWarning>();
    for _ in 0..3 {
        workers.check_workers(&store, &id).await;
        tokio::time::sleep(11 * SECOND).await;
    }
    let line = "requests are deferred and no worker is alive to run them: spawn a DeferWorker";
    assert_eq!(log.text().matches(line).count(), 1, "{}", log.text());
    opens_nothing(&log, &[id]);
}
