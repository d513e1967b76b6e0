//! Workers of several processes, on the embedded store and on Redis: limits that they share, and
//! the drain of one process.

#[path = "workers/process_drain.rs"]
mod process_drain;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use axum::{
    Extension, Router,
    body::Body,
    extract::{Path, Request},
    routing::post,
};
use lockgate::Store;
use lockgate_axum::{DeferLayer, DeferWorker, LockLayer};
use lockgate_tests::{TestCase, eventually, on_both_stores};
use parking_lot::Mutex;
use tokio::sync::oneshot;
use tower::ServiceExt as _;

on_both_stores!(
    queue_concurrency_limits_runs_of_all_workers,
    queue_rate_limits_starts_of_all_workers
);

/// Start and end of each run, in the order of the ends.
type RunIntervals = Arc<Mutex<Vec<(Instant, Instant)>>>;

/// Each order is always deferred. Its handler calls the store while it runs, so that a second run
/// would have time to start.
fn recording_app(store: &Store, log: &RunIntervals) -> Router {
    let (handler_store, log) = (store.clone(), Arc::clone(log));
    let charge = move |Path(_): Path<String>| async move {
        let started = Instant::now();
        for _ in 0..5 {
            handler_store.ping().await.expect("it is there");
            tokio::task::yield_now().await;
        }
        log.lock().push((started, Instant::now()));
    };
    Router::new()
        .route("/orders/{id}", post(charge))
        .layer(LockLayer::by_path_param("id"))
        .layer(DeferLayer::new().background())
        .layer(Extension(store.clone()))
}

/// Runs orders of as many resources in two processes.
async fn run_orders(
    case: &TestCase,
    jobs: usize,
    limited: fn(DeferWorker) -> DeferWorker,
) -> Vec<(Instant, Instant)> {
    let log = RunIntervals::default();
    let (mut stops, mut ends) = (Vec::new(), Vec::new());
    let mut last_app = None;
    for _ in 0..2 {
        let store = case.new_store().await;
        let app = recording_app(&store, &log);
        let (stop, stopped) = oneshot::channel::<()>();
        stops.push(stop);
        let worker = limited(DeferWorker::new(&store, app.clone()));
        ends.push(tokio::spawn(worker.run(async {
            let _ = stopped.await;
        })));
        last_app = Some(app);
    }
    let app = last_app.expect("two of them");
    for n in 0..jobs {
        let request = Request::post(format!("/orders/{n}")).body(Body::empty()).expect("valid");
        let answer = app.clone().oneshot(request).await.expect("it does not fail");
        assert_eq!(answer.status(), 202);
    }
    eventually("all to run", async || log.lock().len() == jobs).await;
    drop(stops);
    for end in ends {
        end.await.expect("it ends well");
    }
    let runs = log.lock().clone();
    assert_eq!(runs.len(), jobs, "each once");
    runs
}

async fn queue_concurrency_limits_runs_of_all_workers(case: TestCase) {
    let runs = run_orders(&case, 40, |worker| worker.concurrency(16).queue_concurrency(2)).await;
    let active_at = |moment: Instant| {
        runs.iter().filter(|(started, ended)| *started <= moment && moment < *ended).count()
    };
    let max_active = runs.iter().map(|(started, _)| active_at(*started)).max();
    assert!(max_active.is_some_and(|max_active| max_active <= 2), "{max_active:?} at once");
}

/// The first run starts at once, then one each 50 ms; a late start does not permit an early one.
async fn queue_rate_limits_starts_of_all_workers(case: TestCase) {
    let second = Duration::from_secs(1);
    let limited = |worker: DeferWorker| worker.queue_rate(20, Duration::from_secs(1));
    let runs = run_orders(&case, 30, limited).await;
    let first = runs.iter().map(|(started, _)| *started).min().expect("they ran");
    let last = runs.iter().map(|(started, _)| *started).max().expect("they ran");
    // A tenth less, since the first start may be late.
    assert!(last - first > second * 29 / 20 * 9 / 10, "{:?}", last - first);
}
