//! Names of policies, for clients and in the store.

use std::{collections::HashMap, sync::Arc};

use proptest::prelude::*;

use super::{
    gate_requests::{enter_gate, gate_by_header, leave_gate, new_request},
    *,
};
use crate::{
    key::Key,
    store::{Algorithm, CounterKeyKind, KeyNames},
};

/// Names of letters that separate or escape the parts of keys, and some long names.
fn policy_name() -> impl Strategy<Value = String> {
    let letters = vec![
        'a', 'b', ':', '@', '%', '~', '-', '.', '1', ' ', '/', '"', '\n', '{', '}', '検', '登',
    ];
    let short = prop::collection::vec(prop::sample::select(letters), 0..4);
    let short = short.prop_map(String::from_iter);
    prop_oneof![9 => short.clone(), 1 => short.prop_map(|text| text + &"x".repeat(100))]
}

fn arbitrary_quota() -> impl Strategy<Value = Quota> {
    (1..4u64, 1..4u64, 1..4u64, any::<bool>()).prop_map(|(limit, window, burst, coarse)| {
        let window = window * if coarse { 1_000 } else { 400 };
        Quota::requests(limit).per(Duration::from_micros(window)).burst(burst)
    })
}

/// Name or quota, subject, group tag, and whether the counter counts refusals.
type CounterTemplate = (Result<String, Quota>, String, Option<String>, bool);

fn counter_template() -> impl Strategy<Value = CounterTemplate> {
    let policy = prop_oneof![3 => policy_name().prop_map(Ok), 1 => arbitrary_quota().prop_map(Err)];
    (policy, policy_name(), prop::option::of(policy_name()), any::<bool>())
}

fn policy_for(policy: &Result<String, Quota>) -> Policy {
    match policy {
        Ok(name) => Policy::new(per_minute(1)).with_name(name),
        Err(quota) => Policy::new(*quota),
    }
}

proptest! {
    #[test]
    fn distinct_counters_have_distinct_keys(all in prop::collection::vec(counter_template(), 2..60)) {
        let keys = KeyNames::new("shop");
        let mut seen = HashMap::new();
        for template in &all {
            let (policy, subject, tag, refusals) = template;
            let (policy, subject) = (policy_for(policy), Key::custom(subject));
            let tag = tag.as_ref().map_or_else(|| subject.clone(), |tag| Key::custom(tag));
            let kind_of = if *refusals { CounterKeyKind::refusals } else { CounterKeyKind::spent_units };
            let (kind, shard) = (kind_of(Algorithm::Gcra), tag.shard());
            let parts = keys.counter_parts(&tag, shard, kind, (policy.counter_name(), &subject));
            // A tag equal to the subject is no group.
            let grouped = (tag != subject).then(|| tag.clone());
            let identity = (template.0.clone(), template.1.clone(), grouped, *refusals);
            let first = seen.entry(parts.concat()).or_insert_with(|| identity.clone());
            prop_assert_eq!(&*first, &identity);
        }
    }

    #[test]
    fn distinct_names_have_distinct_labels(names in prop::collection::vec(policy_name(), 2..60)) {
        let mut seen = HashMap::new();
        for name in &names {
            let policy = Policy::new(per_minute(1)).with_name(name);
            prop_assert!(policy.name().bytes().all(|b| (b' '..=b'~').contains(&b)));
            let first = *seen.entry(policy.name().to_owned()).or_insert(name);
            prop_assert_eq!(first, name);
        }
    }
}

#[test]
fn common_policy_name_is_its_own_label() {
    for common in ["search", "per_minute", "v1.2-b", "a b", "a/b"] {
        assert_eq!(Policy::new(per_minute(1)).with_name(common).name(), common);
    }
    assert_eq!(Policy::new(per_minute(1)).with_name("検%").name(), "%E6%A4%9C%25");
}

#[test]
fn unnamed_policy_is_called_after_its_quota() {
    let per = |requests, window| Quota::requests(requests).per(window);
    for (quota, name) in [
        (per(10, SECOND), "10-per-1s"),
        (per_minute(100), "100-per-60s"),
        (per_minute(100).sliding(), "100-per-60s"),
        (per_minute(100).burst(20), "100-per-60s"),
        (per(3, Duration::from_millis(1_500)), "3-per-1500ms"),
        (per(3, Duration::from_micros(1_500)), "3-per-1500us"),
        (per(3, Duration::from_nanos(1_000_001)), "3-per-1000001ns"),
        (per_minute(0), "0-per-60s"),
        (Quota::unlimited(), "unlimited"),
    ] {
        assert_eq!(Policy::new(quota).name(), name);
    }
}

/// The names of a limiter's policies, in order.
async fn names_of(limit: &crate::RateLimiter) -> Vec<String> {
    let decision = limit.check("x", 1).await.expect("it answers");
    decision.policies().iter().map(|each| each.policy().name().to_owned()).collect()
}

#[tokio::test(start_paused = true)]
async fn unnamed_policies_of_one_quota_are_numbered() {
    let limit = Store::memory()
        .rate_limiter(per_minute(5))
        .and(per_minute(5).sliding())
        .and(Policy::new(per_minute(7)).with_name("5-per-60s-3"))
        .and(per_minute(5).gcra())
        .and(per_minute(6));
    let expected = ["5-per-60s", "5-per-60s-2", "5-per-60s-3", "5-per-60s-4", "6-per-60s"];
    assert_eq!(names_of(&limit).await, expected);
}

/// Counters that exist must still be found: the name is for clients alone.
#[test]
fn number_of_an_unnamed_policy_is_not_in_its_keys() {
    let first = Arc::new(Policy::new(per_minute(5)));
    let second = Policy::new(per_minute(5)).distinguished_from(&[&first].into_iter());
    assert_eq!((first.name(), second.name()), ("5-per-60s", "5-per-60s-2"));
    assert_eq!(&**first.counter_name(), "~5.60000.5");
    assert_eq!(first.counter_name(), second.counter_name());
}

#[tokio::test(start_paused = true)]
async fn headers_and_problem_name_two_unnamed_policies_apart() {
    let (brief, long) = (Quota::requests(1).per(SECOND), Quota::requests(1).per(SECOND).sliding());
    let limit = gate_by_header("a", brief)
        .and(gate_by_header("b", long).and(gate_by_header("a", per_minute(9))));
    let limit = limit.store(&Store::memory());
    let ticket = enter_gate(&limit, &mut new_request()).await.expect("the first is admitted");
    let header = leave_gate(&limit, ticket, 200).await;
    for name in ["\"1-per-1s\";r=0", "\"1-per-1s-2\";r=0", "\"9-per-60s\";r=8"] {
        assert!(header.contains(name), "{name} in {header}");
    }
    let refused = enter_gate(&limit, &mut new_request()).await.expect_err("both refuse");
    let problem: serde_json::Value = serde_json::from_slice(&refused.body).expect("JSON");
    assert_eq!(problem["violated-policies"][0], "1-per-1s", "{problem}");
    let headers = refused.headers.iter();
    let policies = headers.filter(|(name, _)| name == "ratelimit-policy");
    let policies: Vec<_> = policies.map(|(_, value)| value.clone().into_owned()).collect();
    assert!(policies.iter().all(|value| !value.contains("default")), "{policies:?}");
}
