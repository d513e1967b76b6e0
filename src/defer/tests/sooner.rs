//! What comes due between two signs of life.

use bytes::Bytes;
use tokio::time::Instant;

use super::{Function, SECOND, Working, answered, ended, key_of, put_off, put_off_with, settled};
use crate::{
    defer::{DeferWorker, ReplayBody, ReplayOutcome, ReplayResponse},
    gate::ReplayMarker,
    store::{JobState, Store},
};

/// Fails once, and wants to be asked again after so long.
fn asks_for_more_time(marker: &ReplayMarker, seconds: &str) -> ReplayOutcome {
    if marker.job().attempt > 1 {
        return answered(200);
    }
    let headers = vec![("retry-after".to_owned(), seconds.as_bytes().to_vec())];
    ReplayOutcome::Answered(ReplayResponse {
        status: 503,
        headers,
        body: ReplayBody::Full(Bytes::new()),
    })
}

/// Its own entry, at the lease's end, is no timer that anybody has.
#[tokio::test(start_paused = true)]
async fn a_retry_beyond_a_short_lease_comes_when_it_is_due() {
    let store = Store::memory();
    let routes = Function::new(|head, marker| {
        marker.pass(&key_of(&head.target));
        std::future::ready(asks_for_more_time(&marker, "2"))
    });
    let worker = Working::with(DeferWorker::new(&store, routes).lease(SECOND));
    settled().await;
    let began = Instant::now();
    let id = put_off_with(&store, "/x", 2, Vec::new()).await;
    assert_eq!(ended(&store, &id).await, JobState::Done);
    // What it asked for, up to a second of jitter, and what finds the end out; the next sign of life is after 5 s.
    let took = began.elapsed();
    assert!((2 * SECOND..4 * SECOND).contains(&took), "{took:?}");
    worker.stop().await;
}

/// A retry comes due without a message: nobody hears of it but the one who watches it, and that one is busy.
#[tokio::test(start_paused = true)]
async fn what_comes_due_where_the_watcher_has_no_room_is_run_by_another_one() {
    let store = Store::memory();
    let routes = Function::new(|head, marker| async move {
        marker.pass(&key_of(&head.target));
        if head.target == "/long" {
            tokio::time::sleep(120 * SECOND).await;
            return answered(200);
        }
        asks_for_more_time(&marker, "1")
    });
    let worker =
        |store: &Store| Working::with(DeferWorker::new(store, routes.clone()).concurrency(1));
    let (one, two) = (worker(&store), worker(&store.as_another_process()));
    // Each has its part of the shards by then.
    tokio::time::sleep(20 * SECOND).await;
    let long = put_off(&store, "/long").await;
    settled().await;
    // Whenever the next sign of life is.
    for round in 0..8 {
        let began = Instant::now();
        let mut jobs = Vec::new();
        for n in 0..20 {
            jobs.push(put_off_with(&store, &format!("/{n}/{round}"), 2, Vec::new()).await);
        }
        for id in &jobs {
            assert_eq!(ended(&store, id).await, JobState::Done);
        }
        let took = began.elapsed();
        assert!(took < 4 * SECOND, "{took:?} in round {round}");
    }
    assert_eq!(ended(&store, &long).await, JobState::Done);
    one.stop().await;
    two.stop().await;
}
