//! Several policies at once, and limits that depend on the request or its response.

use std::time::Duration;

use lockgate::{Decision, Key, Policy, Quota, RateLimiter, Store};
use lockgate_tests::{Answer, Case, Request, Site};

/// The policies that refuse it.
#[track_caller]
fn violated(answer: Answer) -> Vec<String> {
    let answer = answer.expect(429);
    let problem = answer.problem();
    let names = problem["violated-policies"].as_array().expect("a list");
    names.iter().map(|name| name.as_str().expect("a name").to_owned()).collect()
}

fn get(site: &Site, target: &str) -> Request {
    site.get(target).header("x-api-key", "a")
}

/// What is left of this policy, as the response tells it.
#[track_caller]
fn left(answer: Answer, policy: &str) -> u64 {
    let answer = answer.expect(200);
    let told = answer.list("ratelimit");
    let (_, rest) = told.split_once(&format!("\"{policy}\";r=")).expect("the policy is told");
    rest.split(';').next().and_then(|n| n.parse().ok()).expect("a number")
}

pub(crate) async fn several_policies_of_one_key_are_all_kept(case: Case) {
    let site = case.site().await;
    for n in (0..3).rev() {
        let answer = get(&site, "/limits/alike").send().await.expect(200);
        assert!(
            answer.field("ratelimit-policy").contains("\"burst\";q=3;w=60, \"sliding\";q=4;w=60")
        );
        assert!(answer.json()["remaining"] == n, "the handler sees who leaves least: {answer:?}");
        assert_eq!(left(answer, "sliding"), n + 1);
    }
    let refused = get(&site, "/limits/alike").send().await;
    assert!(refused.retry_after() <= 20, "one of three a minute: {refused:?}");
    assert_eq!(violated(refused), ["burst"]);
    let other = site.get("/limits/alike").header("x-api-key", "b").send().await;
    assert_eq!(left(other, "sliding"), 3);
}

/// What the first policy was charged comes back if the second one refuses.
pub(crate) async fn several_policies_of_several_keys_are_all_kept(case: Case) {
    let site = case.site().await;
    let apart = |id: u8| site.get(&format!("/limits/apart/{id}"));
    for n in (0..2).rev() {
        assert_eq!(left(apart(1).send().await, "each"), n);
    }
    assert_eq!(violated(apart(1).send().await), ["each"]);
    assert_eq!(left(apart(2).send().await, "all"), 0);
    for _ in 0..3 {
        assert_eq!(violated(apart(3).send().await), ["all"]);
    }
    // Of what a process remembers, the one may be forgotten sooner than the other: one that has to ask.
    let other = case.site().await;
    let both = violated(other.get("/limits/apart/1").send().await);
    assert_eq!(both, ["each", "all"], "each of them is named");
}

pub(crate) async fn a_group_counts_by_itself(case: Case) {
    let site = case.site().await;
    let of = |tenant, id: u8| site.get(&format!("/limits/group/{id}")).header("x-api-key", tenant);
    for n in (0..2).rev() {
        assert_eq!(left(of("a", 1).send().await, "each"), n);
    }
    assert_eq!(violated(of("a", 1).send().await), ["each"]);
    assert_eq!(left(of("a", 2).send().await, "tenant"), 0);
    assert_eq!(violated(of("a", 3).send().await), ["tenant"]);
    assert_eq!(left(of("b", 1).send().await, "each"), 1, "another group");
}

pub(crate) async fn a_shadow_refuses_nobody(case: Case) {
    let site = case.site().await;
    for n in (0..3).rev() {
        let answer = get(&site, "/limits/shadow").send().await;
        assert!(!answer.list("ratelimit").contains("watched"), "{answer:?}");
        assert_eq!(left(answer, "real"), n);
    }
    assert_eq!(violated(get(&site, "/limits/shadow").send().await), ["real"]);
}

pub(crate) async fn one_policy_twice_is_charged_once(case: Case) {
    let site = case.site().await;
    for n in (0..3).rev() {
        assert_eq!(left(get(&site, "/limits/twice").send().await, "twice"), n);
    }
    assert_eq!(violated(get(&site, "/limits/twice").send().await), ["twice"]);
}

