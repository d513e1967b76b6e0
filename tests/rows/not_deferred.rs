//! Requests that get the plain busy response although a DeferLayer is there.

use std::{net::Ipv4Addr, time::Duration};

use http::StatusCode;
use lockgate_tests::{TestCase, TestResponse, WebFramework, eventually};
use parking_lot::Mutex;

use super::{expect_accepted, lock::expect_busy};

#[track_caller]
fn expect_busy_without_location(answer: TestResponse) {
    assert!(!answer.has_header("location"), "{answer:?}");
    expect_busy(answer);
}

pub(crate) async fn body_over_the_limit_is_not_deferred(case: TestCase) {
    let site = case.start_site().await;
    let hold = site.post_held("/orders/7/pay").await;
    expect_busy_without_location(site.post("/small/7").body([b'x'; 17].to_vec()).send().await);
    let job = expect_accepted(site.post("/small/7").body([b'x'; 16].to_vec()).send().await);
    expect_busy_without_location(
        site.post("/orders/7/refund").body(vec![b'x'; 64 * 1024 + 1]).send().await,
    );
    let large =
        expect_accepted(site.post("/orders/7/refund").body(vec![b'x'; 64 * 1024]).send().await);
    let _ = hold.finish().await.expect_status(200);
    assert_eq!(job.wait_until_done(&site).await["body"], "x".repeat(16));
    assert_eq!(large.wait_until_done(&site).await["body"], "x".repeat(64 * 1024));
}

/// Servers accept much longer heads than the default storage limit of 16 KiB.
pub(crate) async fn head_over_the_limit_is_not_deferred(case: TestCase) {
    let site = case.start_site().await;
    let hold = site.post_held("/orders/7/pay").await;
    let with = |lines: usize, length: usize| {
        let request = site.post("/orders/7/refund");
        (0..lines)
            .fold(request, |request, n| request.header(&format!("x-long-{n}"), &"x".repeat(length)))
    };
    expect_busy_without_location(with(1, 17 * 1024).send().await);
    expect_busy_without_location(with(9, 2 * 1024).send().await);
    // actix-web refuses heads over 128 KiB.
    let lines = if case.framework == WebFramework::Axum { 35 } else { 10 };
    expect_busy_without_location(with(lines, 10 * 1024).send().await);
    let long = format!("/orders/7/refund?{}", "x".repeat(17 * 1024));
    expect_busy_without_location(site.post(&long).send().await);
    let job = expect_accepted(with(7, 2 * 1024).send().await);
    let _ = hold.finish().await.expect_status(200);
    let _ = job.wait_until_done(&site).await;
    assert_eq!(case.handler.completed_runs().len(), 2, "none of the others has run");
}

/// `/shared-budget/{id}` has a budget of 4 MiB for all bodies. One client declares the longest
/// bodies and sends one byte of each.
pub(crate) async fn one_client_cannot_exhaust_the_body_budget(case: TestCase) {
    let site = case.start_site().await;
    let hold = site.post_held("/orders/7/pay").await;
    let body = || site.post("/shared-budget/7").body(vec![b'x'; 64 * 1024]);
    let idle = Mutex::new(Vec::new());
    eventually("the client's share of the buffer budget to be used up", async || {
        for _ in 0..10 {
            let mut raw = site.raw_connection().await;
            let head =
                "POST /shared-budget/7 HTTP/1.1\r\nhost: x\r\ncontent-length: 65536\r\n\r\nx";
            raw.write(head).await;
            idle.lock().push(raw);
        }
        body().send().await.status == StatusCode::CONFLICT
    })
    .await;
    let other = expect_accepted(body().from_address(Ipv4Addr::new(127, 0, 0, 2)).send().await);
    drop(idle);
    let _ = hold.finish().await.expect_status(200);
    let _ = other.wait_until_done(&site).await;
}

/// The declared length alone causes the refusal; the body is not awaited.
pub(crate) async fn long_content_length_is_refused_before_the_body(case: TestCase) {
    let site = case.start_site().await;
    let hold = site.post_held("/orders/7/pay").await;
    let mut raw = site.raw_connection().await;
    raw.write("POST /small/7 HTTP/1.1\r\nhost: x\r\ncontent-length: 17\r\n\r\n").await;
    let answer = raw.read_until("\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 409 "), "{answer}");
    let _ = hold.finish().await.expect_status(200);
}

/// `/hasty/{id}` limits the total body time to 300 ms. Each byte arrives within it; the whole body
/// would take five times as long.
pub(crate) async fn slow_body_is_not_deferred(case: TestCase) {
    let site = case.start_site().await;
    let hold = site.post_held("/orders/7/pay").await;
    let mut raw = site.raw_connection().await;
    raw.write("POST /hasty/7 HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\nfirst").await;
    let answer = raw.write_slowly("other", Duration::from_millis(290)).await;
    assert!(answer.starts_with("HTTP/1.1 409 "), "{answer}");
    assert!(!answer.to_ascii_lowercase().contains("\r\nlocation:"), "{answer}");
    let job = expect_accepted(site.post("/hasty/7").body("at once").send().await);
    let _ = hold.finish().await.expect_status(200);
    assert_eq!(job.wait_until_done(&site).await["body"], "at once");
}

pub(crate) async fn chunked_body_over_the_limit_is_not_deferred(case: TestCase) {
    let site = case.start_site().await;
    let hold = site.post_held("/orders/7/pay").await;
    let head = "POST /small/7 HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\
                transfer-encoding: chunked\r\n\r\n";
    for (body, status) in [
        ("8\r\n12345678\r\n8\r\n12345678\r\n0\r\n\r\n", "202"),
        ("8\r\n12345678\r\n9\r\n123456789\r\n0\r\n\r\n", "409"),
    ] {
        let mut raw = site.raw_connection().await;
        raw.write(format!("{head}{body}")).await;
        let answer = raw.read_to_end().await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
    }
    let _ = hold.finish().await.expect_status(200);
}

