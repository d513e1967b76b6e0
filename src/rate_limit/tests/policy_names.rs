//! Names of policies, for clients and in the store.

use std::collections::HashMap;

use proptest::prelude::*;

use super::*;
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
