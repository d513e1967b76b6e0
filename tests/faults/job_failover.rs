//! Accepted requests after the loss of the master that accepted them: row 6 of deferral. With a
//! replica acknowledgement all of them survive. Without it, the requests that only the master had
//! are lost and counted.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use axum::{
    Extension, Router,
    body::{Body, to_bytes},
    extract::State,
    http::Request,
    routing::post,
};
use lockgate_axum::{CurrentLock, DeferLayer, DeferWorker, LockLayer, Store, deferred_routes};
use lockgate_tests::{RedisServer, SentinelDeployment, eventually};
use parking_lot::Mutex;
use tokio::{sync::oneshot, task::JoinSet};
use tower::ServiceExt as _;

const CLIENT_COUNT: usize = 8;

/// Time during which the master has no replica.
const ISOLATION_TIME: Duration = Duration::from_millis(400);

/// Time until the replica is promoted: a failed attempt is repeated after twice the failover
/// timeout of 5 s.
const PROMOTION_TIMEOUT: Duration = Duration::from_secs(60);

/// Pause between two requests of a client; it keeps the queues below their limit.
const REQUEST_PAUSE: Duration = Duration::from_millis(5);

/// Time until all accepted jobs have run, on a loaded machine.
const RUN_TIMEOUT: Duration = Duration::from_secs(40);

/// Texts of completed runs, in order.
type CompletedRuns = Arc<Mutex<Vec<String>>>;

fn recording_app(store: &Store, ran: &CompletedRuns, replicas: u32) -> Router {
    let run = async |State(ran): State<CompletedRuns>, body: String| ran.lock().push(body);
    let orders = Router::new().route("/orders/{id}", post(run)).with_state(Arc::clone(ran));
    deferring_app(store, orders, replicas)
}

fn deferring_app(store: &Store, orders: Router, replicas: u32) -> Router {
    let orders = orders
        .layer(LockLayer::by_path_param("id"))
        .layer(DeferLayer::new().background().min_replicas(replicas))
        .layer(Extension(store.clone()));
    orders.merge(deferred_routes("/deferred").store(store))
}

async fn send_request(app: &Router, request: Request<Body>) -> axum::response::Response {
    app.clone().oneshot(request).await.expect("an answer")
}

/// Sends an order and returns its status URL if it is accepted.
async fn enqueue_order(app: &Router, order: &str, text: &str) -> Option<String> {
    let request = Request::post(format!("/orders/{order}")).body(Body::from(text.to_owned()));
    let response = send_request(app, request.unwrap()).await;
    let location = response.headers().get("location")?.to_str().unwrap().to_owned();
    (response.status() == 202).then_some(location)
}

async fn fetch_status_code(app: &Router, location: &str) -> u16 {
    send_request(app, Request::get(location).body(Body::empty()).unwrap()).await.status().as_u16()
}

/// Returns the status document as text.
async fn fetch_status_text(app: &Router, location: &str) -> String {
    let answer = send_request(app, Request::get(location).body(Body::empty()).unwrap()).await;
    let body = to_bytes(answer.into_body(), 1 << 14).await.expect("a document");
    String::from_utf8_lossy(&body).into_owned()
}

#[derive(Default)]
struct AcceptanceLog {
    stop_requested: AtomicBool,
    /// Status URLs of accepted orders, by text.
    accepted: Mutex<BTreeMap<String, String>>,
    refused: Mutex<BTreeSet<String>>,
}

impl AcceptanceLog {
    /// Sends one order after the other, each with its own text.
    async fn run_client(self: Arc<Self>, app: Router, client: usize) {
        for n in 0.. {
            if self.stop_requested.load(Ordering::Relaxed) {
                return;
            }
            let text = format!("{client}:{n}");
            match enqueue_order(&app, &client.to_string(), &text).await {
                Some(location) => _ = self.accepted.lock().insert(text, location),
                None => _ = self.refused.lock().insert(text),
            }
            tokio::time::sleep(REQUEST_PAUSE).await;
        }
    }

    /// Waits until this many more orders are accepted.
    async fn wait_for_accepted(&self, more: usize) {
        let before = self.accepted.lock().len();
        eventually("more to be accepted", async || self.accepted.lock().len() >= before + more)
            .await;
    }

