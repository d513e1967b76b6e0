//! Clients that dribble. `/slow/{id}` waits 300 ms in all for the body of a request.

use std::time::Duration;

use lockgate_tests::{Case, Raw, Site};

use super::{lock::busy, on_loss::lost, passes_at_once};

fn head(target: &str) -> String {
    format!("POST {target} HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\nfirst")
}

/// Sends the half of a body.
async fn half(site: &Site, target: &str) -> Raw {
    let mut raw = site.raw().await;
    raw.write(head(target)).await;
    raw
}

/// Three seconds go by at the site: far more than a client is waited for.
async fn some_seconds(site: &Site) {
    lost(site.hold("/brief/other").await.answer().await, "too-long");
}

#[track_caller]
fn told(answer: &str) {
    assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
    let fields = answer.to_ascii_lowercase();
    assert!(fields.contains("\r\ncontent-type: application/problem+json\r\n"), "{answer}");
    assert!(answer.contains("urn:lockgate:problem:body-too-slow"), "{answer}");
}

/// The handler makes the best of a body that breaks off, and would have answered 200.
pub(crate) async fn who_stops_is_told(case: Case) {
    let site = case.site().await;
    for target in ["/slow/7", "/slow-whole/7", "/slow-twice/7", "/slow-refund/7"] {
        let mut raw = half(&site, target).await;
        told(&raw.read_to_end().await);
        let _ = site.post("/orders/7/pay").send().await.expect(200);
    }
}

pub(crate) async fn who_dribbles_is_told(case: Case) {
    let site = case.site().await;
    let gate = "dribbles";
    let mut raw = half(&site, &format!("/slow/7?first={gate}")).await;
    case.desk.gates.arrived(gate).await;
    busy(site.post("/orders/7/pay").send().await);
    case.desk.gates.open(gate);
    // Its own pace: the whole would take five times as long as it has.
    told(&raw.dribble("other", Duration::from_millis(290)).await);
    passes_at_once(&site, "7").await;
}

pub(crate) async fn a_handler_that_has_its_body_may_take_its_time(case: Case) {
    let site = case.site().await;
    let with = site.hold_with(site.post("").body("note"), "/slow/7").await;
    let without = site.hold("/slow/8").await;
    some_seconds(&site).await;
    assert_eq!(with.let_go().await.expect(200).json()["body"], "note");
    let _ = without.let_go().await.expect(200);
}

/// Not read at all, or not for a while: nobody waits for the client.
pub(crate) async fn a_handler_that_does_not_wait_is_not_stopped(case: Case) {
    let site = case.site().await;
    let mut unread = half(&site, "/slow/7?unread=1&gate=unread").await;
    let mut later = half(&site, "/slow/8?first=later").await;
    case.desk.gates.arrived("unread").await;
    case.desk.gates.arrived("later").await;
    some_seconds(&site).await;
    case.desk.gates.open("unread");
    let answer = unread.read_until("\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    later.write("other").await;
    case.desk.gates.open("later");
    let answer = later.read_until("firstother").await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
}
