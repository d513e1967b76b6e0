//! Two workers on one store handle.

use std::sync::Arc;

use tokio::{sync::Barrier, time::Instant};

use super::{
    Function, Routes, SECOND, Working, answered, ended, key_of, put_off, request, settled,
};
use crate::{
    defer::DeferWorker,
    gate::HttpRequestHead,
    store::{EnqueueCommand, EnqueueOutcome, JobPolicy, JobState, Store},
};

/// A run ends when another one has begun: one worker alone would have room for it only when it has failed.
#[tokio::test(start_paused = true)]
async fn both_are_told_of_work() {
    let store = Store::memory();
    let both = Arc::new(Barrier::new(2));
    let routes = || {
        let both = Arc::clone(&both);
        Function::new(move |head, marker| {
            let both = Arc::clone(&both);
            async move {
                marker.pass(&key_of(&head.target));
                both.wait().await;
                answered(200)
            }
        })
    };
    let worker = || Working::with(DeferWorker::new(&store, routes()).concurrency(1));
    let (one, two) = (worker(), worker());
    settled().await;
    for _ in 0..5 {
        let began = Instant::now();
        for id in [put_off(&store, "/a").await, put_off(&store, "/b").await] {
            assert_eq!(ended(&store, &id).await, JobState::Done);
        }
        assert!(began.elapsed() < SECOND / 10, "{:?}", began.elapsed());
    }
    one.stop().await;
    two.stop().await;
}

#[tokio::test(start_paused = true)]
async fn one_that_stops_leaves_the_queue_to_the_other() {
    for die in [false, true] {
        let (store, routes) = (Store::memory(), Routes::default());
        let (one, two) = (Working::on(&store, &routes), Working::on(&store, &routes));
        settled().await;
        // Whichever was there first.
        let (leaves, stays) = if die { (one, two) } else { (two, one) };
        if die {
            leaves.die().await;
        } else {
            leaves.stop().await;
        }
        let began = Instant::now();
        let call = request(&store, HttpRequestHead::new("POST", "/a", Vec::new(), None), b"");
        let policy = JobPolicy { needs_worker: true, ..call.policy };
        let id = call.id.clone();
        let stored = store.backend().enqueue(EnqueueCommand { policy, ..call }).await;
        assert!(matches!(stored, Ok(EnqueueOutcome::Stored { .. })), "there is one: {stored:?}");
        assert_eq!(ended(&store, &id).await, JobState::Done);
        assert!(began.elapsed() < SECOND / 10, "{:?}", began.elapsed());
        stays.stop().await;
        let call = request(&store, HttpRequestHead::new("POST", "/a", Vec::new(), None), b"");
        let stored = store.backend().enqueue(EnqueueCommand { policy, ..call }).await;
        assert_eq!(stored.expect("it is there"), EnqueueOutcome::NoWorker, "the last has gone");
    }
}

/// What one of them has no route for the other one has.
#[tokio::test(start_paused = true)]
async fn what_one_can_not_run_is_for_the_other() {
    let (store, routes) = (Store::memory(), Routes::default());
    let without = |_, _| async { answered(404) };
    let one = Working::with(DeferWorker::new(&store, Function::new(without)));
    let two = Working::on(&store, &routes);
    settled().await;
    for n in 0..20 {
        let id = put_off(&store, &format!("/{n}/x")).await;
        assert_eq!(ended(&store, &id).await, JobState::Done);
        assert_eq!(routes.runs(&format!("/{n}/x")), 1);
    }
    one.stop().await;
    two.stop().await;
}
