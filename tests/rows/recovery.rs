//! What happens when Redis comes, comes back, or forgets.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use lockgate_tests::{Case, Server, Site, eventually};

use super::{
    accepted,
    lock::busy,
    on_loss::lost,
    outage::{away, comes_back, promptly, site},
    passes_at_once,
};

pub(crate) async fn a_store_that_is_not_there_yet(case: Case) {
    let mut server = Server::not_running();
    let site = site(&case, &server).await;
    away(promptly(site.post("/orders/7/pay")).await);
    let _ = promptly(site.get("/quota/three")).await.expect(200);
    server.restart().await;
    comes_back(&site).await;
    runs_what_it_defers(&site).await;
}

/// Requests go on while the server is killed and comes back empty: each is let through under a lock, or
/// refused, in time.
pub(crate) async fn killed_and_restarted_under_load(case: Case) {
    let mut server = Server::start().await;
    let site = Arc::new(site(&case, &server).await);
    let counts = Arc::new(Counts::default());
    let load: Vec<_> = (0..6)
        .map(|n| {
            tokio::spawn(load(Arc::clone(&site), format!("/orders/{n}/pay"), Arc::clone(&counts)))
        })
        .collect();
    for _ in 0..2 {
        counts.grow("passages", &counts.passed).await;
        server.kill();
        counts.grow("refusals", &counts.refused).await;
        server.restart().await;
    }
    counts.grow("passages", &counts.passed).await;
    counts.over.store(true, Ordering::Relaxed);
    for requests in load {
        requests.await.expect("prompt answers of the right kind");
    }
    for n in 0..6 {
        passes_at_once(&site, &n.to_string()).await;
    }
}

#[derive(Default)]
struct Counts {
    passed: AtomicUsize,
    refused: AtomicUsize,
    over: AtomicBool,
}

impl Counts {
    async fn grow(&self, what: &str, count: &AtomicUsize) {
        let before = count.load(Ordering::Relaxed);
        eventually(what, async || count.load(Ordering::Relaxed) > before + 20).await;
    }
}

async fn load(site: Arc<Site>, target: String, counts: Arc<Counts>) {
    while !counts.over.load(Ordering::Relaxed) {
        let answer = promptly(site.post(&target)).await;
        match answer.status.as_u16() {
            200 => counts.passed.fetch_add(1, Ordering::Relaxed),
            503 => {
                away(answer);
                counts.refused.fetch_add(1, Ordering::Relaxed)
            }
            // Its own last grant may not have been given back yet.
            _ => {
                busy(answer);
                0
            }
        };
    }
}

/// Redis comes back empty while handlers run: their clients are told that the lock did not last, as
/// their layers say, and the lock is free.
pub(crate) async fn a_lock_that_was_held_is_given_up(case: Case) {
    let mut server = Server::start().await;
    let site = site(&case, &server).await;
    let (hold, marked) = (site.hold("/orders/7/pay").await, site.hold("/finish-late/8").await);
    server.kill();
    server.restart().await;
    comes_back(&site).await;
    lost(hold.let_go().await, "taken");
    let marked = marked.let_go().await.expect(200);
    assert_eq!(marked.field("lock-lost"), "taken");
    let _ = site.post("/orders/7/ship").send().await.expect(200);
}

pub(crate) async fn the_worker_goes_on(case: Case) {
    let mut server = Server::start().await;
    let site = site(&case, &server).await;
    runs_what_it_defers(&site).await;
    let mut took = Vec::new();
    for _ in 0..5 {
        server.kill();
        away(promptly(site.post("/orders/7/refund")).await);
        server.restart().await;
        comes_back(&site).await;
        took.push(runs_what_it_defers(&site).await);
    }
    // Most times at once: it does not need its next sign of life, up to 5 s later, to be there again. A new subscription
    // may pause for a second.
    took.sort_unstable();
    assert!(took[2] < Duration::from_secs(2), "done after {took:?}");
}

/// How long that takes.
pub(super) async fn runs_what_it_defers(site: &Site) -> Duration {
    let asked = Instant::now();
    let hold = site.hold("/orders/7/pay").await;
    let job = accepted(site.post("/orders/7/refund").send().await);
    let _ = hold.let_go().await.expect(200);
    let _ = job.done(site).await;
    asked.elapsed()
}
