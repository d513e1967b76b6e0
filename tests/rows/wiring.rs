//! Applications that are put together wrongly: refused, never let through.

use lockgate_tests::{Answer, Case};

use super::{accepted, lock::busy};

/// A 500 that tells nothing but that.
#[track_caller]
pub(super) fn our_fault(answer: Answer) {
    let answer = answer.expect(500);
    super::tells_no_token(&answer, "");
    let problem = answer.problem();
    let told: Vec<_> = problem.as_object().expect("a document").keys().collect();
    assert_eq!(told, ["status", "title", "type"], "{problem}");
    let title = problem["title"].as_str().unwrap_or_default();
    let inside = ["redis", "store", "layer", "axum", "actix", "param", "wait"];
    let title = title.to_lowercase();
    assert!(!inside.iter().any(|word| title.contains(word)), "{title}");
}

pub(crate) async fn without_a_store_nothing_passes(case: Case) {
    let site = case.plan().await.no_worker().forget_store().start().await;
    our_fault(site.post("/orders/7/pay").send().await);
    our_fault(site.post("/orders/7/refund").send().await);
    our_fault(site.get("/quota/three").send().await);
    our_fault(site.get("/deferred/00112233445566778899aabbccddeeff00").send().await);
    let _ = site.get("/orders/7/pay").send().await.expect(200);
    let _ = site.post("/nothing").send().await.expect(404);
    assert_eq!(case.desk.ran().len(), 1, "only what needs no store has run");
}

pub(crate) async fn a_parameter_that_the_route_lacks_is_our_fault(case: Case) {
    let site = case.site().await;
    our_fault(site.post("/wrong/7").send().await);
    assert_eq!(case.desk.ran().len(), 0);
}

/// A lock of the prefix's value would leave the handler's order without one.
pub(crate) async fn a_parameter_that_matches_twice_is_our_fault(case: Case) {
    let site = case.site().await;
    let inside = ["pay", "pay-number", "later", "to/8", "of/8", "quota"];
    for rest in inside {
        for tenant in [3, 7] {
            let target = format!("/tenants/{tenant}/orders/7/{rest}");
            our_fault(site.post(&target).body("note").send().await);
        }
    }
    our_fault(site.post("/hosted/3/orders/7/pay").send().await);
    our_fault(site.post("/around-tenants/3/orders/7").send().await);
    assert_eq!(case.desk.ran().len(), 0);
    // Another name that occurs once, and the same routes inside a prefix of another name.
    let held = site.hold("/orders/7/pay").await;
    busy(site.post("/tenants/3/orders/8/other/7").send().await);
    for rest in &inside[..2] {
        busy(site.post(&format!("/shops/3/orders/7/{rest}")).send().await);
        let _ = site.post(&format!("/shops/7/orders/8/{rest}")).send().await.expect(200);
    }
    let _ = held.let_go().await.expect(200);
}

pub(crate) async fn a_defer_layer_inside_the_lock_is_our_fault(case: Case) {
    let site = case.site().await;
    for target in ["/inverted/7", "/inverted-whole/7", "/between-locks/7"] {
        our_fault(site.post(target).body("note").send().await);
        assert_eq!(case.desk.ran().len(), 0);
        // What the outer layer took is given back.
        let _ = site.post("/orders/7/pay").send().await.expect(200);
        case.desk.forget();
    }
}

/// The other way round is right, whatever is set on the lock.
pub(crate) async fn a_defer_layer_outside_the_lock_is_right(case: Case) {
    let site = case.site().await;
    let hold = site.hold("/orders/7/pay").await;
    let jobs = ["/orders/7/refund", "/whole-refund/7", "/brief-refund/7", "/slow-refund/7"];
    let mut accepted_jobs = Vec::new();
    for target in jobs {
        accepted_jobs.push(accepted(site.post(target).body("note").send().await));
    }
    let _ = hold.let_go().await.expect(200);
    for job in accepted_jobs {
        assert_eq!(job.done(&site).await["body"], "note");
    }
}
