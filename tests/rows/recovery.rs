//! Recovery after Redis starts late, restarts, or loses its data.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use lockgate_tests::{RedisServer, TestCase, TestSite, eventually};

use super::{
    expect_accepted,
    lock::expect_busy,
    measure_acquire,
    on_loss::expect_lock_lost,
    outage::{expect_unavailable, send_promptly, start_site, wait_for_recovery},
};

pub(crate) async fn store_that_starts_later_is_used_once_reachable(case: TestCase) {
    let mut server = RedisServer::not_running();
    let site = start_site(&case, &server).await;
    expect_unavailable(send_promptly(site.post("/orders/7/pay")).await);
    let _ = send_promptly(site.get("/quota/three")).await.expect_status(200);
    server.restart().await;
    wait_for_recovery(&site).await;
    measure_deferred_run(&site).await;
}

/// The server is killed and restarts empty under load. Each request is admitted under a lock or
/// refused in time.
pub(crate) async fn restarts_under_load_admit_or_refuse_promptly(case: TestCase) {
    let mut server = RedisServer::start().await;
    let site = Arc::new(start_site(&case, &server).await);
    let counts = Arc::new(ResponseCounts::default());
    let load: Vec<_> = (0..6)
        .map(|n| {
            tokio::spawn(send_until_finished(
                Arc::clone(&site),
                format!("/orders/{n}/pay"),
                Arc::clone(&counts),
            ))
        })
        .collect();
    for _ in 0..2 {
        counts.wait_for_growth("passages", &counts.admitted).await;
        server.kill();
        counts.wait_for_growth("refusals", &counts.refused).await;
        server.restart().await;
    }
    counts.wait_for_growth("passages", &counts.admitted).await;
    counts.is_finished.store(true, Ordering::Relaxed);
    for requests in load {
        requests.await.expect("prompt answers of the right kind");
    }
    for n in 0..6 {
        measure_acquire(&site, &n.to_string()).await;
    }
}

#[derive(Default)]
struct ResponseCounts {
    admitted: AtomicUsize,
    refused: AtomicUsize,
    is_finished: AtomicBool,
}

impl ResponseCounts {
    async fn wait_for_growth(&self, what: &str, count: &AtomicUsize) {
        let before = count.load(Ordering::Relaxed);
        eventually(what, async || count.load(Ordering::Relaxed) > before + 20).await;
    }
}

async fn send_until_finished(site: Arc<TestSite>, target: String, counts: Arc<ResponseCounts>) {
    while !counts.is_finished.load(Ordering::Relaxed) {
        let answer = send_promptly(site.post(&target)).await;
        match answer.status.as_u16() {
            200 => counts.admitted.fetch_add(1, Ordering::Relaxed),
            503 => {
                expect_unavailable(answer);
                counts.refused.fetch_add(1, Ordering::Relaxed)
            }
            // The release of the client's previous grant may be pending.
            _ => {
                expect_busy(answer);
                0
            }
        };
    }
}

/// Redis restarts empty while handlers run: the responses report the lock loss according to their
/// layers, and the lock is free.
pub(crate) async fn held_lock_is_lost_when_server_restarts_empty(case: TestCase) {
    let mut server = RedisServer::start().await;
    let site = start_site(&case, &server).await;
    let (hold, marked) =
        (site.post_held("/orders/7/pay").await, site.post_held("/finish-late/8").await);
    server.kill();
    server.restart().await;
    wait_for_recovery(&site).await;
    expect_lock_lost(hold.finish().await, "taken");
    let marked = marked.finish().await.expect_status(200);
    assert_eq!(marked.header("lock-lost"), "taken");
    let _ = site.post("/orders/7/ship").send().await.expect_status(200);
}

pub(crate) async fn worker_resumes_after_server_restarts(case: TestCase) {
    let mut server = RedisServer::start().await;
    let site = start_site(&case, &server).await;
    measure_deferred_run(&site).await;
    let mut delays = Vec::new();
    for _ in 0..5 {
        server.kill();
        expect_unavailable(send_promptly(site.post("/orders/7/refund")).await);
        server.restart().await;
        wait_for_recovery(&site).await;
        delays.push(measure_deferred_run(&site).await);
    }
    // The worker resumes before its next heartbeat, which may be 5 s away. A new subscription may
    // take a second.
    delays.sort_unstable();
    assert!(delays[2] < Duration::from_secs(2), "done after {delays:?}");
}

/// Measures the time from a release to the end of a deferred run.
pub(super) async fn measure_deferred_run(site: &TestSite) -> Duration {
    let started = Instant::now();
    let hold = site.post_held("/orders/7/pay").await;
    let job = expect_accepted(site.post("/orders/7/refund").send().await);
    let _ = hold.finish().await.expect_status(200);
    let _ = job.wait_until_done(site).await;
    started.elapsed()
}
