//! `Idempotency-Key`.

use lockgate_tests::{Case, Request, Site};

use super::accepted;

fn keyed(site: &Site, key: &str) -> Request {
    site.post("/orders/7/refund?tag=job").header("idempotency-key", key)
}

pub(crate) async fn one_key_is_one_job(case: Case) {
    let (site, other) = (case.site().await, case.site().await);
    let hold = site.hold("/orders/7/pay?tag=hold").await;
    let job = accepted(keyed(&site, "\"k\"").body("note").send().await);
    let again = keyed(&other, "\"k\"").body("note").send().await;
    assert_eq!(again.json()["position"], 1, "{again:?}");
    assert_eq!(accepted(again).id, job.id);
    let bare = accepted(keyed(&site, "k").body("note").send().await);
    assert_eq!(bare.id, job.id);
    let other_key = accepted(keyed(&site, "\"l\"").body("note").send().await);
    assert_ne!(other_key.id, job.id);
    let with_parameters = accepted(keyed(&site, "\"k\"; v=1;w").body("note").send().await);
    assert_eq!(with_parameters.id, job.id, "they are not part of the string");
    let _ = hold.let_go().await.expect(200);
    let _ = job.done(&site).await;
    let _ = other_key.done(&site).await;
    assert_eq!(case.desk.tags(), ["hold", "job", "job"]);
}

/// RFC 8941 section 3.3.3 allows blanks, and escapes of quotes and backslashes.
pub(crate) async fn a_key_may_be_any_string(case: Case) {
    let site = case.site().await;
    let hold = site.hold("/orders/7/pay").await;
    let mut ids = Vec::new();
    for key in [r#""a b""#, r#""a\"b""#, r#""a\\b""#, r#""a;b""#] {
        let job = accepted(keyed(&site, key).send().await);
        assert_eq!(accepted(keyed(&site, key).send().await).id, job.id, "{key}");
        assert!(!ids.contains(&job.id), "{key}");
        ids.push(job.id);
    }
    let _ = hold.let_go().await.expect(200);
}

pub(crate) async fn another_request_under_the_key_is_refused(case: Case) {
    let site = case.site().await;
    let hold = site.hold("/orders/7/pay?tag=hold").await;
    let job = accepted(keyed(&site, "k").body("note").send().await);
    let _ = keyed(&site, "k").body("other").send().await.expect(422).problem();
    let query = site.post("/orders/7/refund?tag=other").header("idempotency-key", "k");
    let _ = query.body("note").send().await.expect(422).problem();
    let _ = hold.let_go().await.expect(200);
    let _ = job.done(&site).await;
    // On the free lock too: it is looked up before the lock is taken.
    let _ = keyed(&site, "k").body("other").send().await.expect(422).problem();
    assert_eq!(case.desk.tags(), ["hold", "job"]);
}

/// The client has not seen the 202 and asks again: while the job runs, and when it has run and the lock is free.
pub(crate) async fn a_retry_gets_the_job(case: Case) {
    let (site, other) = (case.site().await, case.site().await);
    let hold = site.hold("/orders/7/pay?tag=hold").await;
    let send = |site: &Site| {
        let sent = site.post("/orders/7/refund?tag=job&gate=run");
        sent.header("idempotency-key", "k").body("note").send()
    };
    let job = accepted(send(&site).await);
    let _ = hold.let_go().await.expect(200);
    case.desk.gates.arrived("run").await;
    let again = send(&site).await;
    assert_eq!(again.json()["state"], "running", "{again:?}");
    assert_eq!(accepted(again).id, job.id);
    case.desk.gates.open("run");
    let _ = job.done(&site).await;
    for site in [&site, &other] {
        let answer = send(site).await;
        assert_eq!(answer.json()["state"], "done", "{answer:?}");
        assert_eq!(accepted(answer).id, job.id);
    }
    assert_eq!(case.desk.gates.arrivals("run"), 1);
    assert_eq!(case.desk.tags(), ["hold", "job"], "it has run once");
    // The lookup leaves the lock as it was.
    let _ = site.post("/orders/7/pay").send().await.expect(200);
}

/// The same key is that of another request where the method or the route is another one: not a mismatch, either.
pub(crate) async fn methods_and_routes_do_not_share_keys(case: Case) {
    let site = case.site().await;
    let hold = site.hold("/orders/7/pay").await;
    let send = |method, target| {
        let sent = site.request(method, target).header("idempotency-key", "k");
        async move { accepted(sent.send().await).id }
    };
    let requests = [("POST", "/orders/7/refund"), ("PUT", "/orders/7/refund"), ("POST", "/kept/7")];
    let mut ids = Vec::new();
    for (method, target) in requests {
        ids.push(send(method, target).await);
    }
    assert!(ids[0] != ids[1] && ids[0] != ids[2] && ids[1] != ids[2], "{ids:?}");
    for ((method, target), id) in requests.into_iter().zip(&ids) {
        assert_eq!(send(method, target).await, *id, "{method} {target}");
    }
    let _ = hold.let_go().await.expect(200);
}

pub(crate) async fn a_malformed_key_is_refused(case: Case) {
    let site = case.site().await;
    let long = "x".repeat(256);
    for key in ["\"\"", "a b", "\"a", r#""a\"#, r#""a\b""#, "\"a\"b", "\"a\";V=1", &long] {
        let _ = keyed(&site, key).send().await.expect(400).problem();
    }
    let twice = keyed(&site, "a").header("Idempotency-Key", "b");
    let _ = twice.send().await.expect(400).problem();
    assert_eq!(case.desk.ran().len(), 0);
    let longest = "x".repeat(255);
    let _ = keyed(&site, &longest).send().await.expect(200);
}
