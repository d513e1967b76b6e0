//! Rate limiter on the embedded store, with tokio's clock paused: time passes when all tasks are
//! idle.

mod access_lists;
mod cancellation;
mod changed_policies;
mod charge_settlement;
mod check_span;
mod fleet_policies;
mod gate_requests;
mod lease_prefetch;
mod multiple_policies;
mod nested_layers;
mod policies_of_one_key;
mod policy_names;
mod quota_bounds;
mod quota_lease;
mod refusal_cache;
mod single_policy;
mod store_outage;

use std::time::Duration;

use super::{Decision, Policy, Quota};
use crate::store::Store;

const SECOND: Duration = Duration::from_secs(1);

/// Quota of `requests` per minute.
fn per_minute(requests: u64) -> Quota {
    Quota::requests(requests).per(60 * SECOND)
}

fn named_policy(name: &str, quota: Quota) -> Policy {
    Policy::new(quota).with_name(name)
}

#[track_caller]
fn assert_admitted(decision: &Decision, remaining: u64) {
    assert!(decision.is_admitted(), "{decision:?}");
    assert_eq!(decision.remaining(), remaining, "{decision:?}");
    assert_eq!(decision.retry_after(), Duration::ZERO, "{decision:?}");
}

/// Asserts a refusal by these policies; returns its wait.
#[track_caller]
fn assert_refused(decision: &Decision, by: &[&str]) -> Duration {
    assert!(!decision.is_admitted(), "{decision:?}");
    let names: Vec<_> = decision.violated().map(|each| each.policy().name()).collect();
    assert_eq!(names, by, "{decision:?}");
    decision.retry_after()
}

/// Units left in the store, as another process sees them.
async fn remaining_in_store(store: &Store, policy: &Policy, key: &str) -> u64 {
    let other = store.as_another_process();
    let decision = other.rate_limiter(policy.clone()).peek(key, 1).await.expect("it answers");
    decision.policies()[0].remaining().expect("it was asked")
}
