//! Until when a request keeps its lock: `/orders/{id}/pay` until its handler has answered, `/whole/{id}`
//! until the body of the answer has ended.

use lockgate_tests::{Case, Raw, Site};

use super::{accepted, lock::busy, on_loss::lost, passes_at_once};

/// Asks, and reads as far as to the gate in the middle of the body.
async fn streams(site: &Site, target: &str) -> Raw {
    let mut raw = site.raw().await;
    let head = format!("POST {target} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
    raw.write(head).await;
    let answer = raw.read_until("first").await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    raw
}

/// The chunk of length zero: without it the client knows that something is missing.
const END: &str = "\r\n0\r\n\r\n";

/// Free at once, without anybody waiting for it.
async fn is_free(site: &Site, order: &str) {
    let _ = site.post(&format!("/orders/{order}/pay")).send().await.expect(200);
}

pub(crate) async fn answered_is_before_the_body_has_ended(case: Case) {
    let site = case.site().await;
    let mut raw = streams(&site, "/orders/7/pay?stream=more").await;
    is_free(&site, "7").await;
    case.desk.gates.open("more");
    let rest = raw.read_to_end().await;
    assert!(rest.contains("last") && rest.ends_with(END), "{rest}");
}

pub(crate) async fn the_body_has_ended(case: Case) {
    let site = case.site().await;
    for target in ["/whole/7?stream=a", "/whole-twice/7?stream=b"] {
        let mut raw = streams(&site, target).await;
        busy(site.post("/orders/7/pay").send().await);
        case.desk.gates.open(&target[target.len() - 1..]);
        let rest = raw.read_until(END).await;
        assert!(rest.contains("last"), "{rest}");
        // It was given back before the client could see the end.
        is_free(&site, "7").await;
    }
}

pub(crate) async fn a_body_of_known_length_or_none_has_ended(case: Case) {
    let site = case.site().await;
    for _ in 0..5 {
        let answer = site.post("/whole/7?text=word").send().await.expect(200);
        assert_eq!(answer.field("content-length"), "4", "{answer:?}");
        assert_eq!(answer.text(), "word");
        is_free(&site, "7").await;
        let _ = site.post("/whole/7?status=204").send().await.expect(204);
        is_free(&site, "7").await;
        let _ = site.request("HEAD", "/whole/7").send().await.expect(200);
        is_free(&site, "7").await;
        let empty = site.post("/whole/7?echo=1").send().await.expect(200);
        assert!(empty.body.is_empty(), "{empty:?}");
        is_free(&site, "7").await;
    }
}

pub(crate) async fn the_body_was_dropped(case: Case) {
    let site = case.site().await;
    let raw = streams(&site, "/whole/7?stream=never").await;
    busy(site.post("/orders/7/pay").send().await);
    drop(raw);
    passes_at_once(&site, "7").await;
}

pub(crate) async fn the_body_broke_off(case: Case) {
    let site = case.site().await;
    for how in ["error", "panic"] {
        let mut raw = streams(&site, &format!("/whole/7?stream={how}&breaks={how}")).await;
        busy(site.post("/orders/7/pay").send().await);
        case.desk.gates.open(how);
        let rest = raw.read_to_end().await;
        assert!(!rest.contains("last") && !rest.ends_with(END), "{rest}");
        passes_at_once(&site, "7").await;
    }
}

/// More than all buffers between hold, so that the body waits for its reader.
pub(crate) async fn a_slow_reader_holds_it(case: Case) {
    let site = case.site().await;
    let mut raw = streams(&site, "/whole/7?stream=much&mib=16").await;
    case.desk.gates.open("much");
    let _ = raw.read_until("....").await;
    busy(site.post("/orders/7/pay").send().await);
    let rest = raw.read_to_end().await;
    assert!(rest.ends_with(&format!("last{END}")), "it is whole");
    is_free(&site, "7").await;
    // And one that goes away in the middle.
    let mut raw = streams(&site, "/whole/7?stream=much&mib=16").await;
    let _ = raw.read_until("....").await;
    busy(site.post("/orders/7/pay").send().await);
    drop(raw);
    passes_at_once(&site, "7").await;
}

pub(crate) async fn the_handler_ended_otherwise(case: Case) {
    let site = case.site().await;
    let _ = site.post("/whole/7?status=500").send().await.expect(500);
    is_free(&site, "7").await;
    let answer = site.post("/whole/7?panic=1").try_send().await;
    assert!(answer.is_err(), "both frameworks close the connection: {answer:?}");
    passes_at_once(&site, "7").await;
    let hold = site.hold("/whole/7").await;
    busy(site.post("/orders/7/pay").send().await);
    hold.disconnect().await;
    passes_at_once(&site, "7").await;
    lost(site.hold("/brief-whole/7").await.answer().await, "too-long");
    passes_at_once(&site, "7").await;
}

pub(crate) async fn a_loss_breaks_the_body_off(case: Case) {
    let site = case.site().await;
    let mut raw = streams(&site, "/brief-whole/7?stream=never").await;
    let rest = raw.read_to_end().await;
    assert!(!rest.ends_with(END), "{rest}");
    passes_at_once(&site, "7").await;
}

pub(crate) async fn a_loss_lets_the_body_go_on(case: Case) {
    let site = case.site().await;
    let mut raw = streams(&site, "/brief-whole-finish/7?stream=more").await;
    // Somebody else has had the lock meanwhile.
    passes_at_once(&site, "7").await;
    case.desk.gates.open("more");
    let rest = raw.read_to_end().await;
    assert!(rest.contains("last") && rest.ends_with(END), "{rest}");
}

/// Its worker reads the whole body under the job's own lock, whatever the layer says.
pub(crate) async fn a_run_holds_its_own(case: Case) {
    let site = case.site().await;
    let hold = site.hold("/orders/7/pay").await;
    let job = accepted(site.post("/whole-refund/7?stream=more").send().await);
    let _ = hold.let_go().await.expect(200);
    case.desk.gates.arrived("more").await;
    busy(site.post("/orders/7/pay").send().await);
    case.desk.gates.open("more");
    let document = job.ended(&site).await;
    assert_eq!(document["state"], "done", "{document}");
    let stored = site.get(&format!("{}/response", job.location)).send().await.expect(200);
    assert_eq!(stored.text(), "first-last");
}
