//! Locks that a request takes, and their modes: several locks, stripes, readers, permits.

use std::{
    collections::HashSet,
    time::{Duration, Instant},
};

use lockgate_tests::{TestCase, TestRequest, TestResponse, eventually};

use super::{expect_accepted, lock::expect_busy, measure_acquire, queue_length, response_fence};

/// Names and fences of the locks that the handler saw.
#[track_caller]
fn response_locks(answer: &TestResponse) -> Vec<(String, u64)> {
    let document = answer.json();
    let locks = document["locks"].as_array().unwrap_or_else(|| panic!("no locks: {answer:?}"));
    let lock = |lock: &serde_json::Value| Some((lock[0].as_str()?.to_owned(), lock[1].as_u64()?));
    locks.iter().map(|each| lock(each).expect("a name and a fence")).collect()
}

#[track_caller]
fn lock_names(answer: &TestResponse) -> Vec<String> {
    response_locks(answer).into_iter().map(|(name, _)| name).collect()
}

pub(crate) async fn keys_of_one_stripe_share_a_lock(case: TestCase) {
    let site = case.start_site().await;
    let hold = site.post_held("/stripes/7").await;
    expect_busy(site.post("/stripes/8").send().await);
    // Stripes are separate locks: operations exclude each other only with equal stripe counts.
    let _ = site.post("/orders/7/pay").send().await.expect_status(200);
    let _ = hold.finish().await.expect_status(200);
    let answer = site.post("/stripes/8").send().await.expect_status(200);
    assert_eq!(lock_names(&answer), ["s:p.id::1.0"]);
}

pub(crate) async fn parameters_with_shared_name_share_a_lock(case: TestCase) {
    let site = case.start_site().await;
    let hold = site.post_held("/orders/7/pay").await;
    expect_busy(site.post("/payments/7").send().await);
    let _ = site.post("/payments/8").send().await.expect_status(200);
    let _ = hold.finish().await.expect_status(200);
    let answer = site.post("/payments/7").send().await.expect_status(200);
    assert_eq!(lock_names(&answer), ["p:id::7"]);
}

