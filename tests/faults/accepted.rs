//! What was accepted, when the master is gone that accepted it: row 6 of deferral. On a replica's word all of it is
//! there; without, what the master alone had is lost, and can be counted.

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
use lockgate_tests::{Sentinels, Server, eventually};
use parking_lot::Mutex;
use tokio::{sync::oneshot, task::JoinSet};
use tower::ServiceExt as _;

const CLIENTS: usize = 8;

/// While the master has nobody who copies from it.
const ALONE: Duration = Duration::from_millis(400);

/// Until the replica is promoted: an attempt that fails is made again after twice the failover's own limit of 5 s.
const AWAY: Duration = Duration::from_secs(60);

/// Between two requests of a client: nobody comes near the most that a line may have.
const PAUSE: Duration = Duration::from_millis(5);

/// Until what was accepted has run, on a machine that has other things to do.
const TO_RUN: Duration = Duration::from_secs(40);

/// What has run, in order.
type Ran = Arc<Mutex<Vec<String>>>;

fn app(store: &Store, ran: &Ran, replicas: u32) -> Router {
    let run = async |State(ran): State<Ran>, body: String| ran.lock().push(body);
    let orders = Router::new().route("/orders/{id}", post(run)).with_state(Arc::clone(ran));
    deferring(store, orders, replicas)
}

fn deferring(store: &Store, orders: Router, replicas: u32) -> Router {
    let orders = orders
        .layer(LockLayer::by_path_param("id"))
        .layer(DeferLayer::new().defer_always().min_replicas(replicas))
        .layer(Extension(store.clone()));
    orders.merge(deferred_routes("/deferred").store(store))
}

async fn ask(app: &Router, request: Request<Body>) -> axum::response::Response {
    app.clone().oneshot(request).await.expect("an answer")
}

/// Where its state is told, if it is accepted.
async fn accepted(app: &Router, order: &str, text: &str) -> Option<String> {
    let request = Request::post(format!("/orders/{order}")).body(Body::from(text.to_owned()));
    let response = ask(app, request.unwrap()).await;
    let location = response.headers().get("location")?.to_str().unwrap().to_owned();
    (response.status() == 202).then_some(location)
}

async fn status(app: &Router, location: &str) -> u16 {
    ask(app, Request::get(location).body(Body::empty()).unwrap()).await.status().as_u16()
}

/// All that is told of it.
async fn told(app: &Router, location: &str) -> String {
    let answer = ask(app, Request::get(location).body(Body::empty()).unwrap()).await;
    let body = to_bytes(answer.into_body(), 1 << 14).await.expect("a document");
    String::from_utf8_lossy(&body).into_owned()
}

#[derive(Default)]
struct Books {
    stop: AtomicBool,
    /// Texts, and where their state is told.
    accepted: Mutex<BTreeMap<String, String>>,
    refused: Mutex<BTreeSet<String>>,
}

