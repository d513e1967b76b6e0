//! Worker and status resource on the embedded store, with tokio's clock paused.

mod cancelled_runs;
mod client_visible_settings;
mod dispatch_order;
mod due_retries;
pub(crate) mod job_administration;
mod job_and_waiter_order;
mod job_search;
mod job_stepper;
mod log_messages;
mod long_polls;
mod lost_holder;
mod many_locks;
mod missing_worker;
mod queue_limits;
mod quota_inside_lock;
mod run_authorization;
mod run_end_records;
mod run_outcomes;
mod shard_takeover;
mod status_resource;
mod store_faults;
mod trace_context;
mod two_workers;
mod user_wiring;
mod webhooks;
mod worker_capabilities;
mod worker_shutdown;

use std::{collections::HashMap, future::pending, sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::{FutureExt as _, future::BoxFuture};
use parking_lot::Mutex;
use tokio::{sync::oneshot, task::JoinHandle};

use super::{
    ReplayBody, ReplayOutcome, ReplayResponse, Replayer,
    envelope::{EnvelopeBinding, encode_request},
};
use crate::{
    gate::{HttpRequestHead, ReplayMarker},
    key::Key,
    store::{
        EnqueueCommand, EnqueueOutcome, JobId, JobPolicy, JobState, JobView, StorageLimits, Store,
    },
};

const SECOND: Duration = Duration::from_secs(1);

/// Worker without a framework: it runs jobs through the replayer of a test.
type DeferWorker = super::DeferWorker<()>;

impl DeferWorker {
    fn new(store: &Store, replayer: impl Replayer) -> Self {
        Self::with_replayer(store, replayer)
    }
}

/// Replayer that counts runs by target. The end of the target selects its behavior.
#[derive(Clone, Default)]
struct CountingReplayer(Arc<Mutex<HashMap<String, u32>>>);

impl CountingReplayer {
    /// Number of runs of a target.
    fn run_count(&self, target: &str) -> u32 {
        self.0.lock().get(target).copied().unwrap_or(0)
    }
}

impl Replayer for CountingReplayer {
    fn replay(
        &self,
        head: HttpRequestHead,
        body: Bytes,
        marker: ReplayMarker,
        _: usize,
    ) -> BoxFuture<'static, ReplayOutcome> {
        *self.0.lock().entry(head.target.clone()).or_default() += 1;
        assert!(!head.target.ends_with("/panic"), "outside of the future");
        let long = head.target.ends_with("/long");
        async move {
            // The job's own `LockLayer` does this when it admits the run.
            marker.pass_own_lock(&lock_key_of(&head.target));
            ReplayOutcome::Answered(ReplayResponse {
                status: 200,
                headers: Vec::new(),
                body: if long { ReplayBody::TooLong } else { ReplayBody::Full(body) },
            })
        }
        .boxed()
    }
}

/// Replayer made of a function.
#[derive(Clone)]
struct FnReplayer(
    Arc<dyn Fn(HttpRequestHead, ReplayMarker) -> BoxFuture<'static, ReplayOutcome> + Send + Sync>,
);

impl FnReplayer {
    fn new<F>(run: impl Fn(HttpRequestHead, ReplayMarker) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = ReplayOutcome> + Send + 'static,
    {
        Self(Arc::new(move |head, marker| run(head, marker).boxed()))
    }
}

impl Replayer for FnReplayer {
    fn replay(
        &self,
        head: HttpRequestHead,
        _: Bytes,
        marker: ReplayMarker,
        _: usize,
    ) -> BoxFuture<'static, ReplayOutcome> {
        (self.0)(head, marker)
    }
}

fn outcome_with_status(status: u16) -> ReplayOutcome {
    let body = ReplayBody::Full(Bytes::new());
    ReplayOutcome::Answered(ReplayResponse { status, headers: Vec::new(), body })
}

/// The lock of `/<name>/..` is `<name>`.
fn lock_key_of(target: &str) -> Key {
    Key::custom(target.split(['/', '?']).nth(1).expect("a path"))
}

