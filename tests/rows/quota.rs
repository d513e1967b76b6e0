//! Quotas: responses within a quota and beyond it.

use std::time::Duration;

use lockgate_tests::{TestCase, TestResponse, TestSite};
use sfv::{BareItem, Item, ListEntry, Parser};

/// Parses a `RateLimit` or `RateLimit-Policy` list into names and parameters with an independent
/// parser of structured fields.
#[track_caller]
pub(super) fn list_members(answer: &TestResponse, field: &str) -> Vec<(String, i64, i64)> {
    let (first, second) = match field {
        "ratelimit-policy" => ("q", "w"),
        _ => ("r", "t"),
    };
    let list: sfv::List =
        Parser::new(&answer.header_list(field)).parse().expect("a structured list");
    let entry = |entry: ListEntry| match entry {
        ListEntry::Item(item) => item,
        ListEntry::InnerList(list) => panic!("expected strings: {list:?}"),
    };
    let member = |item: Item| {
        let BareItem::String(name) = &item.bare_item else { panic!("expected a string: {item:?}") };
        let number = |name: &str| {
            let value = item.params.get(name).and_then(BareItem::as_integer);
            value.map(i64::from).unwrap_or_else(|| panic!("no {name}: {item:?}"))
        };
        (name.as_str().to_owned(), number(first), number(second))
    };
    list.into_iter().map(entry).map(member).collect()
}

#[track_caller]
pub(super) fn expect_admitted(answer: TestResponse, name: &str, limit: i64, remaining: i64) {
    let answer = answer.expect_status(200);
    assert_eq!(list_members(&answer, "ratelimit-policy"), [(name.to_owned(), limit, 60)]);
    let [(actual_name, actual_remaining, reset)] = &list_members(&answer, "ratelimit")[..] else {
        panic!("expected one quota: {answer:?}")
    };
    assert_eq!((actual_name.as_str(), *actual_remaining), (name, remaining), "{answer:?}");
    assert!((1..=60).contains(reset), "{answer:?}");
}

/// Expects a refusal by this quota. Returns the seconds until it resets.
#[track_caller]
pub(super) fn expect_quota_exceeded(answer: TestResponse, name: &str) -> i64 {
    let answer = answer.expect_status(429);
    let problem = answer.problem_document();
    assert_eq!(problem["type"], "https://iana.org/assignments/http-problem-types#quota-exceeded");
    assert_eq!(problem["violated-policies"], serde_json::json!([name]));
    let members = list_members(&answer, "ratelimit");
    let (_, remaining, reset) =
        members.iter().find(|member| member.0 == name).expect("its own quota");
    assert_eq!(*remaining, 0, "{answer:?}");
    assert!(*reset >= 1, "{answer:?}");
    assert!(i64::try_from(answer.retry_after_seconds()).unwrap() >= *reset, "{answer:?}");
    *reset
}

pub(crate) async fn responses_report_quota_and_refusals_are_not_charged(case: TestCase) {
    let site = case.start_site().await;
    let first = site.get("/quota/three").send().await;
    assert_eq!(first.json()["remaining"], 2, "the handler sees it too");
    expect_admitted(first, "three", 3, 2);
    expect_admitted(site.post("/quota/three").send().await, "three", 3, 1);
    expect_admitted(site.get("/quota/three").send().await, "three", 3, 0);
    let answer = site.get("/quota/three").send().await;
    assert_eq!(list_members(&answer, "ratelimit-policy"), [("three".to_owned(), 3, 60)]);
    let first = expect_quota_exceeded(answer, "three");
    assert_eq!(case.handler.completed_runs().len(), 3, "the handler has not run");
    for _ in 0..5 {
        let retried = expect_quota_exceeded(site.get("/quota/three").send().await, "three");
        assert!(retried <= first, "a refusal was charged");
    }
}

pub(crate) async fn policies_of_different_names_share_no_quota(case: TestCase) {
    let site = case.start_site().await;
    let names = [("/alike/search", "%E6%A4%9C%E7%B4%A2"), ("/alike/login", "%E7%99%BB%E9%8C%B2")];
    for (target, label) in names {
        expect_admitted(site.get(target).send().await, label, 1, 0);
        expect_quota_exceeded(site.get(target).send().await, label);
    }
    let policies =
        list_members(&site.get("/alike/names").send().await.expect_status(200), "ratelimit-policy");
    assert_eq!(policies, [("a/b".to_owned(), 1, 60), ("a b".to_owned(), 2, 60)]);
    expect_quota_exceeded(site.get("/alike/names").send().await, "a/b");
}

