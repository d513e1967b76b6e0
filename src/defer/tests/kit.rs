//! The worker of the test kit, which runs what is due when it is told to.

use std::sync::Arc;

use super::{Routes, put_off};
use crate::{
    clock::Clock,
    defer::{DeferWorker, kit::Stepper},
    key::Key,
    lock::NotAcquired,
    store::{Memory, Store},
};

/// What workers share among them is no resource.
#[tokio::test]
async fn where_each_lock_is_busy_runs_have_their_permits() {
    let memory = Arc::new(Memory::new(Clock::manual()));
    let store = Store::on(Arc::clone(&memory) as _);
    memory.pretend_busy(true);
    let refused = store.lock(Key::custom("a")).acquire().await;
    assert!(matches!(refused, Err(NotAcquired::Busy(_))), "{refused:?}");
    let routes = Routes::default();
    let mut worker = Stepper::new(DeferWorker::on(&store, routes.clone()).queue_concurrency(1));
    for target in ["/a/1", "/b/1", "/a/2"] {
        put_off(&store, target).await;
    }
    assert_eq!(worker.run_due().await.unwrap().len(), 3);
    assert_eq!((routes.runs("/a/1"), routes.runs("/b/1"), routes.runs("/a/2")), (1, 1, 1));
}