pub(crate) async fn quotas_can_be_those_of_a_plan(case: Case) {
    let site = case.site().await;
    let of = |key, plan| site.get("/limits/plans").header("x-api-key", key).header("x-plan", plan);
    assert_eq!(left(of("a", "2").send().await, "plans"), 1);
    assert_eq!(left(of("a", "2").send().await, "plans"), 0);
    assert_eq!(violated(of("a", "2").send().await), ["plans"]);
    assert_eq!(left(of("b", "9").send().await, "plans"), 8);
    for _ in 0..5 {
        let answer = site.get("/limits/plans").header("x-api-key", "c").send().await.expect(200);
        assert!(!answer.has("ratelimit"), "there is nothing to tell: {answer:?}");
    }
}

pub(crate) async fn requests_can_cost_more_than_others(case: Case) {
    let site = case.site().await;
    let costs = |cost| get(&site, "/limits/cost").header("x-cost", cost);
    assert_eq!(left(costs("7").send().await, "cost"), 3);
    assert_eq!(violated(costs("4").send().await), ["cost"]);
    assert_eq!(left(costs("3").send().await, "cost"), 0);
    let answer = costs("11").send().await.expect(403);
    assert!(!answer.has("retry-after"), "no waiting helps: {answer:?}");
}

pub(crate) async fn a_quota_of_zero_refuses_all(case: Case) {
    let site = case.site().await;
    let zero = |target: &str| get(&site, target).header("x-plan", "0");
    for (target, name) in [("/limits/none", "none"), ("/limits/plans", "plans")] {
        for _ in 0..3 {
            let answer = zero(target).send().await;
            assert_eq!(answer.retry_after(), 60, "{answer:?}");
            assert_eq!(answer.list("ratelimit-policy"), format!("\"{name}\";q=0;w=60"));
            assert_eq!(answer.list("ratelimit"), format!("\"{name}\";r=0;t=60"));
            assert_eq!(violated(answer), [name]);
        }
    }
    assert!(case.desk.ran().is_empty(), "no handler has run");
}

/// At the rate of the quota, one a second, the client has paid it off in ten windows.
pub(crate) async fn what_a_handler_charges_is_bounded(case: Case) {
    let site = case.site().await;
    let most = u64::MAX.to_string();
    let _ = get(&site, "/limits/paced").header("x-cost", &most).send().await.expect(200);
    let answer = get(&site, "/limits/paced").send().await;
    assert!((400..=602).contains(&answer.retry_after()), "{answer:?}");
    assert_eq!(violated(answer), ["paced"]);
}

pub(crate) async fn failures_can_be_free(case: Case) {
    let site = case.site().await;
    for _ in 0..4 {
        let _ = get(&site, "/limits/refund?status=503").send().await.expect(503);
    }
    for n in (0..2).rev() {
        assert_eq!(left(get(&site, "/limits/refund").send().await, "refund"), n);
    }
    assert_eq!(violated(get(&site, "/limits/refund").send().await), ["refund"]);
}

pub(crate) async fn the_handler_can_say_what_it_cost(case: Case) {
    let site = case.site().await;
    let costs = |cost| get(&site, "/limits/handler").header("x-cost", cost);
    assert_eq!(left(costs("6").send().await, "handler"), 9);
    assert_eq!(left(costs("0").send().await, "handler"), 3);
    assert_eq!(left(costs("9").send().await, "handler"), 3);
    assert_eq!(violated(costs("0").send().await), ["handler"]);
}

/// Never more than the quota, whoever has leased of it. Refused early are at most as many as two processes
/// have leased, or are fetching, while others ask: five each.
pub(crate) async fn processes_lease_of_one_quota(case: Case) {
    let other = case.plan().await.framework(case.framework.other());
    let (one, other) = (case.site().await, other.start().await);
    let sent: Vec<_> = (0..30)
        .flat_map(|_| [&one, &other].map(|site| get(site, "/limits/leased").spawn()))
        .collect();
    let mut passed = 0;
    for answer in sent {
        match answer.answer().await {
            answer if answer.status == 200 => passed += 1,
            answer => drop(violated(answer)),
        }
    }
    assert!((10..=20).contains(&passed), "{passed} of 20");
}