/// The second part is a header, a path parameter or the result of a function.
pub(crate) async fn two_part_keys_differ_in_each_part(case: TestCase) {
    let site = case.start_site().await;
    let by_header =
        |tenant: &str, id: &str| site.post(&format!("/tenant/{id}")).header("x-tenant", tenant);
    let by_param = |tenant: &str, id: &str| site.post(&format!("/tenant/{tenant}/{id}"));
    let by_function =
        |tenant: &str, id: &str| site.post(&format!("/tenant-by/{id}")).header("x-user", tenant);
    type KeyedRequest<'a> = &'a dyn Fn(&str, &str) -> TestRequest;
    let key_sources: [(KeyedRequest<'_>, &str); 3] =
        [(&by_header, "/tenant/7"), (&by_param, "/tenant/a/7"), (&by_function, "/tenant-by/7")];
    for (request, held) in key_sources {
        let hold = site.send_held(request("a", "7"), held).await;
        expect_busy(request("a", "7").send().await);
        let _ = request("b", "7").send().await.expect_status(200);
        let _ = request("a", "8").send().await.expect_status(200);
        let _ = site.post("/orders/7/pay").send().await.expect_status(200);
        let _ = hold.finish().await.expect_status(200);
        let _ = request("a", "7").send().await.expect_status(200);
    }
    for without in ["/tenant/7", "/tenant-by/7"] {
        let _ = site.post(without).send().await.expect_status(400).problem_document();
    }
}

pub(crate) async fn lock_set_locks_both_accounts(case: TestCase) {
    let (store, site, other) =
        (case.new_store().await, case.start_site().await, case.start_site().await);
    let hold = site.post_held("/transfer/2/1").await;
    for id in ["1", "2"] {
        expect_busy(site.post(&format!("/orders/{id}/pay")).send().await);
    }
    let _ = site.post("/orders/3/pay").send().await.expect_status(200);
    let reverse_transfer = other.post("/transfer/1/2").spawn();
    // The request waits for the first of its locks and holds none.
    eventually("it to join the queue", async || {
        queue_length(&store, "1").await + queue_length(&store, "2").await == 1
    })
    .await;
    let transfer = hold.finish().await.expect_status(200);
    assert_eq!(lock_names(&transfer), ["p:id::2", "p:id::1"], "as the layer names them");
    let reverse_transfer = reverse_transfer.response().await.expect_status(200);
    for (name, after) in response_locks(&reverse_transfer) {
        let before = response_locks(&transfer).into_iter().find(|(other, _)| *other == name);
        assert!(
            before.is_some_and(|(_, before)| before < after),
            "{transfer:?} {reverse_transfer:?}"
        );
    }
    assert_eq!(
        lock_names(&site.post("/transfer/5/5").send().await.expect_status(200)),
        ["p:id::5"]
    );
    measure_acquire(&site, "1").await;
    measure_acquire(&site, "2").await;
}

/// Two processes of two frameworks lock every pair of three accounts in both orders.
pub(crate) async fn opposite_lock_sets_never_deadlock(case: TestCase) {
    let site = case.start_site().await;
    let other_site = case.site_builder().await.framework(case.framework.other()).start().await;
    let sites = [&site, &other_site];
    let started = Instant::now();
    let transfers: Vec<_> = (0..60)
        .map(|n| {
            let (from, to) = (n % 3, (n / 3 + 1 + n) % 3);
            sites[n % 2].post(&format!("/transfer/{from}/{to}")).spawn()
        })
        .collect();
    let mut grants = HashSet::new();
    for transfer in transfers {
        for lock in response_locks(&transfer.response().await.expect_status(200)) {
            assert!(grants.insert(lock.clone()), "two at once: {lock:?}");
        }
    }
    let elapsed = started.elapsed();
    println!("figure: 60 transfers in both orders {} ms", elapsed.as_millis());
    assert!(elapsed < Duration::from_secs(10), "{elapsed:?}");
}

pub(crate) async fn request_for_several_locks_is_not_deferred(case: TestCase) {
    let site = case.start_site().await;
    let hold = site.post_held("/orders/1/pay").await;
    for target in ["/transfer-later/1/2", "/transfer-later/2/1"] {
        let answer = site.post(target).send().await;
        assert!(!answer.has_header("location"), "{answer:?}");
        expect_busy(answer);
        // The free locks of the set are released before the response arrives.
        let _ = site.post("/orders/2/pay").send().await.expect_status(200);
    }
    let job = expect_accepted(site.post("/transfer-later/1/1").send().await);
    let _ = hold.finish().await.expect_status(200);
    let _ = job.wait_until_done(&site).await;
}

pub(crate) async fn function_can_name_several_locks(case: TestCase) {
    let site = case.start_site().await;
    let post_accounts = |names: &str| site.post("/accounts").header("x-accounts", names);
    let hold = site.send_held(post_accounts("a,b,a"), "/accounts").await;
    expect_busy(post_accounts("b,c").send().await);
    expect_busy(post_accounts("a").send().await);
    let _ = post_accounts("c").send().await.expect_status(200);
    let answer = hold.finish().await.expect_status(200);
    assert_eq!(lock_names(&answer), ["c:account::a", "c:account::b"]);
    let _ = post_accounts("b,c").send().await.expect_status(200);
    let _ = site.post("/accounts").send().await.expect_status(400).problem_document();
    let too_many: Vec<_> = (0..33).map(|n| n.to_string()).collect();
    let _ = post_accounts(&too_many.join(",")).send().await.expect_status(400).problem_document();
    let _ = post_accounts(&too_many[1..].join(",")).send().await.expect_status(200);
}

pub(crate) async fn readers_share_and_writers_exclude(case: TestCase) {
    let (site, other) = (case.start_site().await, case.start_site().await);
    let first = site.send_held(site.get(""), "/document/7").await;
    let second = other.send_held(other.get(""), "/document/7").await;
    let _ = site.request("HEAD", "/document/7").send().await.expect_status(200);
    expect_busy(other.post("/document/7").send().await);
    expect_busy(site.post("/orders/7/pay").send().await);
    let (first, second) =
        (first.finish().await.expect_status(200), second.finish().await.expect_status(200));
    assert_ne!(response_fence(&first), response_fence(&second));
    let writer = site.post_held("/document/7").await;
    expect_busy(site.get("/document/7").send().await);
    expect_busy(other.put("/document/7").send().await);
    let preflight = site.request("OPTIONS", "/document/7").send().await.expect_status(200);
    assert!(preflight.json()["fence"].is_null(), "{preflight:?}");
    let written = writer.finish().await.expect_status(200);
    assert!(response_fence(&written) > response_fence(&first).max(response_fence(&second)));
}

pub(crate) async fn two_permits_admit_two_requests(case: TestCase) {
    let (site, other) = (case.start_site().await, case.start_site().await);
    let (first, second) = (site.post_held("/two/7").await, other.post_held("/two/7").await);
    let third = site.post("/two/7").send().await;
    assert!(!third.has_header("location"), "permits are not deferred: {third:?}");
    expect_busy(third);
    expect_busy(other.post("/orders/7/pay").send().await);
    let _ = first.finish().await.expect_status(200);
    let _ = other.post("/two/7").send().await.expect_status(200);
    let _ = second.finish().await.expect_status(200);
    measure_acquire(&site, "7").await;
}
