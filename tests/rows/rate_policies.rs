//! Several policies at once, and limits that depend on the request or its response.

use std::time::Duration;

use lockgate::{Decision, Key, Policy, Quota, RateLimiter, Store};
use lockgate_tests::{TestCase, TestRequest, TestResponse, TestSite};

/// Returns the names of the policies that refused a request.
#[track_caller]
fn violated_policies(answer: TestResponse) -> Vec<String> {
    let answer = answer.expect_status(429);
    let problem = answer.problem_document();
    let names = problem["violated-policies"].as_array().expect("a list");
    names.iter().map(|name| name.as_str().expect("a name").to_owned()).collect()
}

fn get_with_api_key(site: &TestSite, target: &str) -> TestRequest {
    site.get(target).header("x-api-key", "a")
}

/// Returns the remaining units of a policy according to the response.
#[track_caller]
fn remaining_units(answer: TestResponse, policy: &str) -> u64 {
    let answer = answer.expect_status(200);
    let header = answer.header_list("ratelimit");
    let (_, parameters) =
        header.split_once(&format!("\"{policy}\";r=")).expect("the header names the policy");
    parameters.split(';').next().and_then(|n| n.parse().ok()).expect("a number")
}

pub(crate) async fn all_policies_of_one_key_are_enforced(case: TestCase) {
    let site = case.start_site().await;
    for n in (0..3).rev() {
        let answer = get_with_api_key(&site, "/limits/alike").send().await.expect_status(200);
        assert!(
            answer.header("ratelimit-policy").contains("\"burst\";q=3;w=60, \"sliding\";q=4;w=60")
        );
        assert!(
            answer.json()["remaining"] == n,
            "the handler sees the least remaining units: {answer:?}"
        );
        assert_eq!(remaining_units(answer, "sliding"), n + 1);
    }
    let refused = get_with_api_key(&site, "/limits/alike").send().await;
    assert!(refused.retry_after_seconds() <= 20, "one of three a minute: {refused:?}");
    assert_eq!(violated_policies(refused), ["burst"]);
    let other = site.get("/limits/alike").header("x-api-key", "b").send().await;
    assert_eq!(remaining_units(other, "sliding"), 3);
}

/// A charge of the first policy is rolled back if the second one refuses.
pub(crate) async fn all_policies_of_several_keys_are_enforced(case: TestCase) {
    let site = case.start_site().await;
    let apart = |id: u8| site.get(&format!("/limits/apart/{id}"));
    for n in (0..2).rev() {
        assert_eq!(remaining_units(apart(1).send().await, "each"), n);
    }
    assert_eq!(violated_policies(apart(1).send().await), ["each"]);
    assert_eq!(remaining_units(apart(2).send().await, "all"), 0);
    for _ in 0..3 {
        assert_eq!(violated_policies(apart(3).send().await), ["all"]);
    }
    // A new process has an empty refusal cache, so both policies are evaluated.
    let other = case.start_site().await;
    let violated = violated_policies(other.get("/limits/apart/1").send().await);
    assert_eq!(violated, ["each", "all"], "each of them is named");
}

pub(crate) async fn groups_are_counted_separately(case: TestCase) {
    let site = case.start_site().await;
    let get_for_tenant =
        |tenant, id: u8| site.get(&format!("/limits/group/{id}")).header("x-api-key", tenant);
    for n in (0..2).rev() {
        assert_eq!(remaining_units(get_for_tenant("a", 1).send().await, "each"), n);
    }
    assert_eq!(violated_policies(get_for_tenant("a", 1).send().await), ["each"]);
    assert_eq!(remaining_units(get_for_tenant("a", 2).send().await, "tenant"), 0);
    assert_eq!(violated_policies(get_for_tenant("a", 3).send().await), ["tenant"]);
    assert_eq!(remaining_units(get_for_tenant("b", 1).send().await, "each"), 1, "another group");
}

pub(crate) async fn shadow_policy_refuses_no_request(case: TestCase) {
    let site = case.start_site().await;
    for n in (0..3).rev() {
        let answer = get_with_api_key(&site, "/limits/shadow").send().await;
        assert!(!answer.header_list("ratelimit").contains("watched"), "{answer:?}");
        assert_eq!(remaining_units(answer, "real"), n);
    }
    assert_eq!(violated_policies(get_with_api_key(&site, "/limits/shadow").send().await), ["real"]);
}

pub(crate) async fn duplicate_policy_is_charged_once(case: TestCase) {
    let site = case.start_site().await;
    for n in (0..3).rev() {
        assert_eq!(
            remaining_units(get_with_api_key(&site, "/limits/twice").send().await, "twice"),
            n
        );
    }
    assert_eq!(violated_policies(get_with_api_key(&site, "/limits/twice").send().await), ["twice"]);
}

