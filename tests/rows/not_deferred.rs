//! What gets the plain busy answer although a DeferLayer stands there.

use std::{net::Ipv4Addr, time::Duration};

use http::StatusCode;
use lockgate_tests::{Answer, Case, Framework, eventually};
use parking_lot::Mutex;

use super::{accepted, lock::busy};

#[track_caller]
fn plain(answer: Answer) {
    assert!(!answer.has("location"), "{answer:?}");
    busy(answer);
}

pub(crate) async fn a_body_over_the_limit(case: Case) {
    let site = case.site().await;
    let hold = site.hold("/orders/7/pay").await;
    plain(site.post("/small/7").body([b'x'; 17].to_vec()).send().await);
    let job = accepted(site.post("/small/7").body([b'x'; 16].to_vec()).send().await);
    plain(site.post("/orders/7/refund").body(vec![b'x'; 64 * 1024 + 1]).send().await);
    let large = accepted(site.post("/orders/7/refund").body(vec![b'x'; 64 * 1024]).send().await);
    let _ = hold.let_go().await.expect(200);
    assert_eq!(job.done(&site).await["body"], "x".repeat(16));
    assert_eq!(large.done(&site).await["body"], "x".repeat(64 * 1024));
}

/// What a server lets in of a head is far more than what a store should keep of it: by default 16 KiB.
pub(crate) async fn a_head_that_is_too_long(case: Case) {
    let site = case.site().await;
    let hold = site.hold("/orders/7/pay").await;
    let with = |lines: usize, length: usize| {
        let request = site.post("/orders/7/refund");
        (0..lines)
            .fold(request, |request, n| request.header(&format!("x-long-{n}"), &"x".repeat(length)))
    };
    plain(with(1, 17 * 1024).send().await);
    plain(with(9, 2 * 1024).send().await);
    // actix-web lets in no head of more than 128 KiB.
    let lines = if case.framework == Framework::Axum { 35 } else { 10 };
    plain(with(lines, 10 * 1024).send().await);
    let long = format!("/orders/7/refund?{}", "x".repeat(17 * 1024));
    plain(site.post(&long).send().await);
    let job = accepted(with(7, 2 * 1024).send().await);
    let _ = hold.let_go().await.expect(200);
    let _ = job.done(&site).await;
    assert_eq!(case.desk.ran().len(), 2, "none of the others has run");
}

/// `/shared-room/{id}` has 4 MiB for all bodies. One client says that it sends the longest ones, and sends a byte.
pub(crate) async fn one_client_leaves_room_for_the_bodies_of_others(case: Case) {
    let site = case.site().await;
    let hold = site.hold("/orders/7/pay").await;
    let body = || site.post("/shared-room/7").body(vec![b'x'; 64 * 1024]);
    let idle = Mutex::new(Vec::new());
    eventually("that client to have no more room", async || {
        for _ in 0..10 {
            let mut raw = site.raw().await;
            let head = "POST /shared-room/7 HTTP/1.1\r\nhost: x\r\ncontent-length: 65536\r\n\r\nx";
            raw.write(head).await;
            idle.lock().push(raw);
        }
        body().send().await.status == StatusCode::CONFLICT
    })
    .await;
    let other = accepted(body().from(Ipv4Addr::new(127, 0, 0, 2)).send().await);
    drop(idle);
    let _ = hold.let_go().await.expect(200);
    let _ = other.done(&site).await;
}

/// None of it has come, and none of it is waited for.
pub(crate) async fn a_body_that_says_it_is_too_long(case: Case) {
    let site = case.site().await;
    let hold = site.hold("/orders/7/pay").await;
    let mut raw = site.raw().await;
    raw.write("POST /small/7 HTTP/1.1\r\nhost: x\r\ncontent-length: 17\r\n\r\n").await;
    let answer = raw.read_until("\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 409 "), "{answer}");
    let _ = hold.let_go().await.expect(200);
}

/// `/hasty/{id}` reads for 300 ms in all: each byte comes within that, and the whole would take five times as long.
pub(crate) async fn a_body_that_takes_too_long(case: Case) {
    let site = case.site().await;
    let hold = site.hold("/orders/7/pay").await;
    let mut raw = site.raw().await;
    raw.write("POST /hasty/7 HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\nfirst").await;
    let answer = raw.dribble("other", Duration::from_millis(290)).await;
    assert!(answer.starts_with("HTTP/1.1 409 "), "{answer}");
    assert!(!answer.to_ascii_lowercase().contains("\r\nlocation:"), "{answer}");
    let job = accepted(site.post("/hasty/7").body("at once").send().await);
    let _ = hold.let_go().await.expect(200);
    assert_eq!(job.done(&site).await["body"], "at once");
}

