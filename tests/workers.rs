//! Limits that workers of several processes share, on the embedded store and on Redis.

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

/// When each run began and ended, in the order of their ends.
type RunIntervals = Arc<Mutex<Vec<(Instant, Instant)>>>;

/// An order is charged later, in any case; meanwhile the store is asked, so that others would have all the time to begin.
fn recording_app(store: &Store, log: &RunIntervals) -> Router {
    let (asked, log) = (store.clone(), Arc::clone(log));
    let charge = move |Path(_): Path<String>| async move {
        let began = Instant::now();
        for _ in 0..5 {
            asked.ping().await.expect("it is there");
            tokio::task::yield_now().await;
        }
        log.lock().push((began, Instant::now()));
    };
    Router::new()
        .route("/orders/{id}", post(charge))
        .layer(LockLayer::by_path_param("id"))
        .layer(DeferLayer::new().defer_always())
        .layer(Extension(store.clone()))
}

/// So many orders of as many resources, run by two processes.
async fn run_orders(
    case: &TestCase,
    jobs: usize,
    limited: fn(DeferWorker) -> DeferWorker,
) -> Vec<(Instant, Instant)> {
    let log = RunIntervals::default();
    let (mut stops, mut ends) = (Vec::new(), Vec::new());
    let mut last = None;
    for _ in 0..2 {
        let store = case.new_store().await;
        let app = recording_app(&store, &log);
        let (stop, stopped) = oneshot::channel::<()>();
        stops.push(stop);
        let worker = limited(DeferWorker::new(&store, app.clone()));
        ends.push(tokio::spawn(worker.run(async {
            let _ = stopped.await;
        })));
        last = Some(app);
    }
    let app = last.expect("two of them");
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
    let at = |moment: Instant| {
        runs.iter().filter(|(began, ended)| *began <= moment && moment < *ended).count()
    };
    let most = runs.iter().map(|(began, _)| at(*began)).max();
    assert!(most.is_some_and(|most| most <= 2), "{most:?} at once");
}

/// The first at once, then one each 50 ms: what is late makes none of the others early.
async fn queue_rate_limits_starts_of_all_workers(case: TestCase) {
    let second = Duration::from_secs(1);
    let limited = |worker: DeferWorker| worker.queue_rate(20, Duration::from_secs(1));
    let runs = run_orders(&case, 30, limited).await;
    let first = runs.iter().map(|(began, _)| *began).min().expect("they ran");
    let last = runs.iter().map(|(began, _)| *began).max().expect("they ran");
    // Nine tenths, since the first may have been late.
    assert!(last - first > second * 29 / 20 * 9 / 10, "{:?}", last - first);
}
