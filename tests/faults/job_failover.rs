//! Accepted requests after the master that accepted them is lost: row 6 of deferral. With an
//! acknowledgement of the replica all of them are preserved; without it, the requests that only the
//! master had are lost, and can be counted.

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

/// While the master has nobody who copies from it.
const ISOLATION_TIME: Duration = Duration::from_millis(400);

/// Until the replica is promoted: an attempt that fails is made again after twice the failover's own limit of 5 s.
const PROMOTION_TIMEOUT: Duration = Duration::from_secs(60);

/// Between two requests of a client: nobody comes near the most that a line may have.
const REQUEST_PAUSE: Duration = Duration::from_millis(5);

/// Until what was accepted has run, on a machine that has other things to do.
const RUN_TIMEOUT: Duration = Duration::from_secs(40);

/// What has run, in order.
type CompletedRuns = Arc<Mutex<Vec<String>>>;

fn recording_app(store: &Store, ran: &CompletedRuns, replicas: u32) -> Router {
    let run = async |State(ran): State<CompletedRuns>, body: String| ran.lock().push(body);
    let orders = Router::new().route("/orders/{id}", post(run)).with_state(Arc::clone(ran));
    deferring_app(store, orders, replicas)
}

fn deferring_app(store: &Store, orders: Router, replicas: u32) -> Router {
    let orders = orders
        .layer(LockLayer::by_path_param("id"))
        .layer(DeferLayer::new().defer_always().min_replicas(replicas))
        .layer(Extension(store.clone()));
    orders.merge(deferred_routes("/deferred").store(store))
}

async fn send_request(app: &Router, request: Request<Body>) -> axum::response::Response {
    app.clone().oneshot(request).await.expect("an answer")
}

/// Where its state is told, if it is accepted.
async fn enqueue_order(app: &Router, order: &str, text: &str) -> Option<String> {
    let request = Request::post(format!("/orders/{order}")).body(Body::from(text.to_owned()));
    let response = send_request(app, request.unwrap()).await;
    let location = response.headers().get("location")?.to_str().unwrap().to_owned();
    (response.status() == 202).then_some(location)
}

async fn fetch_status_code(app: &Router, location: &str) -> u16 {
    send_request(app, Request::get(location).body(Body::empty()).unwrap()).await.status().as_u16()
}

/// All that is told of it.
async fn fetch_status_text(app: &Router, location: &str) -> String {
    let answer = send_request(app, Request::get(location).body(Body::empty()).unwrap()).await;
    let body = to_bytes(answer.into_body(), 1 << 14).await.expect("a document");
    String::from_utf8_lossy(&body).into_owned()
}

#[derive(Default)]
struct AcceptanceLog {
    stop_requested: AtomicBool,
    /// Texts, and where their state is told.
    accepted: Mutex<BTreeMap<String, String>>,
    refused: Mutex<BTreeSet<String>>,
}

impl AcceptanceLog {
    /// One request after the other, each with a text of its own.
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

    /// Until so many more are accepted.
    async fn wait_for_accepted(&self, more: usize) {
        let before = self.accepted.lock().len();
        eventually("more to be accepted", async || self.accepted.lock().len() >= before + more)
            .await;
    }

    /// Those of now, which the replica has too.
    async fn replicated_jobs(&self, master: &RedisServer) -> BTreeSet<String> {
        let sure = self.accepted.lock().keys().cloned().collect();
        master.wait_for_replica("mark").await;
        sure
    }
}

async fn fail_over(all: &mut SentinelDeployment) {
    all.master.kill();
    all.replica.resume();
    let promoted = async {
        while !all.have_switched_to_replica().await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PROMOTION_TIMEOUT, promoted).await.expect("the replica is promoted");
}

/// What came of a load over a failover.
struct JobFailover {
    _deployment: SentinelDeployment,
    store: Store,
    app: Router,
    completed_runs: CompletedRuns,
    accepted: BTreeMap<String, String>,
    /// Those of `accepted` that the replica was known to have.
    replicated: BTreeSet<String>,
    refused_count: usize,
}

impl JobFailover {
    async fn run_load(replicas: u32) -> Self {
        let mut all = SentinelDeployment::start().await;
        let store = Store::connect(&all.url("x")).await.expect("the URL is right");
        let (ran, books) = (CompletedRuns::default(), Arc::new(AcceptanceLog::default()));
        let app = recording_app(&store, &ran, replicas);
        let mut clients = JoinSet::new();
        for client in 0..CLIENT_COUNT {
            clients.spawn(Arc::clone(&books).run_client(app.clone(), client));
        }
        books.wait_for_accepted(20 * CLIENT_COUNT).await;
        let sure = books.replicated_jobs(&all.master).await;
        all.master.disconnect_replica(&all.replica).await;
        if replicas == 0 {
            // As many as there are clients may have been on their way when there was a replica; the others were not.
            books.wait_for_accepted(2 * CLIENT_COUNT).await;
        }
        tokio::time::sleep(ISOLATION_TIME).await;
        fail_over(&mut all).await;
        // Nobody copies from the new one until the old one has come back as its replica.
        all.restart_old_master().await;
        books.wait_for_accepted(20 * CLIENT_COUNT).await;
        books.stop_requested.store(true, Ordering::Relaxed);
        while let Some(ended) = clients.join_next().await {
            ended.unwrap();
        }
        let (accepted, refused) = (books.accepted.lock().clone(), books.refused.lock().len());
        assert!(refused > 0, "nobody has noticed");
        Self {
            _deployment: all,
            store,
            app,
            completed_runs: ran,
            accepted,
            replicated: sure,
            refused_count: refused,
        }
    }