pub(crate) async fn a_long_body_of_unknown_length(case: Case) {
    let site = case.site().await;
    let hold = site.hold("/orders/7/pay").await;
    let head = "POST /small/7 HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\
                transfer-encoding: chunked\r\n\r\n";
    for (body, status) in [
        ("8\r\n12345678\r\n8\r\n12345678\r\n0\r\n\r\n", "202"),
        ("8\r\n12345678\r\n9\r\n123456789\r\n0\r\n\r\n", "409"),
    ] {
        let mut raw = site.raw().await;
        raw.write(format!("{head}{body}")).await;
        let answer = raw.read_to_end().await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
    }
    let _ = hold.let_go().await.expect(200);
}

pub(crate) async fn a_line_that_is_full(case: Case) {
    let site = case.site().await;
    let hold = site.hold("/orders/7/pay").await;
    let first = accepted(site.post("/small/7").send().await);
    let second = accepted(site.post("/small/7").send().await);
    plain(site.post("/small/7").send().await);
    let _ = site.delete(&first.location).send().await.expect(204);
    let third = accepted(site.post("/small/7").send().await);
    let _ = hold.let_go().await.expect(200);
    let _ = second.done(&site).await;
    let _ = third.done(&site).await;
}

pub(crate) async fn an_owner_who_has_too_many(case: Case) {
    let site = case.site().await;
    let hold = site.hold("/orders/7/pay").await;
    let send = |user| site.post("/few/7").header("x-user", user).send();
    let first = accepted(send("ada").await);
    let second = accepted(send("ada").await);
    plain(send("ada").await);
    let other = accepted(send("bob").await);
    let _ = site.delete(&first.location).send().await.expect(204);
    let third = accepted(send("ada").await);
    plain(send("ada").await);
    let _ = hold.let_go().await.expect(200);
    for job in [second, other, third] {
        let _ = job.done(&site).await;
    }
    // What has run does not count any more.
    let hold = site.hold("/orders/7/pay").await;
    let last = accepted(send("ada").await);
    let _ = hold.let_go().await.expect(200);
    let _ = last.done(&site).await;
}

/// Of an owner, of a resource, and of the queue: each is met by the second request.
pub(crate) async fn each_bound_that_is_set(case: Case) {
    let site = case.site().await;
    let hold = site.hold("/orders/7/pay").await;
    for (target, for_all) in [
        ("/few-bytes/7", false),
        ("/thin/7", true),
        ("/queue-jobs/7", true),
        ("/queue-bytes/7", true),
    ] {
        let send = |user| site.post(target).header("x-user", user).body(vec![b'x'; 200]).send();
        let first = accepted(send("ada").await);
        plain(send("ada").await);
        let other = send("bob").await;
        if for_all {
            plain(other);
        } else {
            let _ = site.delete(&accepted(other).location).send().await.expect(204);
        }
        let _ = site.delete(&first.location).send().await.expect(204);
        let again = accepted(send("ada").await);
        let _ = site.delete(&again.location).send().await.expect(204);
    }
    let _ = hold.let_go().await.expect(200);
}

pub(crate) async fn an_upgrade(case: Case) {
    let site = case.site().await;
    let hold = site.hold("/orders/7/pay").await;
    let upgrade = site.post("/orders/7/refund").header("connection", "upgrade");
    plain(upgrade.header("upgrade", "websocket").send().await);
    let _ = hold.let_go().await.expect(200);
}

pub(crate) async fn a_credential(case: Case) {
    let site = case.site().await;
    let hold = site.hold("/orders/7/pay").await;
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
        plain(site.post("/orders/7/refund").header(name, value).send().await);
    }
    let _ = hold.let_go().await.expect(200);
    let _ = site.post("/orders/7/pay").send().await.expect(200);
    assert_eq!(case.desk.ran().len(), 2, "none of them has run");
}

pub(crate) async fn a_busy_answer_that_was_rewritten(case: Case) {
    let site = case.site().await;
    let hold = site.hold("/orders/7/pay").await;
    let answer = site.post("/rewritten/7").send().await.expect(418);
    assert!(!answer.has("location"), "{answer:?}");
    let _ = hold.let_go().await.expect(200);
    let _ = site.post("/orders/7/pay").send().await.expect(200);
    assert_eq!(case.desk.ran().len(), 2, "nothing was stored");
}

pub(crate) async fn a_busy_answer_that_was_made_anew_still_is(case: Case) {
    let site = case.site().await;
    let hold = site.hold("/orders/7/pay").await;
    let job = accepted(site.post("/rebuilt/7").body("note").send().await);
    let _ = hold.let_go().await.expect(200);
    // The response goes the same way through the routes when it runs, and loses its type there.
    let text = job.done(&site).await;
    assert!(text.to_string().contains("note"), "{text}");
}
