//! What was accepted on a replica's word is there when the master is not: row 6 of deferral, with `replicas(1)`.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use axum::{Extension, Router, body::Body, extract::State, http::Request, routing::post};
use lockgate_axum::{DeferLayer, DeferWorker, LockLayer, Store};
use lockgate_tests::{Sentinels, eventually};
use parking_lot::Mutex;
use tokio::task::JoinSet;
use tower::ServiceExt as _;

const CLIENTS: usize = 8;

/// While the master has nobody who copies from it.
const ALONE: Duration = Duration::from_millis(400);

/// Until what was accepted has run, on a machine that has other things to do.
const TO_RUN: Duration = Duration::from_secs(40);

/// What has run, in order.
type Ran = Arc<Mutex<Vec<String>>>;

fn app(store: &Store, ran: &Ran) -> Router {
    let run = async |State(ran): State<Ran>, body: String| ran.lock().push(body);
    Router::new()
        .route("/orders/{id}", post(run))
        .layer(LockLayer::by_path_param("id"))
        .layer(DeferLayer::new().defer_always().replicas(1))
        .layer(Extension(store.clone()))
        .with_state(Arc::clone(ran))
}

#[derive(Default)]
struct Books {
    stop: AtomicBool,
    accepted: Mutex<BTreeSet<String>>,
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
            let request = Request::post(format!("/orders/{client}")).body(Body::from(text.clone()));
            let response = app.clone().oneshot(request.unwrap()).await.unwrap();
            if response.status() == 202 {
                self.accepted.lock().insert(text);
            } else {
                self.refused.lock().insert(text);
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
    }

    /// Until so many more are accepted.
    async fn accepts(&self, more: usize) {
        let before = self.accepted.lock().len();
        eventually("more to be accepted", async || self.accepted.lock().len() >= before + more)
            .await;
    }
}

#[tokio::test]
async fn what_is_accepted_with_a_replica_outlives_the_master() {
    let mut all = Sentinels::start().await;
    let store = Store::connect(&all.url("x")).await.expect("the URL is right");
    let (ran, books) = (Ran::default(), Arc::new(Books::default()));
    let app = app(&store, &ran);
    let mut clients = JoinSet::new();
    for client in 0..CLIENTS {
        clients.spawn(Arc::clone(&books).go_round(app.clone(), client));
    }
    books.accepts(20 * CLIENTS).await;
    // From now on the master writes for itself alone: a 202 of this time would be lost with it.
    all.replica.pause();
    let mut cut = redis::cmd("CLIENT");
    cut.arg("KILL").arg("TYPE").arg("replica");
    let _: i64 = cut.query_async(&mut all.master.connection().await).await.unwrap();
    tokio::time::sleep(ALONE).await;
    all.master.kill();
    all.replica.resume();
    eventually("the replica to be promoted", async || all.all_left_the_old_one().await).await;
    // Nobody copies from the new one until the old one has come back as its replica.
    all.master.restart().await;
    books.accepts(20 * CLIENTS).await;
    books.stop.store(true, Ordering::Relaxed);
    while let Some(ended) = clients.join_next().await {
        ended.unwrap();
    }
    let (accepted, refused) = (books.accepted.lock().clone(), books.refused.lock().len());
    assert!(refused > 0, "nobody has noticed");

    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let stopped = async { drop(stopped.await) };
    let worker = tokio::spawn(DeferWorker::new(&store, app).run(stopped));
    let missing = || {
        let ran = ran.lock().iter().cloned().collect();
        accepted.difference(&ran).cloned().collect::<Vec<_>>()
    };
    let all = async {
        while !missing().is_empty() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let _ = tokio::time::timeout(TO_RUN, all).await;
    assert_eq!(missing(), [""; 0], "accepted, and not run");
    drop(stop);
    let _ = worker.await;
    let ran = ran.lock();
    let once: BTreeSet<_> = ran.iter().collect();
    assert_eq!(once.len(), ran.len(), "none runs twice");
    println!("figure: accepted {}", accepted.len());
    println!("figure: lost 0");
    println!("figure: refused {refused}");
}