    /// Returns the orders accepted until now, after the replica has received them.
    async fn replicated_jobs(&self, master: &RedisServer) -> BTreeSet<String> {
        let replicated = self.accepted.lock().keys().cloned().collect();
        master.wait_for_replica("mark").await;
        replicated
    }
}

async fn fail_over(deployment: &mut SentinelDeployment) {
    deployment.master.kill();
    deployment.replica.resume();
    let promoted = async {
        while !deployment.have_switched_to_replica().await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PROMOTION_TIMEOUT, promoted).await.expect("the replica is promoted");
}

/// Result of a load with a failover.
struct JobFailover {
    _deployment: SentinelDeployment,
    store: Store,
    app: Router,
    completed_runs: CompletedRuns,
    accepted: BTreeMap<String, String>,
    /// Accepted orders that were known to be replicated.
    replicated: BTreeSet<String>,
    refused_count: usize,
}

impl JobFailover {
    async fn run_load(replicas: u32) -> Self {
        let mut deployment = SentinelDeployment::start().await;
        let store = Store::connect(&deployment.url("x")).await.expect("the URL is right");
        let (completed_runs, log) = (CompletedRuns::default(), Arc::new(AcceptanceLog::default()));
        let app = recording_app(&store, &completed_runs, replicas);
        let mut clients = JoinSet::new();
        for client in 0..CLIENT_COUNT {
            clients.spawn(Arc::clone(&log).run_client(app.clone(), client));
        }
        log.wait_for_accepted(20 * CLIENT_COUNT).await;
        let replicated = log.replicated_jobs(&deployment.master).await;
        deployment.master.disconnect_replica(&deployment.replica).await;
        if replicas == 0 {
            // One request per client may have been in flight when the replica disconnected; the
            // others are unreplicated.
            log.wait_for_accepted(2 * CLIENT_COUNT).await;
        }
        tokio::time::sleep(ISOLATION_TIME).await;
        fail_over(&mut deployment).await;
        // The new master has no replica until the old one has restarted as its replica.
        deployment.restart_old_master().await;
        log.wait_for_accepted(20 * CLIENT_COUNT).await;
        log.stop_requested.store(true, Ordering::Relaxed);
        while let Some(ended) = clients.join_next().await {
            ended.unwrap();
        }
        let (accepted, refused) = (log.accepted.lock().clone(), log.refused.lock().len());
        assert!(refused > 0, "no request met the outage");
        Self {
            _deployment: deployment,
            store,
            app,
            completed_runs,
            accepted,
            replicated,
            refused_count: refused,
        }
    }

    /// Returns the lost jobs, and checks that all others run exactly once.
    async fn find_lost_jobs(&self) -> BTreeSet<String> {
        let lost = self.unknown_jobs().await;
        self.run_remaining_jobs(&lost).await;
        let completed_runs = self.completed_runs.lock();
        let distinct_runs: BTreeSet<_> = completed_runs.iter().cloned().collect();
        assert_eq!(distinct_runs.len(), completed_runs.len(), "none runs twice");
        assert!(distinct_runs.is_disjoint(&lost), "not there, and it has run");
        let replicated_and_lost: Vec<_> = lost.intersection(&self.replicated).collect();
        assert!(
            replicated_and_lost.is_empty(),
            "lost, and the replica had it: {replicated_and_lost:?}"
        );
        println!(
            "{} accepted, {} refused; the replica surely had {}",
            self.accepted.len(),
            self.refused_count,
            self.replicated.len()
        );
        println!("figure: accepted and lost {}", lost.len());
        lost
    }

