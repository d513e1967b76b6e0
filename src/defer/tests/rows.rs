//! What a worker asks the store for, and in which order it works.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::{sync::Semaphore, time::Instant};

use super::{Function, Routes, SECOND, Working, answered, ended, key_of, put_off, settled};
use crate::{
    defer::DeferWorker,
    store::{JobState, Store, faulty},
};

#[tokio::test(start_paused = true)]
async fn the_jobs_of_a_line_take_one_claim_and_a_settlement_each() {
    let (store, faults) = faulty();
    let routes = Routes::default();
    let mut jobs = Vec::new();
    for n in 0..20 {
        jobs.push(put_off(&store, &format!("/x/{n}")).await);
    }
    let worker = Working::on(&store, &routes);
    for id in &jobs {
        assert_eq!(ended(&store, id).await, JobState::Done);
    }
    assert_eq!((faults.seen("claim"), faults.seen("settle")), (1, 20));
    worker.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_message_costs_a_claim_and_an_idle_worker_a_beat() {
    let (store, faults) = faulty();
    let worker = Working::on(&store, &Routes::default());
    settled().await;
    let before = (faults.seen("due"), faults.seen("claim"));
    let id = put_off(&store, "/x").await;
    assert_eq!(ended(&store, &id).await, JobState::Done);
    assert_eq!((faults.seen("due"), faults.seen("claim")), (before.0, before.1 + 1));
    tokio::time::sleep(SECOND).await;
    let (due, beat) = (faults.seen("due"), faults.seen("beat"));
    tokio::time::sleep(60 * SECOND).await;
    assert_eq!(faults.seen("due"), due, "it does not poll");
    assert_eq!(faults.seen("beat") - beat, 12);
    worker.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_long_line_does_not_keep_another_waiting() {
    let store = Store::memory();
    let order = Arc::new(Mutex::new(Vec::new()));
    let ran = Arc::clone(&order);
    let routes = Function::new(move |head, marker| {
        ran.lock().push(head.target.clone());
        async move {
            tokio::time::sleep(Duration::from_millis(5)).await;
            marker.pass(&key_of(&head.target));
            answered(200)
        }
    });
    let worker = Working::with(DeferWorker::new(&store, routes).concurrency(1));
    settled().await;
    for n in 0..100 {
        put_off(&store, &format!("/x/{n}")).await;
    }
    tokio::time::sleep(Duration::from_millis(20)).await;
    let other = put_off(&store, "/y").await;
    let before = order.lock().len();
    assert!(before < 20, "{before}");
    assert_eq!(ended(&store, &other).await, JobState::Done);
    let at = order.lock().iter().position(|target| target == "/y").expect("it ran");
    assert!(at - before <= 10, "after {} more", at - before);
    worker.stop().await;
}

/// One worker has no room; what comes to its shards is run by the other one, at once.
#[tokio::test(start_paused = true)]
async fn a_worker_without_room_tells_another_one() {
    let store = Store::memory();
    let stuck = Arc::new(Semaphore::new(0));
    let gate = Arc::clone(&stuck);
    let routes = move || {
        let gate = Arc::clone(&gate);
        Function::new(move |head, marker| {
            let gate = Arc::clone(&gate);
            async move {
                marker.pass(&key_of(&head.target));
                if head.target.ends_with("/stuck") {
                    drop(gate.acquire().await);
                }
                answered(200)
            }
        })
    };
    let one = Working::with(DeferWorker::new(&store, routes()).concurrency(1));
    settled().await;
    // Before there is another one: it is this one's.
    let first = put_off(&store, "/first/stuck").await;
    settled().await;
    let two = Working::with(DeferWorker::new(&store.as_another_process(), routes()));
    // Both have heard of each other.
    tokio::time::sleep(6 * SECOND).await;
    let mut jobs = Vec::new();
    for n in 0..64 {
        jobs.push(put_off(&store, &format!("/{n}/fine")).await);
    }
    let began = Instant::now();
    for id in &jobs {
        assert_eq!(ended(&store, id).await, JobState::Done);
    }
    let took = began.elapsed();
    assert!(took < SECOND / 2, "{took:?}");
    stuck.add_permits(1);
    assert_eq!(ended(&store, &first).await, JobState::Done);
    one.stop().await;
    two.stop().await;
}