/// One of those of the routes, used on its own: what counts is the policy's name, and the key.
fn alone(store: &Store, name: &str, requests: u64) -> RateLimiter {
    store.rate_limiter(
        Policy::new(Quota::requests(requests).per(Duration::from_secs(60))).with_name(name),
    )
}

async fn look(limit: &RateLimiter) -> Decision {
    limit.peek(Key::header("x-api-key", b"a"), 1).await.expect("the store is there")
}

async fn reset(limit: &RateLimiter) {
    limit.reset(Key::header("x-api-key", b"a")).await.expect("the store is there");
}

/// Two refusals, and the key is out for five minutes; others are not, nor is it on other routes.
pub(crate) async fn refusals_can_be_punished(case: Case) {
    let (site, other) = (case.site().await, case.site().await);
    for n in (0..2).rev() {
        assert_eq!(left(get(&site, "/limits/strict").send().await, "strict"), n);
    }
    let first = get(&site, "/limits/strict").send().await;
    assert!(first.retry_after() <= 60, "the window: {first:?}");
    assert_eq!(violated(first), ["strict"]);
    for site in [&other, &site, &other] {
        let blocked = get(site, "/limits/strict").send().await;
        assert!((61..=300).contains(&blocked.retry_after()), "the punishment: {blocked:?}");
        assert_eq!(violated(blocked), ["strict"]);
    }
    let innocent = site.get("/limits/strict").header("x-api-key", "b").send().await;
    assert_eq!(left(innocent, "strict"), 1);
    assert_eq!(left(get(&site, "/limits/twice").send().await, "twice"), 2);
}

pub(crate) async fn a_punishment_ends(case: Case) {
    let site = case.site().await;
    let answer = loop {
        // On a machine so slow that the second is over, there is nothing to punish.
        let answer = get(&site, "/limits/brief").send().await;
        if answer.status != 200 {
            break answer;
        }
    };
    assert!((2..=3).contains(&answer.retry_after()), "longer than the window: {answer:?}");
    // Time itself is what is promised here.
    tokio::time::sleep(Duration::from_secs(answer.retry_after())).await;
    assert_eq!(left(get(&site, "/limits/brief").send().await, "brief"), 0);
}

pub(crate) async fn a_look_tells_what_is_left_and_costs_nothing(case: Case) {
    let site = case.site().await;
    let limit = alone(&case.store().await, "twice", 3);
    for n in (0..3).rev() {
        for _ in 0..3 {
            let told = look(&limit).await;
            assert!(told.is_admitted() && told.remaining() == n + 1, "{told:?}");
        }
        assert_eq!(left(get(&site, "/limits/twice").send().await, "twice"), n);
    }
    let told = look(&limit).await;
    assert!(!told.is_admitted() && told.remaining() == 0, "{told:?}");
    assert!(told.retry_after() <= Duration::from_secs(60), "{told:?}");
    assert_eq!(violated(get(&site, "/limits/twice").send().await), ["twice"]);
}

/// A process that has reset a key knows of it at once, whatever it remembers; a punishment ends by it.
pub(crate) async fn a_reset_forgets_what_was_spent(case: Case) {
    let site = case.site().await;
    for n in (0..3).rev() {
        assert_eq!(left(get(&site, "/limits/twice").send().await, "twice"), n);
    }
    assert_eq!(violated(get(&site, "/limits/twice").send().await), ["twice"]);
    reset(&alone(site.store(), "twice", 3)).await;
    assert_eq!(left(get(&site, "/limits/twice").send().await, "twice"), 2);
    for _ in 0..2 {
        let _ = get(&site, "/limits/strict").send().await.expect(200);
    }
    for _ in 0..2 {
        assert_eq!(violated(get(&site, "/limits/strict").send().await), ["strict"]);
    }
    // By another process.
    reset(&alone(&case.store().await, "strict", 2)).await;
    assert_eq!(left(get(&site, "/limits/strict").send().await, "strict"), 1);
}
