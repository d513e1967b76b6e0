//! Layers of lockgate in the remote service.

use std::{
    convert::Infallible,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response, StatusCode, request::Parts};
use http_body_util::{Empty, Full};
use hyper::{body::Incoming, server::conn::http1};
use hyper_util::{rt::TokioIo, service::TowerToHyperService};
use tokio::{net::TcpListener, sync::oneshot};
use tower::{ServiceExt as _, service_fn};
use tower_layer::Layer as _;

use super::{LEASE, request_head, secret, start_run};
use crate::{
    defer::{DeferLayer, DeferWorker, ReplayBody, ReplayOutcome, ReplayResponse, Replayer as _},
    gate::{KeySource, ReplayMarker},
    http_replay::{HttpReplayer, replay_claims::REPLAY_HEADER},
    lock::{BusyStatus, LockLayer},
    middleware::{GateLayer, PlainHttp},
    store::{BackendFault, JobId, JobState, JobView, Store, faulty_store},
};

/// Layer with the lock `name`.
fn remote_gate(name: &'static str, store: &Store) -> LockLayer<PlainHttp> {
    LockLayer::by(KeySource::function(move |_: &Parts| Some(name.to_owned()))).store(store)
}

/// Remote service of a test.
struct RemoteServer {
    addr: SocketAddr,
    /// Number of calls of its handler.
    runs: Arc<AtomicUsize>,
}

/// Spawns a handler that answers with `status`, behind a `DeferLayer` and two locks.
async fn spawn_remote_server(
    outer: LockLayer<PlainHttp>,
    inner: LockLayer<PlainHttp>,
    status: u16,
) -> RemoteServer {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let addr = listener.local_addr().expect("it is bound");
    let runs = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&runs);
    let handler = service_fn(move |_: Request<Incoming>| {
        counted.fetch_add(1, Ordering::SeqCst);
        let problem = Full::new(Bytes::from_static(br#"{"type":"urn:another"}"#));
        let answer = Response::builder().status(status);
        let answer = answer.header("content-type", "application/problem+json");
        // Without this header, the status would count as a gateway's.
        let answer = if status < 500 { answer } else { answer.header(REPLAY_HEADER, "1") };
        let answer = answer.body(problem);
        async { Ok::<_, Infallible>(answer.expect("valid")) }
    });
    let layered = GateLayer::<_, PlainHttp>::new(inner).layer(handler);
    let layered = GateLayer::<_, PlainHttp>::new(outer).layer(layered);
    let layered = GateLayer::<_, PlainHttp>::new(DeferLayer::<PlainHttp>::new()).layer(layered);
    crate::store::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            let service = TowerToHyperService::new(layered.clone());
            crate::store::spawn(
                http1::Builder::new().serve_connection(TokioIo::new(socket), service),
            );
        }
    });
    RemoteServer { addr, runs }
}

impl RemoteServer {
    fn replayer(&self, store: &Store) -> HttpReplayer {
        HttpReplayer::new(store, &format!("http://{}", self.addr), &secret(7))
    }

    async fn replay_run(&self, store: &Store, marker: &ReplayMarker) -> ReplayResponse {
        // The limit of stored bytes is zero.
        let ran =
            self.replayer(store).replay(request_head("/a"), Bytes::new(), marker.clone(), 0).await;
        let ReplayOutcome::Answered(answer) = ran else { panic!("it answers: {ran:?}") };
        assert_eq!(answer.body, ReplayBody::TooLong);
        answer
    }

    fn run_count(&self) -> usize {
        self.runs.load(Ordering::SeqCst)
    }
}

#[tokio::test]
async fn busy_remote_lock_counts_as_a_busy_nested_lock() {
    for status in [
        BusyStatus::Conflict,
        BusyStatus::Locked,
        BusyStatus::TooManyRequests,
        BusyStatus::Unavailable,
    ] {
        let store = Store::memory();
        let remote_store = store.as_another_process();
        let (_hold, marker) = start_run(&store).await;
        let own = || remote_gate("order", &remote_store);
        let other = remote_gate("other", &remote_store).busy_status(status);
        // The busy lock is the inner one, or the job's own if the worker's delegation is not
        // trusted.
        let held = remote_store.lock("other").acquire().await.expect("it is free");
        let nested =
            spawn_remote_server(own().trust_delegation(&secret(7)), other.clone(), 200).await;
        let distrusted = spawn_remote_server(own().busy_status(status), other, 200).await;
        for server in [&nested, &distrusted] {
            let answer = server.replay_run(&store, &marker).await;
            assert!(marker.met_busy_lock_with(answer.status), "{status:?}");
            assert_eq!(server.run_count(), 0, "{status:?}");
        }
        held.release().await;
        assert_eq!(nested.replay_run(&store, &marker).await.status, 200);
        assert!(!marker.met_busy_lock_with(200) && nested.run_count() == 1, "{status:?}");
    }
}

