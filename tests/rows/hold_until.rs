//! End of the hold: `/orders/{id}/pay` holds its lock until its handler has responded,
//! `/whole/{id}` until the body of the response has ended.

use lockgate_tests::{RawConnection, TestCase, TestSite};

use super::{expect_accepted, lock::expect_busy, measure_acquire, on_loss::expect_lock_lost};

/// Sends a request and reads up to the sync point in the middle of the response body.
async fn start_streaming(site: &TestSite, target: &str) -> RawConnection {
    let mut raw = site.raw_connection().await;
    let head = format!("POST {target} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
    raw.write(head).await;
    let answer = raw.read_until("first").await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    raw
}

/// Final chunk of length zero; without it the client detects a truncated body.
const LAST_CHUNK: &str = "\r\n0\r\n\r\n";

/// Expects that the lock is free without a wait.
async fn assert_lock_free(site: &TestSite, order: &str) {
    let _ = site.post(&format!("/orders/{order}/pay")).send().await.expect_status(200);
}

pub(crate) async fn hold_until_response_releases_before_body_ends(case: TestCase) {
    let site = case.start_site().await;
    let mut raw = start_streaming(&site, "/orders/7/pay?stream=more").await;
    assert_lock_free(&site, "7").await;
    case.handler.sync_points.open("more");
    let rest = raw.read_to_end().await;
    assert!(rest.contains("last") && rest.ends_with(LAST_CHUNK), "{rest}");
}

pub(crate) async fn hold_until_body_end_releases_before_last_chunk(case: TestCase) {
    let site = case.start_site().await;
    for target in ["/whole/7?stream=a", "/whole-twice/7?stream=b"] {
        let mut raw = start_streaming(&site, target).await;
        expect_busy(site.post("/orders/7/pay").send().await);
        case.handler.sync_points.open(&target[target.len() - 1..]);
        let rest = raw.read_until(LAST_CHUNK).await;
        assert!(rest.contains("last"), "{rest}");
        // The lock is released before the client can see the end.
        assert_lock_free(&site, "7").await;
    }
}

pub(crate) async fn fixed_length_and_empty_bodies_release_lock(case: TestCase) {
    let site = case.start_site().await;
    for _ in 0..5 {
        let answer = site.post("/whole/7?text=word").send().await.expect_status(200);
        assert_eq!(answer.header("content-length"), "4", "{answer:?}");
        assert_eq!(answer.text(), "word");
        assert_lock_free(&site, "7").await;
        let _ = site.post("/whole/7?status=204").send().await.expect_status(204);
        assert_lock_free(&site, "7").await;
        let _ = site.request("HEAD", "/whole/7").send().await.expect_status(200);
        assert_lock_free(&site, "7").await;
        let empty = site.post("/whole/7?echo=1").send().await.expect_status(200);
        assert!(empty.body.is_empty(), "{empty:?}");
        assert_lock_free(&site, "7").await;
    }
}

pub(crate) async fn dropped_body_releases_lock(case: TestCase) {
    let site = case.start_site().await;
    let raw = start_streaming(&site, "/whole/7?stream=never").await;
    expect_busy(site.post("/orders/7/pay").send().await);
    drop(raw);
    measure_acquire(&site, "7").await;
}

pub(crate) async fn failed_body_releases_lock(case: TestCase) {
    let site = case.start_site().await;
    for how in ["error", "panic"] {
        let mut raw = start_streaming(&site, &format!("/whole/7?stream={how}&breaks={how}")).await;
        expect_busy(site.post("/orders/7/pay").send().await);
        case.handler.sync_points.open(how);
        let rest = raw.read_to_end().await;
        assert!(!rest.contains("last") && !rest.ends_with(LAST_CHUNK), "{rest}");
        measure_acquire(&site, "7").await;
    }
}

/// The body exceeds all buffers on the way, so it waits for its reader.
pub(crate) async fn slow_reader_keeps_lock_until_body_ends(case: TestCase) {
    let site = case.start_site().await;
    let mut raw = start_streaming(&site, "/whole/7?stream=much&mib=16").await;
    case.handler.sync_points.open("much");
    let _ = raw.read_until("....").await;
    expect_busy(site.post("/orders/7/pay").send().await);
    let rest = raw.read_to_end().await;
    assert!(rest.ends_with(&format!("last{LAST_CHUNK}")), "it is whole");
    assert_lock_free(&site, "7").await;
    // A reader that disconnects in the middle releases the lock too.
    let mut raw = start_streaming(&site, "/whole/7?stream=much&mib=16").await;
    let _ = raw.read_until("....").await;
    expect_busy(site.post("/orders/7/pay").send().await);
    drop(raw);
    measure_acquire(&site, "7").await;
}

pub(crate) async fn failed_handler_releases_lock(case: TestCase) {
    let site = case.start_site().await;
    let _ = site.post("/whole/7?status=500").send().await.expect_status(500);
    assert_lock_free(&site, "7").await;
    let answer = site.post("/whole/7?panic=1").try_send().await;
    assert!(answer.is_err(), "both frameworks close the connection: {answer:?}");
    measure_acquire(&site, "7").await;
    let hold = site.post_held("/whole/7").await;
    expect_busy(site.post("/orders/7/pay").send().await);
    hold.disconnect().await;
    measure_acquire(&site, "7").await;
    expect_lock_lost(site.post_held("/brief-whole/7").await.response().await, "too-long");
    measure_acquire(&site, "7").await;
}

pub(crate) async fn lock_loss_aborts_the_body(case: TestCase) {
    let site = case.start_site().await;
    let mut raw = start_streaming(&site, "/brief-whole/7?stream=never").await;
    let rest = raw.read_to_end().await;
    assert!(!rest.ends_with(LAST_CHUNK), "{rest}");
    measure_acquire(&site, "7").await;
}

pub(crate) async fn finish_on_loss_completes_the_body(case: TestCase) {
    let site = case.start_site().await;
    let mut raw = start_streaming(&site, "/brief-whole-finish/7?stream=more").await;
    // Another request acquires the lost lock meanwhile.
    measure_acquire(&site, "7").await;
    case.handler.sync_points.open("more");
    let rest = raw.read_to_end().await;
    assert!(rest.contains("last") && rest.ends_with(LAST_CHUNK), "{rest}");
}

/// The worker reads the whole body under the job's lock, whatever the layer's setting.
pub(crate) async fn deferred_run_holds_its_lock_until_body_ends(case: TestCase) {
    let site = case.start_site().await;
    let hold = site.post_held("/orders/7/pay").await;
    let job = expect_accepted(site.post("/whole-refund/7?stream=more").send().await);
    let _ = hold.finish().await.expect_status(200);
    case.handler.sync_points.wait_for_arrival("more").await;
    expect_busy(site.post("/orders/7/pay").send().await);
    case.handler.sync_points.open("more");
    let document = job.wait_for_final_status(&site).await;
    assert_eq!(document["state"], "done", "{document}");
    let stored = site.get(&format!("{}/response", job.location)).send().await.expect_status(200);
    assert_eq!(stored.text(), "first-last");
}