pub(crate) async fn request_beyond_full_queue_is_not_deferred(case: TestCase) {
    let site = case.start_site().await;
    let hold = site.post_held("/orders/7/pay").await;
    let first = expect_accepted(site.post("/small/7").send().await);
    let second = expect_accepted(site.post("/small/7").send().await);
    expect_busy_without_location(site.post("/small/7").send().await);
    let _ = site.delete(&first.location).send().await.expect_status(204);
    let third = expect_accepted(site.post("/small/7").send().await);
    let _ = hold.finish().await.expect_status(200);
    let _ = second.wait_until_done(&site).await;
    let _ = third.wait_until_done(&site).await;
}

pub(crate) async fn request_beyond_owner_limit_is_not_deferred(case: TestCase) {
    let site = case.start_site().await;
    let hold = site.post_held("/orders/7/pay").await;
    let send = |user| site.post("/few/7").header("x-user", user).send();
    let first = expect_accepted(send("ada").await);
    let second = expect_accepted(send("ada").await);
    expect_busy_without_location(send("ada").await);
    let other = expect_accepted(send("bob").await);
    let _ = site.delete(&first.location).send().await.expect_status(204);
    let third = expect_accepted(send("ada").await);
    expect_busy_without_location(send("ada").await);
    let _ = hold.finish().await.expect_status(200);
    for job in [second, other, third] {
        let _ = job.wait_until_done(&site).await;
    }
    // An ended job does not count.
    let hold = site.post_held("/orders/7/pay").await;
    let last = expect_accepted(send("ada").await);
    let _ = hold.finish().await.expect_status(200);
    let _ = last.wait_until_done(&site).await;
}

/// Limits per owner, per resource and per queue: the second request exceeds each.
pub(crate) async fn request_beyond_any_storage_limit_is_not_deferred(case: TestCase) {
    let site = case.start_site().await;
    let hold = site.post_held("/orders/7/pay").await;
    for (target, for_all) in [
        ("/few-bytes/7", false),
        ("/thin/7", true),
        ("/queue-jobs/7", true),
        ("/queue-bytes/7", true),
    ] {
        let send = |user| site.post(target).header("x-user", user).body(vec![b'x'; 200]).send();
        let first = expect_accepted(send("ada").await);
        expect_busy_without_location(send("ada").await);
        let other = send("bob").await;
        if for_all {
            expect_busy_without_location(other);
        } else {
            let _ = site.delete(&expect_accepted(other).location).send().await.expect_status(204);
        }
        let _ = site.delete(&first.location).send().await.expect_status(204);
        let again = expect_accepted(send("ada").await);
        let _ = site.delete(&again.location).send().await.expect_status(204);
    }
    let _ = hold.finish().await.expect_status(200);
}

pub(crate) async fn upgrade_is_not_deferred(case: TestCase) {
    let site = case.start_site().await;
    let hold = site.post_held("/orders/7/pay").await;
    let upgrade = site.post("/orders/7/refund").header("connection", "upgrade");
    expect_busy_without_location(upgrade.header("upgrade", "websocket").send().await);
    let _ = hold.finish().await.expect_status(200);
}

pub(crate) async fn request_with_credential_is_not_deferred(case: TestCase) {
    let site = case.start_site().await;
    let hold = site.post_held("/orders/7/pay").await;
    let credentials = [
        ("Authorization", "Bearer x"),
        ("Cookie", "session=x"),
        ("Proxy-Authorization", "Basic x"),
        ("X-Api-Key", "x"),
        ("ApiKey", "x"),
        ("X-Auth-Token", "x"),
        ("X-Access-Token", "x"),
        ("X-Forwarded-Access-Token", "x"),
        ("X-Amz-Security-Token", "x"),
        ("X-Amzn-Oidc-Data", "x"),
        ("X-Goog-Iap-Jwt-Assertion", "x"),
        ("Cf-Access-Jwt-Assertion", "x"),
        ("X-Ms-Token-Aad-Id-Token", "x"),
        ("X-Vault-Token", "x"),
        ("Private-Token", "x"),
        ("X-Token", "x"),
        ("X-Client-Secret", "x"),
        ("X-Subject-Token", "x"),
    ];
    for (name, value) in credentials {
        expect_busy_without_location(
            site.post("/orders/7/refund").header(name, value).send().await,
        );
    }
    let _ = hold.finish().await.expect_status(200);
    let _ = site.post("/orders/7/pay").send().await.expect_status(200);
    assert_eq!(case.handler.completed_runs().len(), 2, "none of them has run");
}

pub(crate) async fn rewritten_busy_response_is_not_deferred(case: TestCase) {
    let site = case.start_site().await;
    let hold = site.post_held("/orders/7/pay").await;
    let answer = site.post("/rewritten/7").send().await.expect_status(418);
    assert!(!answer.has_header("location"), "{answer:?}");
    let _ = hold.finish().await.expect_status(200);
    let _ = site.post("/orders/7/pay").send().await.expect_status(200);
    assert_eq!(case.handler.completed_runs().len(), 2, "nothing was stored");
}

pub(crate) async fn rebuilt_busy_response_is_deferred(case: TestCase) {
    let site = case.start_site().await;
    let hold = site.post_held("/orders/7/pay").await;
    let job = expect_accepted(site.post("/rebuilt/7").body("note").send().await);
    let _ = hold.finish().await.expect_status(200);
    // The run's response passes the same middleware and loses its type there.
    let text = job.wait_until_done(&site).await;
    assert!(text.to_string().contains("note"), "{text}");
}
