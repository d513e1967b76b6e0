//! Callbacks about jobs that were put back: each end is told.

use futures_util::future::BoxFuture;

use super::{
    super::{SECOND, ended, look, settled},
    Called, failing, id_of_call, put_off_with_callback, work,
};
use crate::{
    defer::webhook::{DeliveryOutcome, WebhookCall, WebhookSender},
    store::{Fault, Faults, JobId, JobState, Store, faulty},
};

#[tokio::test(start_paused = true)]
async fn a_job_that_is_put_back_is_told_again_as_another_end() {
    let store = Store::memory();
    let called = Called::default();
    let worker = work(&store, Some(&called));
    let id = put_off_with_callback(&store, "/x/panic").await;
    for time in 1..=2 {
        assert_eq!(ended(&store, &id).await, JobState::Dead);
        tokio::time::sleep(60 * SECOND).await;
        assert_eq!(called.calls().len(), time);
        let _ = store.deferred_jobs().redrive(&id).await.expect("the store is there");
    }
    let calls = called.calls();
    assert_ne!(calls[0].0, calls[1].0, "who has heard of the one has not heard of the other");
    assert_eq!(calls[1].1["id"], id.as_str());
    worker.abort();
}

async fn put_back(store: &Store, id: &JobId) {
    let state = store.deferred_jobs().redrive(id).await.expect("the store is there");
    assert_eq!(state, Some(JobState::Queued));
}

/// Whoever ends the job finds its call under way, and leaves the telling to that.
#[tokio::test(start_paused = true)]
async fn an_end_that_comes_as_a_call_is_written_down_is_told_too() {
    /// What becomes of the first call is late.
    #[derive(Debug, Clone)]
    struct Late(Called, Faults);

    impl WebhookSender for Late {
        fn deliver(&self, call: WebhookCall) -> BoxFuture<'static, DeliveryOutcome> {
            if self.0.calls().is_empty() {
                self.1.set("settle", Fault::Late(SECOND), 1);
            }
            self.0.deliver(call)
        }
    }

    for answer in [DeliveryOutcome::Answered(204), DeliveryOutcome::Answered(410)] {
        let (store, faults) = faulty();
        let called = Called::answers([answer]);
        let worker = failing(&store, Late(called.clone(), faults.clone()));
        let id = put_off_with_callback(&store, "/x").await;
        while called.calls().is_empty() {
            settled().await;
        }
        put_back(&store, &id).await;
        assert_eq!(ended(&store, &id).await, JobState::Dead);
        let call = id_of_call(&called);
        assert_eq!(look(&store, &call).await.state, JobState::Running, "still");
        tokio::time::sleep(60 * SECOND).await;
        let calls = called.calls();
        assert_eq!((calls.len(), faults.left("settle")), (2, 0), "{calls:?}");
        assert_ne!(calls[0].0, calls[1].0, "who has heard of the one has not heard of the other");
        assert_eq!((&calls[0].1["state"], &calls[1].1["state"]), (&"dead".into(), &"dead".into()));
        assert_eq!(look(&store, &call).await.state, JobState::Done);
        worker.abort();
    }
}

/// It waits behind a lock meanwhile, for however long.
#[tokio::test(start_paused = true)]
async fn an_end_is_told_though_its_job_was_put_back_before() {
    let store = Store::memory();
    let called = Called::answers([DeliveryOutcome::Failed("refused".to_owned())]);
    let worker = failing(&store, called.clone());
    let id = put_off_with_callback(&store, "/x").await;
    assert_eq!(ended(&store, &id).await, JobState::Dead);
    let held = store.lock("x").max_hold(600 * SECOND).acquire().await.expect("it is free");
    put_back(&store, &id).await;
    tokio::time::sleep(60 * SECOND).await;
    let calls = called.calls();
    assert_eq!(calls.len(), 2, "{calls:?}");
    assert_eq!(calls[0], calls[1]);
    assert_eq!(look(&store, &id_of_call(&called)).await.state, JobState::Done);
    held.release().await;
    assert_eq!(ended(&store, &id).await, JobState::Dead);
    tokio::time::sleep(60 * SECOND).await;
    let calls = called.calls();
    assert_eq!(calls.len(), 3, "{calls:?}");
    assert_ne!(calls[1].0, calls[2].0);
    worker.abort();
}