/// Worker task that runs until `stop` or `kill`.
struct SpawnedWorker {
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl SpawnedWorker {
    fn spawn_on(store: &Store, routes: &CountingReplayer) -> Self {
        Self::spawn_worker(DeferWorker::new(store, routes.clone()))
    }

    fn spawn_worker(worker: DeferWorker) -> Self {
        let (stop, stopped) = oneshot::channel::<()>();
        let task = crate::store::spawn(worker.run(async {
            if stopped.await.is_err() {
                pending::<()>().await;
            }
        }));
        Self { stop, task }
    }

    async fn stop(self) {
        self.stop.send(()).expect("it runs");
        self.task.await.expect("it ends well");
    }

    /// Aborts the task without a settlement, as in a crash.
    async fn kill(self) {
        self.task.abort();
        assert!(self.task.await.is_err_and(|error| error.is_cancelled()));
    }
}

/// Enqueues a job with one attempt.
async fn enqueue_job(store: &Store, target: &str) -> JobId {
    enqueue_with_attempts(store, target, 1, Vec::new()).await
}

/// Enqueues a request as a job with one attempt.
async fn enqueue_request(store: &Store, head: HttpRequestHead, body: &[u8]) -> JobId {
    send_enqueue(store, enqueue_command(store, head, body)).await
}

/// Command that enqueues a request as a job with one attempt.
fn enqueue_command(store: &Store, head: HttpRequestHead, body: &[u8]) -> EnqueueCommand {
    let key = lock_key_of(&head.target);
    let id = JobId::new(&key);
    let at = EnvelopeBinding { store, id: &id, lock: &key };
    let envelope = encode_request(at, head.clone(), head.headers, Vec::new(), 1, None, body);
    envelope_command(key.clone(), id, 1, envelope)
}

/// Enqueues a job with `max_attempts` attempts and extension snapshots.
async fn enqueue_with_attempts(
    store: &Store,
    target: &str,
    max_attempts: u32,
    snapshots: Vec<(String, Vec<u8>)>,
) -> JobId {
    let key = lock_key_of(target);
    let head = HttpRequestHead::new("POST", target, Vec::new(), None);
    let id = JobId::new(&key);
    let at = EnvelopeBinding { store, id: &id, lock: &key };
    let envelope = encode_request(at, head, Vec::new(), snapshots, max_attempts, None, b"body");
    send_enqueue(store, envelope_command(key.clone(), id, max_attempts, envelope)).await
}

/// Command that enqueues the given envelope.
fn envelope_command(key: Key, id: JobId, max_attempts: u32, envelope: Bytes) -> EnqueueCommand {
    let policy =
        JobPolicy { retry_after_crash: max_attempts > 1, max_attempts, ..JobPolicy::default() };
    EnqueueCommand {
        envelope,
        id,
        key,
        policy,
        idempotency_record: None,
        merge: None,
        limits: StorageLimits {
            resource_jobs: 1_000,
            resource_bytes: 1_000_000,
            shard_jobs: 1_000,
            shard_bytes: 1_000_000,
            ..StorageLimits::NONE
        },
        owner: String::new(),
        route: String::new(),
        webhook: None,
    }
}

/// Enqueues a job with one attempt and a delay.
async fn enqueue_delayed(store: &Store, target: &str, delay: Duration) -> JobId {
    let call =
        enqueue_command(store, HttpRequestHead::new("POST", target, Vec::new(), None), b"body");
    send_enqueue(
        store,
        EnqueueCommand { policy: JobPolicy { delay, ..JobPolicy::default() }, ..call },
    )
    .await
}

async fn send_enqueue(store: &Store, call: EnqueueCommand) -> JobId {
    let id = call.id.clone();
    let stored = store.backend().enqueue(call).await;
    assert!(matches!(stored, Ok(EnqueueOutcome::Stored { .. })), "{stored:?}");
    id
}

async fn get_job(store: &Store, id: &JobId) -> JobView {
    let job = store.backend().job_view(id.clone()).await;
    job.expect("the store is there").expect("it is stored")
}

/// Waits until the job has ended and returns its state.
async fn wait_until_ended(store: &Store, id: &JobId) -> JobState {
    let state = async {
        loop {
            let job = get_job(store, id).await;
            if !job.state.is_pending() {
                return job.state;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    // On the paused clock; longer than every lease, shard watch and backoff.
    tokio::time::timeout(Duration::from_secs(600), state).await.expect("the job ends")
}

/// Runs all runnable tasks: the paused clock advances only when every task is idle.
async fn let_tasks_settle() {
    tokio::time::sleep(Duration::from_millis(200)).await;
}

#[test]
fn invalid_queue_rate_is_a_config_error() {
    for (requests, per) in [(0, SECOND), (1, Duration::ZERO), (1, Duration::MAX)] {
        let worker = DeferWorker::new(&Store::memory(), CountingReplayer::default());
        let error = worker.try_queue_rate(requests, per).expect_err("it is refused");
        assert_eq!(error.kind(), crate::ErrorKind::Config);
    }
}

#[test]
fn invalid_header_name_is_a_config_error() {
    let defer_layer = super::DeferLayer::<()>::new;
    let worker = DeferWorker::new(&Store::memory(), CountingReplayer::default());
    let refused = [
        defer_layer().try_keep_header("x pass").map(drop),
        defer_layer().try_credential_header("x pass").map(drop),
        worker.try_keep_response_header("x pass").map(drop),
    ];
    for result in refused {
        assert_eq!(result.expect_err("it is refused").kind(), crate::ErrorKind::Config);
    }
    assert!(defer_layer().try_keep_header("X-Pass").is_ok());
}

#[test]
fn invalid_status_path_is_a_config_error() {
    for path in ["/deferred?x", "/de ferred", "/d\u{e9}"] {
        let error = super::DeferLayer::<()>::new().try_status_path(path).err();
        assert_eq!(error.expect("it is refused").kind(), crate::ErrorKind::Config);
    }
}
