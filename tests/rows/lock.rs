//! Locks: who excludes whom.

use lockgate_tests::{Answer, Case};

use super::{fence, tells_no_token};

/// A busy answer, with everything that is promised of one.
#[track_caller]
pub(super) fn busy(answer: Answer) -> serde_json::Value {
    let answer = answer.expect(409);
    // Never more than what is left of the lease: then it is free, whatever has become of the holder.
    assert!(answer.retry_after() <= 10, "{answer:?}");
    let problem = answer.problem();
    assert_eq!(problem["type"], "urn:lockgate:problem:busy");
    tells_no_token(&answer, "");
    problem
}

pub(crate) async fn a_busy_lock_is_409(case: Case) {
    let (site, other) = (case.site().await, case.site().await);
    let hold = site.hold("/orders/7/pay").await;
    busy(site.post("/orders/7/pay").send().await);
    busy(other.delete("/orders/7/pay").send().await);
    let _ = site.post("/orders/8/pay").send().await.expect(200);
    let _ = hold.let_go().await.expect(200);
    let _ = other.post("/orders/7/pay").send().await.expect(200);
}

pub(crate) async fn routes_share_the_lock_of_a_parameter(case: Case) {
    let site = case.site().await;
    let hold = site.hold("/orders/7/pay").await;
    busy(site.post("/orders/7/hurry").send().await);
    busy(site.post("/nested/7").send().await);
    let _ = hold.let_go().await.expect(200);
    let hold = site.hold("/nested/7").await;
    busy(site.post("/orders/7/pay").send().await);
    let _ = hold.let_go().await.expect(200);
}

/// Also the scope `a:b` with the value `c`, and the scope `a` with the value `b:c`.
pub(crate) async fn scopes_are_apart(case: Case) {
    let site = case.site().await;
    let hold = site.hold("/orders/7/pay").await;
    let user = site.hold("/users/7").await;
    busy(site.post("/users/7").send().await);
    let _ = user.let_go().await.expect(200);
    let _ = hold.let_go().await.expect(200);
    let one = site.hold("/ab/c").await;
    let other = site.hold("/a/b:c").await;
    busy(site.post("/a/b%3Ac").send().await);
    let _ = one.let_go().await.expect(200);
    let _ = other.let_go().await.expect(200);
}

pub(crate) async fn a_header_can_name_the_lock(case: Case) {
    let site = case.site().await;
    let post = || site.post("/account");
    let _ = post().send().await.expect(400).problem();
    let twice = post().header("x-account", "a").header("x-account", "a");
    let _ = twice.send().await.expect(400).problem();
    let hold = site.hold_with(post().header("x-account", "a"), "/account").await;
    busy(post().header("X-Account", "a").send().await);
    let _ = post().header("x-account", "b").send().await.expect(200);
    let _ = hold.let_go().await.expect(200);
}

pub(crate) async fn nested_layers_of_one_key_do_not_block_each_other(case: Case) {
    let site = case.site().await;
    let first = site.post("/nested/7").send().await.expect(200);
    // Given back by the outer layer, once.
    let second = site.post("/nested/7").send().await.expect(200);
    assert!(fence(&second) > fence(&first));
    let _ = site.post("/orders/7/pay").send().await.expect(200);
}

pub(crate) async fn safe_methods_and_preflights_take_no_lock(case: Case) {
    let site = case.site().await;
    let hold = site.hold("/orders/7/pay").await;
    let answer = site.get("/orders/7/pay").send().await.expect(200);
    assert!(answer.json()["fence"].is_null(), "{answer:?}");
    let answer = site.get("/orders/7/refund").send().await.expect(200);
    assert!(answer.json()["fence"].is_null(), "{answer:?}");
    let _ = site.request("HEAD", "/orders/7/pay").send().await.expect(200);
    let _ = site.request("OPTIONS", "/orders/7/pay").send().await.expect(200);
    for target in ["/orders/7/pay", "/orders/7/refund"] {
        let preflight = site
            .request("OPTIONS", target)
            .header("origin", "https://shop.example")
            .header("access-control-request-method", "POST");
        let _ = preflight.send().await.expect(200);
    }
    let _ = hold.let_go().await.expect(200);
}

pub(crate) async fn what_is_not_routed_leaves_no_lock(case: Case) {
    let site = case.site().await;
    let hold = site.hold("/orders/7/pay").await;
    let _ = site.post("/orders/7/nothing").send().await.expect(404);
    let _ = site.post("/nothing").send().await.expect(404);
    let _ = hold.let_go().await.expect(200);
    let _ = site.request("PATCH", "/orders/7/pay").send().await.expect(405);
    let _ = site.post("/orders/7/pay").send().await.expect(200);
}

/// The handler reads the first half while the client has not sent the second.
pub(crate) async fn a_body_that_arrives_under_the_lock_is_streamed(case: Case) {
    let site = case.site().await;
    for target in ["/orders/7/pay", "/orders/8/refund"] {
        let gate = target.replace('/', "-");
        let mut raw = site.raw().await;
        let head = format!(
            "POST {target}?first={gate} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\
             content-length: 10\r\n\r\nfirst"
        );
        raw.write(head).await;
        case.desk.gates.arrived(&gate).await;
        raw.write("other").await;
        case.desk.gates.open(&gate);
        let answer = raw.read_to_end().await;
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        assert!(answer.contains(r#""body":"firstother""#), "{answer}");
    }
}