#[tokio::test]
async fn unavailable_remote_store_runs_no_handler() {
    let store = Store::memory();
    let (failing_store, faults) = faulty_store();
    let (_hold, marker) = start_run(&store).await;
    let own = remote_gate("order", &store.as_another_process()).trust_delegation(&secret(7));
    let server = spawn_remote_server(own, remote_gate("other", &failing_store), 200).await;
    faults.set("acquire", BackendFault::Unavailable, 1);
    assert_eq!(server.replay_run(&store, &marker).await.status, 503);
    assert!(marker.met_busy_lock_with(503));
    assert_eq!(server.run_count(), 0);
}

/// The handler's body is a problem document of another type.
#[tokio::test]
async fn conflict_status_of_the_handler_is_not_a_busy_lock() {
    let store = Store::memory();
    let remote_store = store.as_another_process();
    let (_hold, marker) = start_run(&store).await;
    for status in [409, 423, 429, 503] {
        let own = remote_gate("order", &remote_store).trust_delegation(&secret(7));
        let server = spawn_remote_server(own, remote_gate("other", &remote_store), status).await;
        assert_eq!(server.replay_run(&store, &marker).await.status, status);
        assert!(!marker.met_busy_lock_with(status), "{status}");
        assert_eq!(server.run_count(), 1, "{status}");
    }
}

async fn wait_for_job(store: &Store, id: &JobId, condition: impl Fn(&JobView) -> bool) -> JobView {
    let polls = async {
        loop {
            let job = store.backend().job_view(id.clone()).await;
            let job = job.expect("the store is there").expect("it is stored");
            if condition(&job) {
                return job;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), polls).await.expect("it comes to that")
}

/// A job from its 202 to its end, through a busy remote lock. The remote layers must not defer the
/// run again, which would never end, and their refusal is not the job's answer.
#[tokio::test]
async fn job_waits_uncharged_for_a_remote_lock() {
    let store = Store::memory();
    let remote_store = store.as_another_process();
    let server = spawn_remote_server(
        remote_gate("order", &remote_store).trust_delegation(&secret(7)),
        remote_gate("other", &remote_store),
        200,
    )
    .await;
    let first = store.as_another_process().lock("order").acquire().await.expect("it is free");
    let held = remote_store.lock("other").acquire().await.expect("it is free");
    let unreached =
        service_fn(|_| async { Ok::<_, Infallible>(Response::new(Empty::<Bytes>::new())) });
    let service = GateLayer::<_, PlainHttp>::new(remote_gate("order", &store)).layer(unreached);
    let service = GateLayer::<_, PlainHttp>::new(DeferLayer::<PlainHttp>::new()).layer(service);
    let request = Request::post("/a").body(Empty::<Bytes>::new()).expect("valid");
    let answer = service.oneshot(request).await.expect("it does not fail");
    assert_eq!(answer.status(), StatusCode::ACCEPTED);
    let location = answer.headers()["location"].to_str().expect("text");
    let id = JobId::parse(location.trim_start_matches("/deferred/")).expect("an id");
    let worker =
        DeferWorker::<PlainHttp>::with_replayer(&store, server.replayer(&store)).lease(LEASE);
    let (stop, stopped) = oneshot::channel::<()>();
    let worker = crate::store::spawn(worker.run(async { drop(stopped.await) }));
    first.release().await;
    let met_busy_lock = |job: &JobView| job.reason.as_deref() == Some("busy");
    let job = wait_for_job(&store, &id, met_busy_lock).await;
    assert_eq!((job.state, job.attempts, server.run_count()), (JobState::Queued, 0, 0));
    held.release().await;
    let job = wait_for_job(&store, &id, |job| !job.state.is_pending()).await;
    assert_eq!((job.state, job.attempts, server.run_count()), (JobState::Done, 1, 1));
    stop.send(()).expect("it runs");
    worker.await.expect("it ends well");
}