    /// What is lost; all else runs, and once.
    async fn find_lost_jobs(&self) -> BTreeSet<String> {
        let lost = self.unknown_jobs().await;
        self.run_remaining_jobs(&lost).await;
        let ran = self.completed_runs.lock();
        let once: BTreeSet<_> = ran.iter().cloned().collect();
        assert_eq!(once.len(), ran.len(), "none runs twice");
        assert!(once.is_disjoint(&lost), "not there, and it has run");
        let had: Vec<_> = lost.intersection(&self.replicated).collect();
        assert!(had.is_empty(), "lost, and the replica had it: {had:?}");
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
        let all = async {
            while !self.jobs_without_run(lost).is_empty() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let _ = tokio::time::timeout(RUN_TIMEOUT, all).await;
        let mut missing = Vec::new();
        for text in self.jobs_without_run(lost) {
            missing.push(format!(
                "{text}: {}",
                fetch_status_text(&self.app, &self.accepted[&text]).await
            ));
        }
        let ran = self.completed_runs.lock().len();
        assert!(missing.is_empty(), "accepted, there, and not run, as {ran} others: {missing:?}");
        drop(stop);
        let _ = worker.await;
    }

    fn jobs_without_run(&self, lost: &BTreeSet<String>) -> Vec<String> {
        let ran: BTreeSet<_> = self.completed_runs.lock().iter().cloned().collect();
        let there = self.accepted.keys().filter(|text| !lost.contains(*text));
        there.filter(|text| !ran.contains(*text)).cloned().collect()
    }

    /// Those that nobody knows of any more.
    async fn unknown_jobs(&self) -> BTreeSet<String> {
        let mut lost = BTreeSet::new();
        for (text, location) in &self.accepted {
            // On a busy machine it may take more than once to be told.
            let there = Mutex::new(None);
            eventually("an answer", async || {
                let told = fetch_status_code(&self.app, location).await;
                *there.lock() = (told != 503).then_some(told != 404);
                there.lock().is_some()
            })
            .await;
            if there.into_inner() == Some(false) {
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

/// Also this shows that what is lost is seen to be.
#[tokio::test]
async fn failover_loses_only_unreplicated_jobs() {
    let lost = JobFailover::run_load(0).await.find_lost_jobs().await;
    assert!(!lost.is_empty(), "the master wrote nothing while it was alone");
}

/// Fences of runs, as they begin and end.
type RunEvents = Arc<Mutex<Vec<(&'static str, u64)>>>;

/// A run that ends itself, or is ended.
struct OpenRun(RunEvents, u64);

impl Drop for OpenRun {
    fn drop(&mut self) {
        self.0.lock().push(("ends", self.1));
    }
}

/// The first one goes on until it is told that it has lost its lock.
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

/// Its claim is lost with the master: the run is ended, begun anew, and can store nothing over that.
#[tokio::test]
async fn unreplicated_run_is_repeated_with_larger_fence() {
    let mut all = SentinelDeployment::start().await;
    let builder = Store::builder(&all.url("x")).call_timeout(Duration::from_secs(2));
    let store = builder.connect().await.expect("the URL is right");
    let seen = RunEvents::default();
    let orders = Router::new()
        .route("/orders/{id}", post(run_until_lock_loss))
        .with_state(Arc::clone(&seen));
    let app = deferring_app(&store, orders, 0);
    let location = enqueue_order(&app, "7", "text").await.expect("it is accepted");
    let books = AcceptanceLog::default();
    books.replicated_jobs(&all.master).await;
    all.master.disconnect_replica(&all.replica).await;
    let (stop, stopped) = oneshot::channel::<()>();
    let stopped = async { drop(stopped.await) };
    let worker = tokio::spawn(DeferWorker::new(&store, app.clone()).run(stopped));
    eventually("it to run", async || !seen.lock().is_empty()).await;
    fail_over(&mut all).await;
    let response = format!("{location}/response");
    eventually("it to have run", async || fetch_status_code(&app, &response).await == 200).await;
    drop(stop);
    let _ = worker.await;
    let stored = send_request(&app, Request::get(&response).body(Body::empty()).unwrap()).await;
    let stored = to_bytes(stored.into_body(), 1 << 10).await.expect("a few bytes");
    let mut seen = seen.lock().clone();
    let (old, last) = (seen[0].1, seen.iter().rev().find(|(what, _)| *what == "begins").unwrap().1);
    assert!(last > old, "{seen:?}");
    assert_eq!(stored, last.to_string(), "the answer of the run that counts");
    // Whether it hears of its loss before the next one begins is chance; that is what fences are for.
    seen.sort_by_key(|(_, fence)| *fence);
    assert_eq!(seen, [("begins", old), ("ends", old), ("begins", last), ("ends", last)]);
}
