//! How a lock ends: at once, however its request does.

use lockgate_tests::{Case, eventually};

use super::{ROUNDS, lock::busy, mostly_at_once, passes_at_once};

pub(crate) async fn returned(case: Case) {
    let site = case.site().await;
    for status in [200, 200, 404, 409, 500, 503, 200] {
        // Given back before the answer: the next request never meets it.
        let target = format!("/orders/7/pay?status={status}");
        let answer = site.post(&target).send().await.expect(status);
        assert_eq!(answer.json()["target"], target, "its handler ran");
    }
}

/// Not before the answer, perhaps, but at once.
pub(crate) async fn returned_in_the_background(case: Case) {
    let site = case.site().await;
    for _ in 0..5 {
        let _ = site.post("/background/7").send().await.expect(200);
        passes_at_once(&site, "7").await;
    }
    let hold = site.hold("/background/7").await;
    busy(site.post("/orders/7/pay").send().await);
    let _ = hold.let_go().await.expect(200);
    // Nothing is left to be given back when it has stopped, which is asserted there.
    site.stop().await;
}

pub(crate) async fn panicked(case: Case) {
    let site = case.site().await;
    let answer = site.post("/orders/7/pay?panic=1").try_send().await;
    assert!(answer.is_err(), "both frameworks close the connection: {answer:?}");
    passes_at_once(&site, "7").await;
    let answer = site.post("/nested/7?panic=1").try_send().await;
    assert!(answer.is_err(), "{answer:?}");
    passes_at_once(&site, "7").await;
}

pub(crate) async fn disconnected(case: Case) {
    let site = case.site().await;
    let mut took = Vec::new();
    for _ in 0..ROUNDS {
        let hold = site.hold("/orders/7/pay?tag=gone").await;
        busy(site.post("/orders/7/pay").send().await);
        hold.disconnect().await;
        took.push(passes_at_once(&site, "7").await);
    }
    mostly_at_once("the lock is free", took);
    assert_eq!(case.desk.tags(), [""; ROUNDS], "the handlers were dropped where they stood");
}

pub(crate) async fn disconnected_in_the_middle_of_the_body(case: Case) {
    let site = case.site().await;
    let mut raw = site.raw().await;
    let head =
        "POST /orders/7/pay?first=gate HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\nfirst";
    raw.write(head).await;
    case.desk.gates.arrived("gate").await;
    busy(site.post("/orders/7/pay").send().await);
    // The handler reads on, and waits for what never comes. (An upload that nobody reads hides the
    // client's leaving from both servers.)
    case.desk.gates.open("gate");
    drop(raw);
    passes_at_once(&site, "7").await;
}

/// The request may end, no new one comes in, and nothing is left locked.
pub(crate) async fn stopped(case: Case) {
    let (site, other) = (case.site().await, case.site().await);
    let addr = site.addr;
    let hold = site.hold("/orders/7/pay").await;
    let stopped = tokio::spawn(site.stop());
    eventually("new connections to be refused", async || {
        tokio::net::TcpStream::connect(addr).await.is_err()
    })
    .await;
    busy(other.post("/orders/7/pay").send().await);
    assert!(!stopped.is_finished());
    let _ = hold.let_go().await.expect(200);
    stopped.await.expect("it stops");
    let _ = other.post("/orders/7/pay").send().await.expect(200);
}