pub(crate) async fn quota_lookup_selects_quota_by_plan(case: TestCase) {
    let site = case.start_site().await;
    let get_with_plan =
        |key, plan| site.get("/limits/plans").header("x-api-key", key).header("x-plan", plan);
    assert_eq!(remaining_units(get_with_plan("a", "2").send().await, "plans"), 1);
    assert_eq!(remaining_units(get_with_plan("a", "2").send().await, "plans"), 0);
    assert_eq!(violated_policies(get_with_plan("a", "2").send().await), ["plans"]);
    assert_eq!(remaining_units(get_with_plan("b", "9").send().await, "plans"), 8);
    for _ in 0..5 {
        let answer =
            site.get("/limits/plans").header("x-api-key", "c").send().await.expect_status(200);
        assert!(!answer.has_header("ratelimit"), "an unlimited quota adds no header: {answer:?}");
    }
}

pub(crate) async fn request_cost_is_charged(case: TestCase) {
    let site = case.start_site().await;
    let costs = |cost| get_with_api_key(&site, "/limits/cost").header("x-cost", cost);
    assert_eq!(remaining_units(costs("7").send().await, "cost"), 3);
    assert_eq!(violated_policies(costs("4").send().await), ["cost"]);
    assert_eq!(remaining_units(costs("3").send().await, "cost"), 0);
    let answer = costs("11").send().await.expect_status(403);
    assert!(!answer.has_header("retry-after"), "no waiting helps: {answer:?}");
}

pub(crate) async fn zero_quota_refuses_all_requests(case: TestCase) {
    let site = case.start_site().await;
    let zero = |target: &str| get_with_api_key(&site, target).header("x-plan", "0");
    for (target, name) in [("/limits/none", "none"), ("/limits/plans", "plans")] {
        for _ in 0..3 {
            let answer = zero(target).send().await;
            assert_eq!(answer.retry_after_seconds(), 60, "{answer:?}");
            assert_eq!(answer.header_list("ratelimit-policy"), format!("\"{name}\";q=0;w=60"));
            assert_eq!(answer.header_list("ratelimit"), format!("\"{name}\";r=0;t=60"));
            assert_eq!(violated_policies(answer), [name]);
        }
    }
    assert!(case.handler.completed_runs().is_empty(), "no handler has run");
}

/// The quota refills one unit a second; the debt is limited to ten windows.
pub(crate) async fn handler_cost_debt_is_bounded(case: TestCase) {
    let site = case.start_site().await;
    let max_cost = u64::MAX.to_string();
    let _ = get_with_api_key(&site, "/limits/paced")
        .header("x-cost", &max_cost)
        .send()
        .await
        .expect_status(200);
    let answer = get_with_api_key(&site, "/limits/paced").send().await;
    assert!((400..=602).contains(&answer.retry_after_seconds()), "{answer:?}");
    assert_eq!(violated_policies(answer), ["paced"]);
}

pub(crate) async fn failed_requests_can_be_refunded(case: TestCase) {
    let site = case.start_site().await;
    for _ in 0..4 {
        let _ =
            get_with_api_key(&site, "/limits/refund?status=503").send().await.expect_status(503);
    }
    for n in (0..2).rev() {
        assert_eq!(
            remaining_units(get_with_api_key(&site, "/limits/refund").send().await, "refund"),
            n
        );
    }
    assert_eq!(
        violated_policies(get_with_api_key(&site, "/limits/refund").send().await),
        ["refund"]
    );
}

pub(crate) async fn handler_can_set_the_cost(case: TestCase) {
    let site = case.start_site().await;
    let costs = |cost| get_with_api_key(&site, "/limits/handler").header("x-cost", cost);
    assert_eq!(remaining_units(costs("6").send().await, "handler"), 9);
    assert_eq!(remaining_units(costs("0").send().await, "handler"), 3);
    assert_eq!(remaining_units(costs("9").send().await, "handler"), 3);
    assert_eq!(violated_policies(costs("0").send().await), ["handler"]);
}

/// The total never exceeds the quota. At most ten units are refused early: five leased or in flight
/// for each of two processes.
pub(crate) async fn quota_leases_of_two_processes_share_one_quota(case: TestCase) {
    let other = case.site_builder().await.framework(case.framework.other());
    let (first_site, other) = (case.start_site().await, other.start().await);
    let sent: Vec<_> = (0..30)
        .flat_map(|_| {
            [&first_site, &other].map(|site| get_with_api_key(site, "/limits/leased").spawn())
        })
        .collect();
    let mut passed = 0;
    for answer in sent {
        match answer.response().await {
            answer if answer.status == 200 => passed += 1,
            answer => drop(violated_policies(answer)),
        }
    }
    assert!((10..=20).contains(&passed), "{passed} of 20");
}

