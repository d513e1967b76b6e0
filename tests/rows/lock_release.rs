//! Release of a lock: at once, however its request ends.

use lockgate_tests::{TestCase, eventually};

use super::{ROUND_COUNT, assert_median_delay, lock::expect_busy, measure_acquire};

pub(crate) async fn lock_is_released_before_the_response(case: TestCase) {
    let site = case.start_site().await;
    for status in [200, 200, 404, 409, 500, 503, 200] {
        // The lock is released before the response, so the next request never finds it busy.
        let target = format!("/orders/7/pay?status={status}");
        let answer = site.post(&target).send().await.expect_status(status);
        assert_eq!(answer.json()["target"], target, "its handler ran");
    }
}

/// The release may follow the response, but without a delay.
pub(crate) async fn background_release_frees_lock_soon(case: TestCase) {
    let site = case.start_site().await;
    for _ in 0..5 {
        let _ = site.post("/background/7").send().await.expect_status(200);
        measure_acquire(&site, "7").await;
    }
    let hold = site.post_held("/background/7").await;
    expect_busy(site.post("/orders/7/pay").send().await);
    let _ = hold.finish().await.expect_status(200);
    // `stop` asserts that no release is outstanding.
    site.stop().await;
}

pub(crate) async fn handler_panic_releases_lock(case: TestCase) {
    let site = case.start_site().await;
    let answer = site.post("/orders/7/pay?panic=1").try_send().await;
    assert!(answer.is_err(), "both frameworks close the connection: {answer:?}");
    measure_acquire(&site, "7").await;
    let answer = site.post("/nested/7?panic=1").try_send().await;
    assert!(answer.is_err(), "{answer:?}");
    measure_acquire(&site, "7").await;
}

pub(crate) async fn client_disconnect_releases_lock(case: TestCase) {
    let site = case.start_site().await;
    let mut delays = Vec::new();
    for _ in 0..ROUND_COUNT {
        let hold = site.post_held("/orders/7/pay?tag=gone").await;
        expect_busy(site.post("/orders/7/pay").send().await);
        hold.disconnect().await;
        delays.push(measure_acquire(&site, "7").await);
    }
    assert_median_delay("the lock is free", delays);
    assert_eq!(case.handler.run_tags(), [""; ROUND_COUNT], "the handlers were dropped");
}

pub(crate) async fn client_disconnect_during_body_releases_lock(case: TestCase) {
    let site = case.start_site().await;
    let mut raw = site.raw_connection().await;
    let head =
        "POST /orders/7/pay?first=gate HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\nfirst";
    raw.write(head).await;
    case.handler.sync_points.wait_for_arrival("gate").await;
    expect_busy(site.post("/orders/7/pay").send().await);
    // The handler continues to read a body that never arrives. (Neither server notices the
    // disconnect while the upload is not read.)
    case.handler.sync_points.open("gate");
    drop(raw);
    measure_acquire(&site, "7").await;
}

/// The active request may finish, new ones are refused, and no lock stays held.
pub(crate) async fn shutdown_waits_for_request_and_releases_lock(case: TestCase) {
    let (site, other) = (case.start_site().await, case.start_site().await);
    let addr = site.addr;
    let hold = site.post_held("/orders/7/pay").await;
    let stopped = tokio::spawn(site.stop());
    eventually("new connections to be refused", async || {
        tokio::net::TcpStream::connect(addr).await.is_err()
    })
    .await;
    expect_busy(other.post("/orders/7/pay").send().await);
    assert!(!stopped.is_finished());
    let _ = hold.finish().await.expect_status(200);
    stopped.await.expect("it stops");
    let _ = other.post("/orders/7/pay").send().await.expect_status(200);
}
