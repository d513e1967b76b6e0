//! Clients that send their bodies slowly. `/slow/{id}` limits the total wait for a request body to
//! 300 ms.

use std::time::Duration;

use lockgate_tests::{RawConnection, TestCase, TestSite};

use super::{lock::expect_busy, measure_acquire, on_loss::expect_lock_lost};

fn request_head(target: &str) -> String {
    format!("POST {target} HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\nfirst")
}

/// Sends half of a request body.
async fn send_half_body(site: &TestSite, target: &str) -> RawConnection {
    let mut raw = site.raw_connection().await;
    raw.write(request_head(target)).await;
    raw
}

/// Waits until the site's 3 s lock limit has ended, ten times the body deadline.
async fn wait_three_seconds(site: &TestSite) {
    expect_lock_lost(site.post_held("/brief/other").await.response().await, "too-long");
}

#[track_caller]
fn assert_body_timeout(answer: &str) {
    assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
    let fields = answer.to_ascii_lowercase();
    assert!(fields.contains("\r\ncontent-type: application/problem+json\r\n"), "{answer}");
    assert!(answer.contains("urn:lockgate:problem:body-too-slow"), "{answer}");
}

/// The handler ignores a truncated body and would answer 200; the timeout takes precedence.
pub(crate) async fn stalled_body_is_answered_with_408(case: TestCase) {
    let site = case.start_site().await;
    for target in ["/slow/7", "/slow-whole/7", "/slow-twice/7", "/slow-refund/7"] {
        let mut raw = send_half_body(&site, target).await;
        assert_body_timeout(&raw.read_to_end().await);
        let _ = site.post("/orders/7/pay").send().await.expect_status(200);
    }
}

pub(crate) async fn slow_body_is_answered_with_408(case: TestCase) {
    let site = case.start_site().await;
    let gate = "dribbles";
    let mut raw = send_half_body(&site, &format!("/slow/7?first={gate}")).await;
    case.handler.sync_points.wait_for_arrival(gate).await;
    expect_busy(site.post("/orders/7/pay").send().await);
    case.handler.sync_points.open(gate);
    // Each byte arrives within the deadline; the whole body would take five times the deadline.
    assert_body_timeout(&raw.write_slowly("other", Duration::from_millis(290)).await);
    measure_acquire(&site, "7").await;
}

pub(crate) async fn handler_with_whole_body_has_no_deadline(case: TestCase) {
    let site = case.start_site().await;
    let with_body = site.send_held(site.post("").body("note"), "/slow/7").await;
    let without_body = site.post_held("/slow/8").await;
    wait_three_seconds(&site).await;
    assert_eq!(with_body.finish().await.expect_status(200).json()["body"], "note");
    let _ = without_body.finish().await.expect_status(200);
}

/// The deadline covers only the time that the handler waits for body data. A handler that does not
/// read, or reads after a pause, is not stopped.
pub(crate) async fn handler_that_does_not_read_body_is_not_stopped(case: TestCase) {
    let site = case.start_site().await;
    let mut unread = send_half_body(&site, "/slow/7?unread=1&gate=unread").await;
    let mut paused = send_half_body(&site, "/slow/8?first=later").await;
    case.handler.sync_points.wait_for_arrival("unread").await;
    case.handler.sync_points.wait_for_arrival("later").await;
    wait_three_seconds(&site).await;
    case.handler.sync_points.open("unread");
    let answer = unread.read_until("\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    paused.write("other").await;
    case.handler.sync_points.open("later");
    let answer = paused.read_until("firstother").await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
}
