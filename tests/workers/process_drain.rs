//! Drain of one process by an operator: its workers finish what runs and start nothing more, and
//! those of the other process do the rest.

use std::sync::Arc;

use axum::{Extension, Router, body::Body, extract::Path, http::Request, routing::post};
use lockgate::{
    Store,
    admin::{Admin, Operator, Permission},
    queue::{Task, TaskFailure},
};
use lockgate_axum::{DeferLayer, DeferWorker, LockLayer};
use lockgate_tests::{SyncPoints, TestCase, eventually, on_both_stores};
use parking_lot::Mutex;
use tokio::task::JoinHandle;
use tower::ServiceExt as _;

on_both_stores!(
    drained_process_starts_no_deferred_request,
    drained_process_finishes_its_run_and_leaves_the_next,
    drained_process_starts_no_task,
);

/// Process and subject of each run.
type RunLog = Arc<Mutex<Vec<(&'static str, String)>>>;

/// Service of two processes, and its operator.
struct Service {
    case: TestCase,
    admin: Admin,
    operator: Store,
    runs: RunLog,
    gates: SyncPoints,
    nodes: Vec<String>,
    workers: Vec<JoinHandle<()>>,
}

impl Service {
    async fn new(case: TestCase) -> Self {
        let operator = case.new_store().await;
        let admin = operator.admin(Operator::new("ada", Permission::Act));
        let (runs, gates) = (RunLog::default(), SyncPoints::default());
        Self { case, admin, operator, runs, gates, nodes: Vec::new(), workers: Vec::new() }
    }

    /// Starts a process with a worker for deferred requests, and returns its routes. A run stops
    /// at the gate of its order's name, if that is closed.
    async fn start_process(&mut self, name: &'static str) -> Router {
        let store = self.case.new_store().await;
        let (runs, gates) = (Arc::clone(&self.runs), self.gates.clone());
        let pay = move |Path((id, note)): Path<(String, String)>| {
            runs.lock().push((name, note.clone()));
            let gates = gates.clone();
            async move {
                if id == "held" {
                    gates.wait_at(&note).await;
                }
            }
        };
        let app = Router::new()
            .route("/orders/{id}/{note}", post(pay))
            .layer(LockLayer::by_path_param("id"))
            .layer(DeferLayer::new().background())
            .layer(Extension(store.clone()));
        let worker = DeferWorker::new(&store, app.clone()).run(std::future::pending());
        self.workers.push(tokio::spawn(worker));
        self.await_new_node().await;
        app
    }

    /// Starts a process with a worker for tasks.
    async fn start_queue_worker(&mut self, name: &'static str) {
        let (store, runs) = (self.case.new_store().await, Arc::clone(&self.runs));
        let worker = store.queue::<String>("texts").worker(move |task: Task<String>| {
            runs.lock().push((name, task.payload));
            async { Ok::<(), TaskFailure>(()) }
        });
        self.workers.push(tokio::spawn(worker.run(std::future::pending())));
        self.await_new_node().await;
    }

    async fn await_new_node(&mut self) {
        let mut found = None;
        eventually("the process to answer", async || {
            let fleet = self.operator.fleet().await.expect("the store answers");
            let nodes = fleet.processes.into_iter().map(|process| process.node);
            found = nodes.into_iter().find(|node| !self.nodes.contains(node));
            found.is_some()
        })
        .await;
        self.nodes.extend(found);
    }

    async fn await_runs(&self, count: usize) {
        eventually("the runs", async || self.runs.lock().len() >= count).await;
    }

    fn take_runs(&self) -> Vec<(&'static str, String)> {
        std::mem::take(&mut *self.runs.lock())
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.workers.iter().for_each(JoinHandle::abort);
    }
}

async fn defer(app: &Router, target: &str) {
    let request = Request::post(target).body(Body::empty()).expect("valid");
    let answer = app.clone().oneshot(request).await.expect("it does not fail");
    assert_eq!(answer.status(), 202);
}

async fn drained_process_starts_no_deferred_request(case: TestCase) {
    let mut service = Service::new(case).await;
    let (app, _) = (service.start_process("first").await, service.start_process("second").await);
    let nodes = service.nodes.clone();
    for (drained, resumed, name) in [(0, 1, "second"), (1, 0, "first")] {
        let resume = service.admin.resume_process(&nodes[resumed], "it is well").await;
        resume.expect("it answers");
        service.admin.drain_process(&nodes[drained], "it is being replaced").await.expect("it too");
        let fleet = service.operator.fleet().await.expect("the store answers");
        let is_draining = |node: &String| fleet.process(node).map(|process| process.draining);
        let draining = (is_draining(&nodes[drained]), is_draining(&nodes[resumed]));
        assert_eq!(draining, (Some(true), Some(false)));
        // The process of the routes goes on to serve, drained or not.
        for order in 0..30 {
            defer(&app, &format!("/orders/{order}/{order}")).await;
        }
        service.await_runs(30).await;
        let runs = service.take_runs();
        assert!(runs.iter().all(|(ran_in, _)| *ran_in == name), "{runs:?}");
        assert_eq!(runs.len(), 30, "each once");
    }
}

/// The second request waits for the lock of the first, so that one chain would run both.
async fn drained_process_finishes_its_run_and_leaves_the_next(case: TestCase) {
    let mut service = Service::new(case).await;
    let app = service.start_process("first").await;
    defer(&app, "/orders/held/one").await;
    service.gates.wait_for_arrival("one").await;
    defer(&app, "/orders/held/two").await;
    let second = service.start_process("second").await;
    service.admin.drain_process(&service.nodes[0], "it misbehaves").await.expect("it answers");
    service.gates.open("one");
    service.gates.open("two");
    service.await_runs(2).await;
    let runs = [("first", "one".to_owned()), ("second", "two".to_owned())];
    assert_eq!(service.take_runs(), runs);
    // Nor does it start what comes up later.
    defer(&second, "/orders/7/three").await;
    service.await_runs(1).await;
    assert_eq!(service.take_runs(), [("second", "three".to_owned())]);
}

async fn drained_process_starts_no_task(case: TestCase) {
    let mut service = Service::new(case).await;
    service.start_queue_worker("first").await;
    service.start_queue_worker("second").await;
    let (queue, nodes) = (service.operator.queue::<String>("texts"), service.nodes.clone());
    for (drained, resumed, name) in [(0, 1, "second"), (1, 0, "first")] {
        let resume = service.admin.resume_process(&nodes[resumed], "it is well").await;
        resume.expect("it answers");
        service.admin.drain_process(&nodes[drained], "it is being replaced").await.expect("it too");
        for number in 0..30 {
            queue.push(&number.to_string()).await.expect("there is room");
        }
        service.await_runs(30).await;
        let runs = service.take_runs();
        assert!(runs.iter().all(|(ran_in, _)| *ran_in == name), "{runs:?}");
        assert_eq!(runs.len(), 30, "each once");
    }
}