    async fn run_remaining_jobs(&self, lost: &BTreeSet<String>) {
        let (stop, stopped) = oneshot::channel::<()>();
        let stopped = async { drop(stopped.await) };
        let worker = tokio::spawn(DeferWorker::new(&self.store, self.app.clone()).run(stopped));
        let all_run = async {
            while !self.jobs_without_run(lost).is_empty() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let _ = tokio::time::timeout(RUN_TIMEOUT, all_run).await;
        let mut missing = Vec::new();
        for text in self.jobs_without_run(lost) {
            missing.push(format!(
                "{text}: {}",
                fetch_status_text(&self.app, &self.accepted[&text]).await
            ));
        }
        let run_count = self.completed_runs.lock().len();
        assert!(
            missing.is_empty(),
            "accepted, there, and not run, as {run_count} others: {missing:?}"
        );
        drop(stop);
        let _ = worker.await;
    }

    fn jobs_without_run(&self, lost: &BTreeSet<String>) -> Vec<String> {
        let completed: BTreeSet<_> = self.completed_runs.lock().iter().cloned().collect();
        let remaining = self.accepted.keys().filter(|text| !lost.contains(*text));
        remaining.filter(|text| !completed.contains(*text)).cloned().collect()
    }

    /// Returns the jobs whose status is 404.
    async fn unknown_jobs(&self) -> BTreeSet<String> {
        let mut lost = BTreeSet::new();
        for (text, location) in &self.accepted {
            // On a loaded machine a status request may need retries.
            let is_known = Mutex::new(None);
            eventually("an answer", async || {
                let status = fetch_status_code(&self.app, location).await;
                *is_known.lock() = (status != 503).then_some(status != 404);
                is_known.lock().is_some()
            })
            .await;
            if is_known.into_inner() == Some(false) {
                lost.insert(text.clone());
            }
        }
        lost
    }
}

#[tokio::test]
async fn replicated_jobs_survive_master_failure() {
    let lost = JobFailover::run_load(1).await.find_lost_jobs().await;
    assert!(lost.is_empty(), "accepted, and not there: {lost:?}");
}

/// Shows too that a loss is detected by this test.
#[tokio::test]
async fn failover_loses_only_unreplicated_jobs() {
    let lost = JobFailover::run_load(0).await.find_lost_jobs().await;
    assert!(!lost.is_empty(), "the master wrote nothing while it was alone");
}

/// Starts and ends of runs with their fences.
type RunEvents = Arc<Mutex<Vec<(&'static str, u64)>>>;

/// Records the end of a run, whether it completes or is dropped.
struct OpenRun(RunEvents, u64);

impl Drop for OpenRun {
    fn drop(&mut self) {
        self.0.lock().push(("ends", self.1));
    }
}

/// The first run continues until it has lost its lock.
async fn run_until_lock_loss(
    State(runs): State<RunEvents>,
    CurrentLock(lock): CurrentLock,
) -> String {
    let fence = lock.fence().expect("it is held");
    let first = runs.lock().is_empty();
    runs.lock().push(("begins", fence));
    let _open = OpenRun(runs, fence);
    if first {
        lock.lost().await;
    }
    fence.to_string()
}

/// The claim is lost with the master: the run is stopped and repeated, and the old run cannot
/// overwrite the result.
#[tokio::test]
async fn unreplicated_run_is_repeated_with_larger_fence() {
    let mut deployment = SentinelDeployment::start().await;
    let builder = Store::builder(&deployment.url("x")).call_timeout(Duration::from_secs(2));
    let store = builder.connect().await.expect("the URL is right");
    let events = RunEvents::default();
    let orders = Router::new()
        .route("/orders/{id}", post(run_until_lock_loss))
        .with_state(Arc::clone(&events));
    let app = deferring_app(&store, orders, 0);
    let location = enqueue_order(&app, "7", "text").await.expect("it is accepted");
    let log = AcceptanceLog::default();
    log.replicated_jobs(&deployment.master).await;
    deployment.master.disconnect_replica(&deployment.replica).await;
    let (stop, stopped) = oneshot::channel::<()>();
    let stopped = async { drop(stopped.await) };
    let worker = tokio::spawn(DeferWorker::new(&store, app.clone()).run(stopped));
    eventually("it to run", async || !events.lock().is_empty()).await;
    fail_over(&mut deployment).await;
    let response = format!("{location}/response");
    eventually("it to have run", async || fetch_status_code(&app, &response).await == 200).await;
    drop(stop);
    let _ = worker.await;
    let stored = send_request(&app, Request::get(&response).body(Body::empty()).unwrap()).await;
    let stored = to_bytes(stored.into_body(), 1 << 10).await.expect("a few bytes");
    let mut events = events.lock().clone();
    let (first_fence, last_fence) =
        (events[0].1, events.iter().rev().find(|(event, _)| *event == "begins").unwrap().1);
    assert!(last_fence > first_fence, "{events:?}");
    assert_eq!(stored, last_fence.to_string(), "the answer of the run that counts");
    // The order of the loss and the next start is random; fences make it harmless.
    events.sort_by_key(|(_, fence)| *fence);
    assert_eq!(
        events,
        [
            ("begins", first_fence),
            ("ends", first_fence),
            ("begins", last_fence),
            ("ends", last_fence)
        ]
    );
}
