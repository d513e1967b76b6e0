//! Policies that an operator changes, in two processes on a real server.

use super::{SECOND, server_process::ServerProcess, wait_until};
use crate::{
    Policy, Quota, RateLimiter,
    admin::{Operator, Permission},
    rate_limit::PolicyChange,
};

/// Waits until this limit applies.
async fn wait_for_limit(limiter: &RateLimiter, limit: u64) {
    wait_until("the processes to follow", async || {
        let decision = limiter.check("7", 0).await.unwrap();
        decision.policies()[0].policy().quota().limit() == limit
    })
    .await;
}

#[tokio::test]
async fn processes_follow_changes_blocks_and_their_ends() {
    let server = ServerProcess::start().await;
    let (store, other) =
        (server.store_with_long_timeout().await, server.store_with_long_timeout().await);
    let per_hour = |limit| Quota::requests(limit).per(3600 * SECOND);
    let policy = Policy::new(per_hour(2)).with_name("search");
    let limiters = [store.rate_limiter(policy.clone()), other.rate_limiter(policy)];
    let admin = store.admin(Operator::new("ada", Permission::Act));
    for limit in [3, 4] {
        let change = PolicyChange::new().quota(per_hour(limit));
        admin.set_policy("search", change, "a test").await.unwrap();
        for limiter in &limiters {
            wait_for_limit(limiter, limit).await;
        }
    }
    admin.block("search", "7", 3600 * SECOND, "a test").await.unwrap();
    for limiter in &limiters {
        wait_until("the processes to follow", async || {
            !limiter.check("7", 1).await.unwrap().is_admitted()
        })
        .await;
        assert!(limiter.check("8", 1).await.unwrap().is_admitted());
    }
    let left = store.inspect_limit("search", "7").await.unwrap();
    assert_eq!(left.quotas[0].quota, "4 per 3600s");
    assert!(left.quotas[0].blocked_for.is_some(), "{left}");
    let policies = store.policies().await.unwrap();
    assert_eq!((policies[0].processes, policies[0].changed_processes), (2, 2));
    let refused = &policies[0].top_refused[0];
    assert!(refused.subject == "7" && refused.refusals == policies[0].refusals, "{refused:?}");
    admin.unblock("search", "7", "a test").await.unwrap();
    let unblocked = store.inspect_limit("search", "7").await.unwrap();
    assert_eq!(unblocked.quotas[0].blocked_for, None);
    for limiter in &limiters {
        wait_until("the processes to follow", async || {
            limiter.check("7", 1).await.unwrap().is_admitted()
        })
        .await;
    }
    admin.clear_policy("search", "a test").await.unwrap();
    for limiter in &limiters {
        wait_for_limit(limiter, 2).await;
    }
}
