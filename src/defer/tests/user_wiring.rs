//! The three parts that carry a user, and the reports of a missing one.
//!
//! Layers, workers and stores are counted for each thread in unit tests, so each test has a thread
//! of its own, however many of them the runner uses.

mod several_stores;
mod start_warnings;

use std::{
    any::Any,
    future::pending,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

use super::{
    CountingReplayer, SECOND, SpawnedWorker, enqueue_command, enqueue_job, enqueue_with_attempts,
    let_tasks_settle, send_enqueue, status_resource::complete_reply,
};
use crate::{
    defer::{
        DeferLayer, ExtensionSnapshot, ReplayOutcome, Replayer, RequestUser, StatusResource,
        tests::DeferWorker,
    },
    error::ErrorKind,
    gate::{Gate as _, HttpRequestHead, ReplayMarker, fake_request::FakeGateRequest},
    store::{CapturedLog, EnqueueCommand, JobId, Store},
    testing::TestKit,
};

#[derive(Debug, Clone, Serialize, Deserialize)]
struct CarriedUser(u64);

impl ExtensionSnapshot for CarriedUser {
    const NAME: &'static str = "user";
}

impl RequestUser for CarriedUser {
    fn owner(&self) -> String {
        format!("user:{}", self.0)
    }
}

/// Runs a test in a thread of its own, on a runtime whose clock stands still.
fn on_new_thread<F: Future<Output = ()> + 'static>(test: impl FnOnce() -> F + Send + 'static) {
    let run = move || {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().start_paused(true).build().expect("a runtime");
        runtime.block_on(test());
    };
    if let Err(panic) = std::thread::spawn(run).join() {
        std::panic::resume_unwind(panic);
    }
}

/// A layer that was put around a service.
fn user_layer() -> DeferLayer<()> {
    let layer = DeferLayer::<()>::new().for_user::<CarriedUser>();
    layer.validate_settings();
    layer
}

fn worker_without_user(store: &Store) -> DeferWorker {
    DeferWorker::new(store, CountingReplayer::default())
}

#[track_caller]
fn panic_text(panic: Box<dyn Any + Send>) -> String {
    *panic.downcast::<String>().expect("a sentence")
}

/// In the thread that starts it, where it ends the process and not only a task.
#[test]
fn worker_that_lacks_a_carried_user_does_not_start() {
    on_new_thread(|| async {
        let (log, _reads) = CapturedLog::start_capture();
        let (store, _layer) = (Store::memory(), user_layer());
        let worker = worker_without_user(&store);
        let started = catch_unwind(AssertUnwindSafe(|| drop(worker.run(pending()))));
        let text = panic_text(started.expect_err("it is refused"));
        assert!(text.starts_with("DeferWorker::run: "), "{text}");
        assert!(text.contains("snapshot \"user\""), "{text}");
        assert!(text.contains("add .for_user::<U>() to the worker"), "{text}");
        log.assert_contains("worker not started");
        log.assert_contains("snapshot \"user\"");
    });
}

#[test]
fn worker_with_the_user_starts() {
    on_new_thread(|| async {
        let (log, _reads) = CapturedLog::start_capture();
        let (store, _layer) = (Store::memory(), user_layer());
        let worker = worker_without_user(&store).for_user::<CarriedUser>();
        let worker = SpawnedWorker::spawn_worker(worker);
        let_tasks_settle().await;
        // Each route and each thread of a server has a layer of its own.
        drop(user_layer());
        worker.stop().await;
        assert!(!log.text().contains("ERROR"), "{}", log.text());
    });
}

/// The layers of one may belong to another store, or to a test that has ended.
#[test]
fn only_live_layers_of_a_single_store_are_compared() {
    on_new_thread(|| async {
        let store = Store::memory();
        drop(user_layer());
        drop(worker_without_user(&store).run(pending()));
        let _layer = user_layer();
        let other = Store::memory();
        drop(worker_without_user(&store).run(pending()));
        drop(worker_without_user(&other).run(pending()));
    });
}

/// As the store of an earlier test in the same process.
#[test]
fn store_that_was_dropped_does_not_hide_a_missing_user() {
    on_new_thread(|| async {
        drop(TestKit::new());
        let (kit, _layer) = (TestKit::new(), user_layer());
        let refused = kit.defer_worker(worker_without_user(kit.store())).await;
        assert_eq!(refused.expect_err("it is refused").kind(), ErrorKind::Config);
    });
}

/// As one that a server builds for each thread, or a router at its first request.
#[test]
fn layer_that_is_applied_after_the_worker_has_started_is_logged() {
    on_new_thread(|| async {
        let (log, _reads) = CapturedLog::start_capture();
        let store = Store::memory();
        let worker = SpawnedWorker::spawn_worker(worker_without_user(&store));
        let_tasks_settle().await;
        let _layer = user_layer();
        log.assert_contains("the layer carries a snapshot that a DeferWorker of this process does");
        log.assert_contains("snapshot=\"user\"");
        worker.stop().await;
    });
}

/// Routes that are built in another thread, or that are in another process.
#[derive(Clone)]
struct SpecialReplayer {
    built: Arc<Notify>,
    restores_snapshots: bool,
}

impl Replayer for SpecialReplayer {
    fn replay(
        &self,
        _: HttpRequestHead,
        _: Bytes,
        _: ReplayMarker,
        _: usize,
    ) -> BoxFuture<'static, ReplayOutcome> {
        Box::pin(std::future::ready(ReplayOutcome::Unreachable))
    }

    fn wait_until_built(&self) -> BoxFuture<'static, ()> {
        let built = Arc::clone(&self.built);
        Box::pin(async move { built.notified().await })
    }

    fn restores_snapshots(&self) -> bool {
        self.restores_snapshots
    }
}

