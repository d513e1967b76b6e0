//! Which locks a request takes, and how: several of them, stripes, readers, permits.

use std::{
    collections::HashSet,
    time::{Duration, Instant},
};

use lockgate_tests::{Answer, Case, Request, eventually};

use super::{accepted, fence, line, lock::busy, passes_at_once};

/// The locks that a handler saw: names and fences.
#[track_caller]
fn locks(answer: &Answer) -> Vec<(String, u64)> {
    let document = answer.json();
    let locks = document["locks"].as_array().unwrap_or_else(|| panic!("no locks: {answer:?}"));
    let lock = |lock: &serde_json::Value| Some((lock[0].as_str()?.to_owned(), lock[1].as_u64()?));
    locks.iter().map(|each| lock(each).expect("a name and a fence")).collect()
}

#[track_caller]
fn names(answer: &Answer) -> Vec<String> {
    locks(answer).into_iter().map(|(name, _)| name).collect()
}

pub(crate) async fn one_stripe_is_one_lock(case: Case) {
    let site = case.site().await;
    let hold = site.hold("/stripes/7").await;
    busy(site.post("/stripes/8").send().await);
    // Stripes are locks of their own: what is to exclude another has to have as many.
    let _ = site.post("/orders/7/pay").send().await.expect(200);
    let _ = hold.let_go().await.expect(200);
    let answer = site.post("/stripes/8").send().await.expect(200);
    assert_eq!(names(&answer), ["s:p.id::1.0"]);
}

pub(crate) async fn parameters_can_share_a_name(case: Case) {
    let site = case.site().await;
    let hold = site.hold("/orders/7/pay").await;
    busy(site.post("/payments/7").send().await);
    let _ = site.post("/payments/8").send().await.expect(200);
    let _ = hold.let_go().await.expect(200);
    let answer = site.post("/payments/7").send().await.expect(200);
    assert_eq!(names(&answer), ["p:id::7"]);
}