pub(crate) async fn request_after_retry_after_is_admitted(case: TestCase) {
    let site = case.start_site().await;
    let _ = site.get("/quota/second").send().await.expect_status(200);
    // On a very slow machine the window may have ended already.
    let answer = site.get("/quota/second").send().await;
    if answer.status != 200 {
        // Real time is the subject of this row.
        tokio::time::sleep(Duration::from_secs(answer.retry_after_seconds())).await;
        let _ = site.get("/quota/second").send().await.expect_status(200);
    }
}

pub(crate) async fn thirty_concurrent_requests_admit_ten(case: TestCase) {
    let (first_site, other) = (case.start_site().await, case.start_site().await);
    let sent: Vec<_> = (0..15)
        .flat_map(|_| [first_site.get("/quota/ten").spawn(), other.get("/quota/ten").spawn()])
        .collect();
    let mut passed = 0;
    for answer in sent {
        match answer.response().await {
            answer if answer.status == 200 => passed += 1,
            answer => drop(expect_quota_exceeded(answer, "ten")),
        }
    }
    assert_eq!(passed, 10);
    assert_eq!(case.handler.completed_runs().len(), 10);
}

pub(crate) async fn two_layers_report_two_quotas(case: TestCase) {
    let site = case.start_site().await;
    let answer = site.get("/quota/both/7").send().await.expect_status(200);
    let mut names: Vec<_> = list_members(&answer, "ratelimit-policy");
    names.sort();
    assert_eq!(names, [("inner".to_owned(), 2, 60), ("outer".to_owned(), 5, 60)]);
    assert_eq!(list_members(&answer, "ratelimit").len(), 2);
    let _ = site.get("/quota/both/7").send().await.expect_status(200);
    let answer = site.get("/quota/both/7").send().await;
    assert_eq!(list_members(&answer, "ratelimit").len(), 2, "{answer:?}");
    expect_quota_exceeded(answer, "inner");
    // The refused request was charged by the outer layer, so two of its five are left.
    spend_quota(&site, "/quota/both/8", 2).await;
    expect_quota_exceeded(site.get("/quota/both/9").send().await, "outer");
}

/// The key is a header, a path parameter or the result of a function.
pub(crate) async fn each_key_has_its_own_quota(case: TestCase) {
    let site = case.start_site().await;
    spend_quota(&site, "/quota/param/7", 2).await;
    expect_quota_exceeded(site.get("/quota/param/7").send().await, "param");
    expect_quota_exceeded(site.get("/quota/param/%37").send().await, "param");
    spend_quota(&site, "/quota/param/8", 2).await;
    let by_user = |user| site.get("/quota/user").header("x-user", user);
    for _ in 0..2 {
        let _ = by_user("ada").send().await.expect_status(200);
    }
    expect_quota_exceeded(by_user("ada").send().await, "user");
    let _ = by_user("bob").send().await.expect_status(200);
    let _ = site.get("/quota/user").send().await.expect_status(400).problem_document();
    let get = || site.get("/quota/header");
    let _ = get().send().await.expect_status(400).problem_document();
    let twice = get().header("x-api-key", "a").header("X-Api-Key", "b");
    let _ = twice.send().await.expect_status(400).problem_document();
    for _ in 0..2 {
        let _ = get().header("X-API-Key", "a").send().await.expect_status(200);
    }
    expect_quota_exceeded(get().header("x-api-key", "a").send().await, "header");
    let _ = get().header("x-api-key", "b").send().await.expect_status(200);
}

pub(crate) async fn forged_forwarding_headers_do_not_change_the_key(case: TestCase) {
    let site = case.start_site().await;
    let forged = |n: usize| {
        let address = format!("192.0.2.{n}");
        site.get("/quota/three")
            .header("x-forwarded-for", &address)
            .header("x-real-ip", &address)
            .header("forwarded", &format!("for={address}"))
    };
    for n in 0..3 {
        let _ = forged(n).send().await.expect_status(200);
    }
    expect_quota_exceeded(forged(3).send().await, "three");
}

pub(crate) async fn route_key_has_one_quota(case: TestCase) {
    let site = case.start_site().await;
    for order in 0..5 {
        spend_quota(&site, &format!("/quota/both/{order}"), 1).await;
    }
    expect_quota_exceeded(site.get("/quota/both/6").send().await, "outer");
}

pub(crate) async fn processes_share_a_quota(case: TestCase) {
    let other = case.site_builder().await.framework(case.framework.other());
    let (first_site, other) = (case.start_site().await, other.start().await);
    spend_quota(&first_site, "/quota/three", 2).await;
    expect_admitted(other.get("/quota/three").send().await, "three", 3, 0);
    expect_quota_exceeded(first_site.get("/quota/three").send().await, "three");
    expect_quota_exceeded(other.get("/quota/three").send().await, "three");
}

pub(super) async fn spend_quota(site: &TestSite, target: &str, times: usize) {
    for _ in 0..times {
        let _ = site.get(target).send().await.expect_status(200);
    }
}
