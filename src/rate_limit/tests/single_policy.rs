//! Single policies with each algorithm.

use super::{SECOND, assert_admitted, assert_refused, named_policy, per_minute};
use crate::{Policy, Quota, store::Store};

#[tokio::test(start_paused = true)]
async fn unlimited_quota_is_not_counted() {
    let limit = Store::memory().rate_limiter(Quota::unlimited());
    let decision = limit.check("x", u64::MAX).await.unwrap();
    assert_admitted(&decision, u64::MAX);
    assert_eq!(decision.policies()[0].remaining(), None);
}

#[test]
#[should_panic(expected = "exceeds the capacity of the quota")]
fn cost_above_the_quota_panics_at_construction() {
    let _ = Policy::new(per_minute(3)).cost(4);
}

#[test]
#[should_panic(expected = "only the quota of a fixed window can be leased")]
fn lease_of_a_gcra_quota_panics_at_construction() {
    let _ = Policy::new(per_minute(3).gcra()).quota_lease(4);
}

#[tokio::test(start_paused = true)]
async fn changed_quota_keeps_the_spent_units() {
    let store = Store::memory();
    let limit = |n| store.rate_limiter(Policy::new(per_minute(n)).with_name("p"));
    assert_admitted(&limit(10).check("x", 8).await.unwrap(), 2);
    assert_admitted(&limit(20).check("x", 1).await.unwrap(), 11);
    assert_refused(&limit(5).check("x", 1).await.unwrap(), &["p"]);
    // The cached refusal by the quota of five does not apply to that of twenty.
    assert_admitted(&limit(20).check("x", 1).await.unwrap(), 10);
}

/// Unnamed policies with different quotas are separate: the shorter window must not end the count
/// of the longer one.
#[tokio::test(start_paused = true)]
async fn unnamed_policies_with_distinct_quotas_count_separately() {
    let store = Store::memory();
    let (login, api) = (per_minute(3), Quota::requests(100).per(SECOND));
    for spent in 0..6 {
        let _ = store.rate_limiter(api).peek("x", 1).await.unwrap();
        assert_admitted(&store.rate_limiter(api).check("x", 1).await.unwrap(), 99);
        let decision = store.as_another_process().rate_limiter(login).check("x", 1).await.unwrap();
        assert_eq!(decision.is_admitted(), spent < 3, "{spent}");
        tokio::time::sleep(SECOND).await;
    }
}

/// As the layers of two routes do; names separate them.
#[tokio::test(start_paused = true)]
async fn unnamed_policies_of_one_quota_share_a_counter() {
    let (store, quota) = (Store::memory(), per_minute(1));
    assert_admitted(&store.rate_limiter(quota).check("x", 1).await.unwrap(), 0);
    assert!(!store.rate_limiter(quota).check("x", 1).await.unwrap().is_admitted());
    let named = store.rate_limiter(named_policy("b", quota));
    assert_admitted(&named.check("x", 1).await.unwrap(), 0);
}

#[tokio::test(start_paused = true)]
async fn free_peek_shows_remaining_units_and_penalty_block() {
    for quota in [per_minute(4), per_minute(4).sliding(), per_minute(4).gcra()] {
        let limit = Store::memory().rate_limiter(named_policy("p", quota).penalty(1, 300 * SECOND));
        assert_admitted(&limit.peek("x", 0).await.unwrap(), 4);
        assert_admitted(&limit.check("x", 3).await.unwrap(), 1);
        assert_admitted(&limit.peek("x", 0).await.unwrap(), 1);
        assert_admitted(&limit.check("x", 1).await.unwrap(), 0);
        assert_admitted(&limit.peek("x", 0).await.unwrap(), 0);
        assert_refused(&limit.check("x", 1).await.unwrap(), &["p"]);
        let blocked = assert_refused(&limit.peek("x", 0).await.unwrap(), &["p"]);
        assert!(blocked > 60 * SECOND && blocked <= 300 * SECOND, "{blocked:?}");
    }
}

/// Leased units are available to every check of this process.
#[tokio::test(start_paused = true)]
async fn free_peek_counts_leased_units() {
    let limit = Store::memory().rate_limiter(named_policy("p", per_minute(10)).quota_lease(4));
    assert_admitted(&limit.check("x", 1).await.unwrap(), 9);
    assert_admitted(&limit.peek("x", 1).await.unwrap(), 9);
    assert_admitted(&limit.peek("x", 0).await.unwrap(), 9);
}
