//! A process with several stores: a layer counts for the store of the lock that its requests meet.

use super::*;
use crate::lock::LockLayer;

const MISSING_IN_WORKER: &str = "the layer carries a snapshot that a DeferWorker of this process";

/// Sends a request through the layer to a free lock of this store.
fn meet_lock(layer: &DeferLayer<()>, store: &Store) {
    let mut view = FakeGateRequest::new("POST");
    view.headers.push(("order", "7"));
    drop(layer.inspect(&mut view));
    drop(LockLayer::<()>::by_header("order").store(store).inspect(&mut view));
}

#[test]
fn worker_is_compared_with_the_layers_of_its_store() {
    on_new_thread(|| async {
        let (store, other) = (Store::memory(), Store::memory());
        let layer = user_layer();
        drop(worker_without_user(&store).run(pending()));
        meet_lock(&layer, &store);
        drop(worker_without_user(&other).run(pending()));
        let worker = worker_without_user(&store);
        let started = catch_unwind(AssertUnwindSafe(|| drop(worker.run(pending()))));
        let text = panic_text(started.expect_err("it is refused"));
        assert!(text.contains("snapshot \"user\""), "{text}");
        drop(worker_without_user(&store).for_user::<CarriedUser>().run(pending()));
        drop(layer);
        drop(worker_without_user(&store).run(pending()));
    });
}

#[test]
fn layer_is_compared_with_the_running_workers_of_its_store() {
    on_new_thread(|| async {
        let (log, _reads) = CapturedLog::start_capture();
        let (store, other) = (Store::memory(), Store::memory());
        let worker = SpawnedWorker::spawn_worker(worker_without_user(&store));
        let_tasks_settle().await;
        meet_lock(&user_layer(), &other);
        assert!(!log.text().contains(MISSING_IN_WORKER), "{}", log.text());
        let layer = user_layer();
        for _ in 0..3 {
            meet_lock(&layer, &store);
            assert_eq!(log.text().matches(MISSING_IN_WORKER).count(), 1, "{}", log.text());
            tokio::time::sleep(100 * SECOND).await;
        }
        worker.stop().await;
    });
}

#[test]
fn test_kit_compares_its_worker_with_the_layers_that_have_met_its_store() {
    on_new_thread(|| async {
        let (kit, other, layer) = (TestKit::new(), TestKit::new(), user_layer());
        let worker_of = async |kit: &TestKit| {
            let worker = kit.defer_worker(worker_without_user(kit.store())).await;
            worker.expect("the layer has met no store")
        };
        let (mut worker, mut other_worker) = (worker_of(&kit).await, worker_of(&other).await);
        meet_lock(&layer, kit.store());
        let refused = worker.run_due().await.expect_err("it is refused");
        assert_eq!(refused.kind(), ErrorKind::Config);
        let refused = kit.defer_worker(worker_without_user(kit.store())).await;
        assert_eq!(refused.expect_err("it is refused").kind(), ErrorKind::Config);
        assert_eq!(other_worker.run_due().await.expect("another store"), []);
    });
}