/// Standalone limiter of a route's policy: it shares the counter because name and key are equal.
fn rate_limiter_for_policy(store: &Store, name: &str, requests: u64) -> RateLimiter {
    store.rate_limiter(
        Policy::new(Quota::requests(requests).per(Duration::from_secs(60))).with_name(name),
    )
}

async fn peek_quota(limit: &RateLimiter) -> Decision {
    limit.peek(Key::header("x-api-key", b"a"), 1).await.expect("the store is there")
}

async fn reset_quota(limit: &RateLimiter) {
    limit.reset(Key::header("x-api-key", b"a")).await.expect("the store is there");
}

/// Two refusals block the key for five minutes. Other keys and other routes are not affected.
pub(crate) async fn penalty_blocks_key_after_refusals(case: TestCase) {
    let (site, other) = (case.start_site().await, case.start_site().await);
    for n in (0..2).rev() {
        assert_eq!(
            remaining_units(get_with_api_key(&site, "/limits/strict").send().await, "strict"),
            n
        );
    }
    let first = get_with_api_key(&site, "/limits/strict").send().await;
    assert!(first.retry_after_seconds() <= 60, "the window: {first:?}");
    assert_eq!(violated_policies(first), ["strict"]);
    for site in [&other, &site, &other] {
        let blocked = get_with_api_key(site, "/limits/strict").send().await;
        assert!((61..=300).contains(&blocked.retry_after_seconds()), "the punishment: {blocked:?}");
        assert_eq!(violated_policies(blocked), ["strict"]);
    }
    let innocent = site.get("/limits/strict").header("x-api-key", "b").send().await;
    assert_eq!(remaining_units(innocent, "strict"), 1);
    assert_eq!(remaining_units(get_with_api_key(&site, "/limits/twice").send().await, "twice"), 2);
}

pub(crate) async fn penalty_ends_after_its_duration(case: TestCase) {
    let site = case.start_site().await;
    let answer = loop {
        // On a very slow machine the window may have ended, and no refusal occurs.
        let answer = get_with_api_key(&site, "/limits/brief").send().await;
        if answer.status != 200 {
            break answer;
        }
    };
    assert!((2..=3).contains(&answer.retry_after_seconds()), "longer than the window: {answer:?}");
    // Real time is the subject of this row.
    tokio::time::sleep(Duration::from_secs(answer.retry_after_seconds())).await;
    assert_eq!(remaining_units(get_with_api_key(&site, "/limits/brief").send().await, "brief"), 0);
}

pub(crate) async fn peek_reports_remaining_without_charge(case: TestCase) {
    let site = case.start_site().await;
    let limit = rate_limiter_for_policy(&case.new_store().await, "twice", 3);
    for n in (0..3).rev() {
        for _ in 0..3 {
            let decision = peek_quota(&limit).await;
            assert!(decision.is_admitted() && decision.remaining() == n + 1, "{decision:?}");
        }
        assert_eq!(
            remaining_units(get_with_api_key(&site, "/limits/twice").send().await, "twice"),
            n
        );
    }
    let decision = peek_quota(&limit).await;
    assert!(!decision.is_admitted() && decision.remaining() == 0, "{decision:?}");
    assert!(decision.retry_after() <= Duration::from_secs(60), "{decision:?}");
    assert_eq!(violated_policies(get_with_api_key(&site, "/limits/twice").send().await), ["twice"]);
}

/// A process that resets a key sees the effect at once, despite its refusal cache. The reset also
/// ends a penalty.
pub(crate) async fn reset_restores_the_quota(case: TestCase) {
    let site = case.start_site().await;
    for n in (0..3).rev() {
        assert_eq!(
            remaining_units(get_with_api_key(&site, "/limits/twice").send().await, "twice"),
            n
        );
    }
    assert_eq!(violated_policies(get_with_api_key(&site, "/limits/twice").send().await), ["twice"]);
    reset_quota(&rate_limiter_for_policy(site.store(), "twice", 3)).await;
    assert_eq!(remaining_units(get_with_api_key(&site, "/limits/twice").send().await, "twice"), 2);
    for _ in 0..2 {
        let _ = get_with_api_key(&site, "/limits/strict").send().await.expect_status(200);
    }
    for _ in 0..2 {
        assert_eq!(
            violated_policies(get_with_api_key(&site, "/limits/strict").send().await),
            ["strict"]
        );
    }
    // The reset comes from another process.
    reset_quota(&rate_limiter_for_policy(&case.new_store().await, "strict", 2)).await;
    assert_eq!(
        remaining_units(get_with_api_key(&site, "/limits/strict").send().await, "strict"),
        1
    );
}