#[test]
fn worker_is_checked_again_when_its_routes_are_built() {
    on_new_thread(|| async {
        let (store, built) = (Store::memory(), Arc::<Notify>::default());
        let routes = SpecialReplayer { built: Arc::clone(&built), restores_snapshots: true };
        let worker = crate::store::spawn(DeferWorker::new(&store, routes).run(pending()));
        let_tasks_settle().await;
        let _layer = user_layer();
        built.notify_one();
        let ended = worker.await.expect_err("it is refused");
        assert!(panic_text(ended.into_panic()).contains("snapshot \"user\""));
    });
}

#[test]
fn worker_stops_while_its_routes_are_built() {
    on_new_thread(|| async {
        let store = Store::memory();
        let routes = SpecialReplayer { built: Arc::default(), restores_snapshots: true };
        let worker = SpawnedWorker::spawn_worker(DeferWorker::new(&store, routes));
        let_tasks_settle().await;
        worker.stop().await;
    });
}

/// Nothing that could be set would help it, and another worker may run those jobs.
#[test]
fn worker_of_routes_in_another_process_needs_no_user() {
    on_new_thread(|| async {
        let (store, _layer) = (Store::memory(), user_layer());
        let built = Arc::<Notify>::default();
        built.notify_one();
        let routes = SpecialReplayer { built, restores_snapshots: false };
        let worker = SpawnedWorker::spawn_worker(DeferWorker::new(&store, routes));
        let_tasks_settle().await;
        worker.stop().await;
    });
}

#[test]
fn test_kit_refuses_a_worker_that_lacks_a_carried_user() {
    on_new_thread(|| async {
        let (kit, _layer) = (TestKit::new(), user_layer());
        let refused = kit.defer_worker(worker_without_user(kit.store())).await;
        assert_eq!(refused.expect_err("it is refused").kind(), ErrorKind::Config);
        let worker = worker_without_user(kit.store()).for_user::<CarriedUser>();
        assert!(kit.defer_worker(worker).await.is_ok());
    });
}

/// With two stores in the process, a layer without a request is compared with no worker.
#[test]
fn test_kit_reports_a_job_without_restored_user() {
    on_new_thread(|| async {
        let (kit, _other) = (TestKit::new(), Store::memory());
        let worker = kit.defer_worker(worker_without_user(kit.store())).await;
        let mut worker = worker.expect("an embedded store is always available");
        let user = vec![(CarriedUser::NAME.to_owned(), b"7".to_vec())];
        enqueue_with_attempts(kit.store(), "/x", 1, user).await;
        let refused = worker.run_due().await.expect_err("the job did not run");
        assert_eq!(refused.kind(), ErrorKind::Config);
        assert!(refused.to_string().contains("snapshot \"user\""), "{refused}");
        assert_eq!(worker.run_due().await.expect("it is not due again"), []);
    });
}

async fn enqueue_owned(store: &Store, owner: &str) -> JobId {
    let head = HttpRequestHead::new("POST", "/x", Vec::new(), None);
    let call = enqueue_command(store, head, b"");
    send_enqueue(store, EnqueueCommand { owner: owner.to_owned(), ..call }).await
}

async fn status_of(routes: &StatusResource<()>, id: &JobId) -> u16 {
    let mut view = FakeGateRequest::new("GET");
    let request = routes.parse_request(&mut view, id.as_str(), false).expect("it is well formed");
    complete_reply(request.execute().await).status
}

const UNRESTRICTED_ROUTES: &str = "the status routes show a job that has an owner to every client";
const JOB_WITHOUT_OWNER: &str = "a job without an owner was requested, which no user can see";

#[tokio::test(start_paused = true)]
async fn status_routes_that_disagree_with_the_layer_are_warned_once() {
    let (log, _reads) = CapturedLog::start_capture();
    let store = Store::memory();
    let owned = enqueue_owned(&store, "user:7").await;
    let ownerless = enqueue_job(&store, "/y").await;
    let open = StatusResource::<()>::new().store(&store);
    let restricted = open.clone().visible_to(|()| Some("user:7".to_owned()));
    let count = |text: &str| log.text().lines().filter(|line| line.contains(text)).count();
    // Where both know of a user, or none does, there is nothing to say.
    assert_eq!(status_of(&restricted, &owned).await, 200);
    assert_eq!(status_of(&open, &ownerless).await, 200);
    assert_eq!((count(UNRESTRICTED_ROUTES), count(JOB_WITHOUT_OWNER)), (0, 0));
    for _ in 0..2 {
        assert_eq!(status_of(&open, &owned).await, 200);
        assert_eq!(status_of(&restricted, &ownerless).await, 404);
        assert_eq!((count(UNRESTRICTED_ROUTES), count(JOB_WITHOUT_OWNER)), (1, 1));
    }
    // Another user's job is no sign of wrong wiring, and neither is an unknown one.
    let other = enqueue_owned(&store, "user:8").await;
    assert_eq!(status_of(&restricted, &other).await, 404);
    assert_eq!((count(UNRESTRICTED_ROUTES), count(JOB_WITHOUT_OWNER)), (1, 1));
}

/// A request of tests has no extensions, so it has no user.
#[tokio::test(start_paused = true)]
async fn request_without_a_user_sees_no_job() {
    let store = Store::memory();
    let routes = StatusResource::<()>::new().store(&store).for_user::<(), CarriedUser>();
    for owner in ["user:7", ""] {
        let id = enqueue_owned(&store, owner).await;
        assert_eq!(status_of(&routes, &id).await, 404, "{owner:?}");
    }
}
