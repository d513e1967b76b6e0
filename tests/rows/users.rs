//! Users of one layer, who are told apart by the snapshot that their requests carry.

use std::panic::catch_unwind;

use lockgate_tests::{Case, Request, Site};
use serde_json::Value;

use super::{Job, accepted, lock::busy, wiring::our_fault};

/// A request of a user: `token` is the user, a point, and the number of the token.
fn of(token: &str, request: Request) -> Request {
    request.header("authorization", &format!("Bearer {token}"))
}

fn keyed(site: &Site, path: &str, token: &str) -> Request {
    of(token, site.post(path)).header("idempotency-key", "k")
}

/// The state of a job, as its user sees it; the other one sees none.
async fn state(site: &Site, job: &Job, user: &str) -> Value {
    let other = if user == "ada" { "bob" } else { "ada" };
    let _ = site.get(&job.location).header("x-user", other).send().await.expect(404).problem();
    let seen = site.get(&job.location).header("x-user", user).send().await.expect(200);
    seen.json()["state"].clone()
}

pub(crate) async fn a_key_is_its_users_alone(case: Case) {
    let site = case.plan().await.no_worker().start().await;
    let hold = site.hold("/orders/7/pay").await;
    let sent = async |token| accepted(keyed(&site, "/named/7", token).body("note").send().await);
    let (ada, bob) = (sent("ada.1").await, sent("bob.1").await);
    assert_ne!(ada.id, bob.id);
    for token in ["ada.1", "ada.2"] {
        assert_eq!(sent(token).await.id, ada.id, "{token}: one user, whichever token");
    }
    assert_eq!(state(&site, &ada, "ada").await, "queued");
    assert_eq!(state(&site, &bob, "bob").await, "queued");
    let other = keyed(&site, "/named/7", "bob.2").body("other");
    let _ = other.send().await.expect(422).problem();
    let _ = hold.let_go().await.expect(200);
}

pub(crate) async fn a_direct_run_is_remembered_for_its_user_alone(case: Case) {
    let (site, other) = (case.site().await, case.site().await);
    for token in ["ada.1", "bob.1"] {
        let _ = keyed(&site, "/named/7?tag=ran", token).send().await.expect(200);
    }
    assert_eq!(case.desk.tags(), ["ran", "ran"], "one for each user");
    for user in ["ada", "bob"] {
        let again = keyed(&other, "/named/7?tag=ran", &format!("{user}.2"));
        let job = accepted(again.send().await);
        assert_eq!(state(&other, &job, user).await, "done");
    }
    assert_eq!(case.desk.tags().len(), 2);
}

pub(crate) async fn the_first_wins_among_the_requests_of_one_user(case: Case) {
    let site = case.plan().await.no_worker().start().await;
    let hold = site.hold("/orders/7/pay").await;
    let put = async |token| accepted(of(token, site.put("/named-first/7")).send().await);
    let (ada, bob) = (put("ada.1").await, put("bob.1").await);
    assert_ne!(ada.id, bob.id);
    assert_eq!(put("ada.2").await.id, ada.id);
    assert_eq!(put("bob.2").await.id, bob.id);
    let _ = hold.let_go().await.expect(200);
}

pub(crate) async fn the_last_supersedes_no_other_users(case: Case) {
    let site = case.plan().await.no_worker().start().await;
    let hold = site.hold("/orders/7/pay").await;
    let put = async |token| accepted(of(token, site.put("/named-last/7")).send().await);
    let (ada, bob) = (put("ada.1").await, put("bob.1").await);
    assert_eq!(state(&site, &ada, "ada").await, "queued");
    let last = put("ada.2").await;
    assert_eq!(state(&site, &ada, "ada").await, "cancelled");
    assert_eq!(state(&site, &last, "ada").await, "queued");
    assert_eq!(state(&site, &bob, "bob").await, "queued");
    let _ = hold.let_go().await.expect(200);
}

/// Neither shared, nor ignored: a retry would run twice.
pub(crate) async fn a_key_of_a_user_whom_nothing_names_is_our_fault(case: Case) {
    let site = case.site().await;
    our_fault(keyed(&site, "/carried/7", "ada.1").send().await);
    // Its authentication has not known it: as where that is inside of the layer.
    let unknown = |path: &str| site.post(path).header("cookie", "a=b");
    for path in ["/carried/7", "/named/7"] {
        our_fault(unknown(path).header("idempotency-key", "k").send().await);
    }
    assert_eq!(case.desk.ran().len(), 0);
    // A request without a key shares nothing, and one without a user or a credential is nobody's.
    let _ = unknown("/named/7").send().await.expect(200);
    let hold = site.hold("/orders/7/pay").await;
    let _ = accepted(of("ada.1", site.post("/carried/7")).send().await);
    let nobody = || site.post("/carried/7").header("idempotency-key", "k").send();
    assert_eq!(accepted(nobody().await).id, accepted(nobody().await).id);
    busy(unknown("/named/7").send().await);
    let _ = hold.let_go().await.expect(200);
}

/// A credential that is kept makes a request some client's, and names none.
pub(crate) async fn clients_of_a_kept_credential_share_neither_keys_nor_merges(case: Case) {
    let site = case.plan().await.no_worker().start().await;
    let of_client = |request: Request, client| request.header("x-api-key", client);
    for path in ["/named-or-key/7", "/carried-or-key/7"] {
        for client in ["a", "b"] {
            let request = of_client(site.post(path), client).header("idempotency-key", "k");
            our_fault(request.send().await);
        }
    }
    assert_eq!(case.desk.ran().len(), 0);
    let hold = site.hold("/orders/7/pay").await;
    for path in ["/named-or-key/7", "/carried-or-key/7"] {
        let put = async |client| accepted(of_client(site.put(path), client).send().await).id;
        let (first, second) = (put("a").await, put("b").await);
        assert_ne!(first, second, "{path}");
        let again = put("a").await;
        assert!(again != first && again != second, "{path}: nothing names whose it is");
    }
    // A user has both, whichever key is sent along.
    let path = "/named-or-key/7";
    let both = async |token, client| {
        accepted(of_client(keyed(&site, path, token), client).send().await).id
    };
    let (ada, bob) = (both("ada.1", "a").await, both("bob.1", "a").await);
    assert_ne!(ada, bob);
    assert_eq!(both("ada.2", "b").await, ada);
    let put = async |token| accepted(of_client(of(token, site.put(path)), "a").send().await).id;
    assert_eq!(put("ada.1").await, put("ada.2").await);
    let _ = hold.let_go().await.expect(200);
}

pub(crate) async fn users_who_share_all_share_keys_and_merges(case: Case) {
    let site = case.plan().await.no_worker().start().await;
    let path = "/carried-by-all/7";
    let hold = site.hold("/orders/7/pay").await;
    let put = async |token| accepted(of(token, site.put(path)).send().await);
    assert_eq!(put("ada.1").await.id, put("bob.1").await.id);
    let post = async |token| accepted(keyed(&site, path, token).send().await);
    assert_eq!(post("ada.1").await.id, post("bob.1").await.id);
    let _ = hold.let_go().await.expect(200);
}

pub(crate) async fn a_layer_that_would_share_users_requests_is_refused(case: Case) {
    let panic = catch_unwind(|| case.framework.carry_unnamed()).expect_err("it is refused");
    let text = panic.downcast_ref::<String>().expect("a sentence");
    assert!(text.starts_with("DeferLayer::first_wins: "), "{text}");
}