/// The second one is a header, a parameter, or what a function says.
pub(crate) async fn both_parts_of_a_key_count(case: Case) {
    let site = case.site().await;
    let by_header =
        |tenant: &str, id: &str| site.post(&format!("/tenant/{id}")).header("x-tenant", tenant);
    let by_param = |tenant: &str, id: &str| site.post(&format!("/tenant/{tenant}/{id}"));
    let by_function =
        |tenant: &str, id: &str| site.post(&format!("/tenant-by/{id}")).header("x-user", tenant);
    type Ask<'a> = &'a dyn Fn(&str, &str) -> Request;
    let ways: [(Ask<'_>, &str); 3] =
        [(&by_header, "/tenant/7"), (&by_param, "/tenant/a/7"), (&by_function, "/tenant-by/7")];
    for (of, held) in ways {
        let hold = site.hold_with(of("a", "7"), held).await;
        busy(of("a", "7").send().await);
        let _ = of("b", "7").send().await.expect(200);
        let _ = of("a", "8").send().await.expect(200);
        let _ = site.post("/orders/7/pay").send().await.expect(200);
        let _ = hold.let_go().await.expect(200);
        let _ = of("a", "7").send().await.expect(200);
    }
    for without in ["/tenant/7", "/tenant-by/7"] {
        let _ = site.post(without).send().await.expect(400).problem();
    }
}

pub(crate) async fn a_transfer_locks_both_accounts(case: Case) {
    let (store, site, other) = (case.store().await, case.site().await, case.site().await);
    let hold = site.hold("/transfer/2/1").await;
    for id in ["1", "2"] {
        busy(site.post(&format!("/orders/{id}/pay")).send().await);
    }
    let _ = site.post("/orders/3/pay").send().await.expect(200);
    let back = other.post("/transfer/1/2").spawn();
    // For the first of the two, with empty hands.
    eventually("it to stand in line", async || {
        line(&store, "1").await + line(&store, "2").await == 1
    })
    .await;
    let there = hold.let_go().await.expect(200);
    assert_eq!(names(&there), ["p:id::2", "p:id::1"], "as the layer names them");
    let back = back.answer().await.expect(200);
    for (name, after) in locks(&back) {
        let before = locks(&there).into_iter().find(|(other, _)| *other == name);
        assert!(before.is_some_and(|(_, before)| before < after), "{there:?} {back:?}");
    }
    assert_eq!(names(&site.post("/transfer/5/5").send().await.expect(200)), ["p:id::5"]);
    passes_at_once(&site, "1").await;
    passes_at_once(&site, "2").await;
}

/// Two processes of two frameworks, and every pair of three accounts in both orders.
pub(crate) async fn transfers_there_and_back_never_wait_in_a_circle(case: Case) {
    let here = case.site().await;
    let there = case.plan().await.framework(case.framework.other()).start().await;
    let sites = [&here, &there];
    let started = Instant::now();
    let transfers: Vec<_> = (0..60)
        .map(|n| {
            let (from, to) = (n % 3, (n / 3 + 1 + n) % 3);
            sites[n % 2].post(&format!("/transfer/{from}/{to}")).spawn()
        })
        .collect();
    let mut seen = HashSet::new();
    for transfer in transfers {
        for lock in locks(&transfer.answer().await.expect(200)) {
            assert!(seen.insert(lock.clone()), "two at once: {lock:?}");
        }
    }
    let took = started.elapsed();
    println!("figure: 60 transfers in both orders {} ms", took.as_millis());
    assert!(took < Duration::from_secs(10), "{took:?}");
}

pub(crate) async fn a_request_of_several_locks_is_not_deferred(case: Case) {
    let site = case.site().await;
    let hold = site.hold("/orders/1/pay").await;
    for target in ["/transfer-later/1/2", "/transfer-later/2/1"] {
        let answer = site.post(target).send().await;
        assert!(!answer.has("location"), "{answer:?}");
        busy(answer);
        // What was free of them is free again before the answer is there.
        let _ = site.post("/orders/2/pay").send().await.expect(200);
    }
    let job = accepted(site.post("/transfer-later/1/1").send().await);
    let _ = hold.let_go().await.expect(200);
    let _ = job.done(&site).await;
}

pub(crate) async fn a_function_can_name_several_locks(case: Case) {
    let site = case.site().await;
    let of = |names: &str| site.post("/accounts").header("x-accounts", names);
    let hold = site.hold_with(of("a,b,a"), "/accounts").await;
    busy(of("b,c").send().await);
    busy(of("a").send().await);
    let _ = of("c").send().await.expect(200);
    let answer = hold.let_go().await.expect(200);
    assert_eq!(names(&answer), ["c:account::a", "c:account::b"]);
    let _ = of("b,c").send().await.expect(200);
    let _ = site.post("/accounts").send().await.expect(400).problem();
    let many: Vec<_> = (0..33).map(|n| n.to_string()).collect();
    let _ = of(&many.join(",")).send().await.expect(400).problem();
    let _ = of(&many[1..].join(",")).send().await.expect(200);
}

pub(crate) async fn readers_share_and_writers_do_not(case: Case) {
    let (site, other) = (case.site().await, case.site().await);
    let first = site.hold_with(site.get(""), "/document/7").await;
    let second = other.hold_with(other.get(""), "/document/7").await;
    let _ = site.request("HEAD", "/document/7").send().await.expect(200);
    busy(other.post("/document/7").send().await);
    busy(site.post("/orders/7/pay").send().await);
    let (first, second) = (first.let_go().await.expect(200), second.let_go().await.expect(200));
    assert_ne!(fence(&first), fence(&second));
    let writer = site.hold("/document/7").await;
    busy(site.get("/document/7").send().await);
    busy(other.put("/document/7").send().await);
    let preflight = site.request("OPTIONS", "/document/7").send().await.expect(200);
    assert!(preflight.json()["fence"].is_null(), "{preflight:?}");
    let written = writer.let_go().await.expect(200);
    assert!(fence(&written) > fence(&first).max(fence(&second)));
}

pub(crate) async fn two_at_once_and_no_more(case: Case) {
    let (site, other) = (case.site().await, case.site().await);
    let (first, second) = (site.hold("/two/7").await, other.hold("/two/7").await);
    let third = site.post("/two/7").send().await;
    assert!(!third.has("location"), "permits are not deferred: {third:?}");
    busy(third);
    busy(other.post("/orders/7/pay").send().await);
    let _ = first.let_go().await.expect(200);
    let _ = other.post("/two/7").send().await.expect(200);
    let _ = second.let_go().await.expect(200);
    passes_at_once(&site, "7").await;
}