impl Books {
    /// One request after the other, each with a text of its own.
    async fn go_round(self: Arc<Self>, app: Router, client: usize) {
        for n in 0.. {
            if self.stop.load(Ordering::Relaxed) {
                return;
            }
            let text = format!("{client}:{n}");
            match accepted(&app, &client.to_string(), &text).await {
                Some(location) => _ = self.accepted.lock().insert(text, location),
                None => _ = self.refused.lock().insert(text),
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Until so many more are accepted.
    async fn accepts(&self, more: usize) {
        let before = self.accepted.lock().len();
        eventually("more to be accepted", async || self.accepted.lock().len() >= before + more)
            .await;
    }

    /// Those of now, which the replica has too.
    async fn on_the_replica(&self, master: &Server) -> BTreeSet<String> {
        let sure = self.accepted.lock().keys().cloned().collect();
        master.replica_has_it_all("mark").await;
        sure
    }
}

async fn fails_over(all: &mut Sentinels) {
    all.master.kill();
    all.replica.resume();
    let promoted = async {
        while !all.all_left_the_old_one().await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(AWAY, promoted).await.expect("the replica is promoted");
}

/// What came of a load over a failover.
struct Load {
    _all: Sentinels,
    store: Store,
    app: Router,
    ran: Ran,
    accepted: BTreeMap<String, String>,
    /// Those of `accepted` that the replica was known to have.
    sure: BTreeSet<String>,
    refused: usize,
}

impl Load {
    async fn over_a_failover(replicas: u32) -> Self {
        let mut all = Sentinels::start().await;
        let store = Store::connect(&all.url("x")).await.expect("the URL is right");
        let (ran, books) = (Ran::default(), Arc::new(Books::default()));
        let app = app(&store, &ran, replicas);
        let mut clients = JoinSet::new();
        for client in 0..CLIENTS {
            clients.spawn(Arc::clone(&books).go_round(app.clone(), client));
        }
        books.accepts(20 * CLIENTS).await;
        let sure = books.on_the_replica(&all.master).await;
        all.master.cut_off(&all.replica).await;
        if replicas == 0 {
            // As many as there are clients may have been on their way when there was a replica; the others were not.
            books.accepts(2 * CLIENTS).await;
        }
        tokio::time::sleep(ALONE).await;
        fails_over(&mut all).await;
        // Nobody copies from the new one until the old one has come back as its replica.
        all.old_one_comes_back().await;
        books.accepts(20 * CLIENTS).await;
        books.stop.store(true, Ordering::Relaxed);
        while let Some(ended) = clients.join_next().await {
            ended.unwrap();
        }
        let (accepted, refused) = (books.accepted.lock().clone(), books.refused.lock().len());
        assert!(refused > 0, "nobody has noticed");
        Self { _all: all, store, app, ran, accepted, sure, refused }
    }

    /// What is lost; all else runs, and once.
    async fn judge(&self) -> BTreeSet<String> {
        let lost = self.lost().await;
        self.runs_all_but(&lost).await;
        let ran = self.ran.lock();
        let once: BTreeSet<_> = ran.iter().cloned().collect();
        assert_eq!(once.len(), ran.len(), "none runs twice");
        assert!(once.is_disjoint(&lost), "not there, and it has run");
        let had: Vec<_> = lost.intersection(&self.sure).collect();
        assert!(had.is_empty(), "lost, and the replica had it: {had:?}");
        println!(
            "{} accepted, {} refused; the replica surely had {}",
            self.accepted.len(),
            self.refused,
            self.sure.len()
        );
        println!("figure: accepted and lost {}", lost.len());
        lost
    }

    async fn runs_all_but(&self, lost: &BTreeSet<String>) {
        let (stop, stopped) = oneshot::channel::<()>();
        let stopped = async { drop(stopped.await) };
        let worker = tokio::spawn(DeferWorker::new(&self.store, self.app.clone()).run(stopped));
        let all = async {
            while !self.missing(lost).is_empty() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let _ = tokio::time::timeout(TO_RUN, all).await;
        let mut missing = Vec::new();
        for text in self.missing(lost) {
            missing.push(format!("{text}: {}", told(&self.app, &self.accepted[&text]).await));
        }
        let ran = self.ran.lock().len();
        assert!(missing.is_empty(), "accepted, there, and not run, as {ran} others: {missing:?}");
        drop(stop);
        let _ = worker.await;
    }

    fn missing(&self, lost: &BTreeSet<String>) -> Vec<String> {
        let ran: BTreeSet<_> = self.ran.lock().iter().cloned().collect();
        let there = self.accepted.keys().filter(|text| !lost.contains(*text));
        there.filter(|text| !ran.contains(*text)).cloned().collect()
    }

    /// Those that nobody knows of any more.
    async fn lost(&self) -> BTreeSet<String> {
        let mut lost = BTreeSet::new();
        for (text, location) in &self.accepted {
            // On a busy machine it may take more than once to be told.
            let there = Mutex::new(None);
            eventually("an answer", async || {
                let told = status(&self.app, location).await;
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
async fn what_is_accepted_with_a_replica_outlives_the_master() {
    let lost = Load::over_a_failover(1).await.judge().await;
    assert!(lost.is_empty(), "accepted, and not there: {lost:?}");
}

/// Also this shows that what is lost is seen to be.
#[tokio::test]
async fn of_what_is_accepted_without_a_replica_only_what_none_had_is_lost() {
    let lost = Load::over_a_failover(0).await.judge().await;
    assert!(!lost.is_empty(), "the master wrote nothing while it was alone");
}

/// Fences of runs, as they begin and end.
type Runs = Arc<Mutex<Vec<(&'static str, u64)>>>;

/// A run that ends itself, or is ended.
struct Open(Runs, u64);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.lock().push(("ends", self.1));
    }
}

/// The first one goes on until it is told that it has lost its lock.
async fn run(State(runs): State<Runs>, CurrentLock(lock): CurrentLock) -> String {
    let fence = lock.fence().expect("it is held");
    let first = runs.lock().is_empty();
    runs.lock().push(("begins", fence));
    let _open = Open(runs, fence);
    if first {
        lock.lost().await;
    }
    fence.to_string()
}

/// Its claim is lost with the master: the run is ended, begun anew, and can store nothing over that.
#[tokio::test]
async fn a_run_that_the_replica_has_not_heard_of_is_lost_and_fenced_off() {
    let mut all = Sentinels::start().await;
    let builder = Store::builder(&all.url("x")).call_timeout(Duration::from_secs(2));
    let store = builder.connect().await.expect("the URL is right");
    let seen = Runs::default();
    let orders = Router::new().route("/orders/{id}", post(run)).with_state(Arc::clone(&seen));
    let app = deferring(&store, orders, 0);
    let location = accepted(&app, "7", "text").await.expect("it is accepted");
    let books = Books::default();
    books.on_the_replica(&all.master).await;
    all.master.cut_off(&all.replica).await;
    let (stop, stopped) = oneshot::channel::<()>();
    let stopped = async { drop(stopped.await) };
    let worker = tokio::spawn(DeferWorker::new(&store, app.clone()).run(stopped));
    eventually("it to run", async || !seen.lock().is_empty()).await;
    fails_over(&mut all).await;
    let response = format!("{location}/response");
    eventually("it to have run", async || status(&app, &response).await == 200).await;
    drop(stop);
    let _ = worker.await;
    let stored = ask(&app, Request::get(&response).body(Body::empty()).unwrap()).await;
    let stored = to_bytes(stored.into_body(), 1 << 10).await.expect("a few bytes");
    let mut seen = seen.lock().clone();
    let (old, last) = (seen[0].1, seen.iter().rev().find(|(what, _)| *what == "begins").unwrap().1);
    assert!(last > old, "{seen:?}");
    assert_eq!(stored, last.to_string(), "the answer of the run that counts");
    // Whether it hears of its loss before the next one begins is chance; that is what fences are for.
    seen.sort_by_key(|(_, fence)| *fence);
    assert_eq!(seen, [("begins", old), ("ends", old), ("begins", last), ("ends", last)]);
}
