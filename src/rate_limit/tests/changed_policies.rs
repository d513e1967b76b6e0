//! Policies that operators change while processes run.

use super::{
    SECOND,
    gate_requests::{gate_by_header, run_request},
    named_policy, per_minute, remaining_in_store,
};
use crate::{
    gate::Gate as _,
    rate_limit::{PolicyChange, RateLimiter},
    store::{BackendFault, Store, StoredPolicyChanges, faulty_store},
};

async fn change(store: &Store, name: &str, change: PolicyChange) {
    let insert = |policies: &mut std::collections::BTreeMap<_, _>| {
        policies.insert(name.to_owned(), change);
    };
    store.edit_changed_policies(insert).await.expect("it answers");
}

/// Returns the limit that applies to a check without a cost, which starts to follow the changes.
async fn current_limit(limiter: &RateLimiter) -> u64 {
    let decision = limiter.check("7", 0).await.expect("it answers");
    decision.policies()[0].policy().quota().limit()
}

/// Waits until this limit applies, for at most a second.
async fn wait_for_limit(limiter: &RateLimiter, limit: u64) {
    let applies = async {
        while current_limit(limiter).await != limit {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(SECOND, applies).await.expect("all processes follow within a second");
}

#[tokio::test]
async fn changed_quota_applies_in_all_processes_until_it_is_cleared() {
    let store = Store::memory();
    let policy = named_policy("search", per_minute(2));
    let limiters = [store.clone(), store.as_another_process()]
        .map(|process| process.rate_limiter(policy.clone()));
    for limiter in &limiters {
        assert_eq!(current_limit(limiter).await, 2);
        assert!(limiter.check("7", 1).await.expect("it answers").is_admitted());
    }
    assert!(!limiters[0].check("7", 1).await.expect("it answers").is_admitted());

    change(&store, "search", PolicyChange::new().quota(per_minute(3))).await;
    for limiter in &limiters {
        wait_for_limit(limiter, 3).await;
    }
    let admitted = limiters[0].check("7", 1).await.expect("it answers");
    assert!(admitted.is_admitted(), "neither the usage nor the refusal stands in the way");
    assert!(!limiters[1].check("7", 1).await.expect("it answers").is_admitted());

    store.edit_changed_policies(std::collections::BTreeMap::clear).await.expect("it answers");
    for limiter in &limiters {
        wait_for_limit(limiter, 2).await;
    }
    assert_eq!(store.changed_policies().await.expect("it answers").version, 2);
}

#[tokio::test]
async fn new_process_follows_before_its_first_request() {
    let store = Store::memory();
    change(&store, "search", PolicyChange::new().quota(per_minute(3))).await;
    let policy = named_policy("search", per_minute(2));
    let new_processes = [store.as_another_process(), store.as_another_process()];
    let limiter = new_processes[0].rate_limiter(policy.clone());
    let layer = gate_by_header("a", policy).store(&new_processes[1]);
    layer.validate_settings();
    let followed =
        async { while store.policies().await.expect("it answers")[0].changed_processes != 2 {} };
    tokio::time::timeout(10 * SECOND, followed).await.expect("both follow within a second");
    assert_eq!(current_limit(&limiter).await, 3);
    for expected in [200, 200, 200, 429] {
        assert_eq!(run_request(&layer, 200).await, expected);
    }
}

#[tokio::test]
async fn shadow_mode_applies_to_layers() {
    let store = Store::memory();
    let layer = gate_by_header("a", named_policy("search", per_minute(1))).store(&store);
    assert_eq!(run_request(&layer, 200).await, 200);
    assert_eq!(run_request(&layer, 200).await, 429);
    change(&store, "other", PolicyChange::new().quota(per_minute(9))).await;
    change(&store, "search", PolicyChange::new().shadow(true)).await;
    let admitted = async {
        while run_request(&layer, 200).await != 200 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(SECOND, admitted).await.expect("the layer follows within a second");
}

#[tokio::test]
async fn leased_units_are_returned_when_the_quota_changes() {
    let store = Store::memory();
    let policy = named_policy("search", per_minute(100)).quota_lease(50);
    let limiter = store.rate_limiter(policy.clone());
    assert!(limiter.check("7", 1).await.expect("it answers").is_admitted());
    assert_eq!(remaining_in_store(&store, &policy, "7").await, 50);
    change(&store, "search", PolicyChange::new().quota(per_minute(200))).await;
    wait_for_limit(&limiter, 200).await;
    let wide = named_policy("search", per_minute(200));
    while remaining_in_store(&store, &wide, "7").await != 199 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn unreadable_document_and_outage_leave_the_last_changes() {
    let (store, faults) = faulty_store();
    let limiter = store.rate_limiter(named_policy("search", per_minute(2)));
    current_limit(&limiter).await;
    change(&store, "search", PolicyChange::new().quota(per_minute(3))).await;
    wait_for_limit(&limiter, 3).await;
    let valid = r#"{"policies":{"search":{"quota":{"counting":"unlimited"}},"#;
    for (version, document) in [(2, format!(r#"{valid}"a":{{"cost":1}}}}}}"#)), (3, "{".to_owned())]
    {
        let reads = faults.call_count("read_policy_changes");
        let new = StoredPolicyChanges { version, document };
        let replaced = store.backend().replace_policy_changes(version - 1, new).await;
        assert!(replaced.expect("it answers"));
        while faults.call_count("read_policy_changes") == reads {
            tokio::task::yield_now().await;
        }
        assert_eq!(current_limit(&limiter).await, 3);
        assert!(store.changed_policies().await.is_err());
    }
    faults.set("read_policy_changes", BackendFault::Unavailable, 1);
    let repaired = StoredPolicyChanges { version: 4, document: r#"{"policies":{}}"#.to_owned() };
    let replaced = store.backend().replace_policy_changes(3, repaired).await;
    assert!(replaced.expect("it answers"));
    let reads = faults.call_count("read_policy_changes");
    while faults.call_count("read_policy_changes") == reads {
        tokio::task::yield_now().await;
    }
    assert_eq!(current_limit(&limiter).await, 3, "the read has failed");
    while current_limit(&limiter).await != 2 {
        tokio::time::advance(SECOND).await;
    }
}
