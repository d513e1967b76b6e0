//! Single policies, by all ways of counting.

use super::{SECOND, admitted, minute, named, refused};
use crate::{Policy, Quota, store::Store};

#[tokio::test(start_paused = true)]
async fn what_is_unlimited_is_not_counted() {
    let limit = Store::memory().rate_limiter(Quota::unlimited());
    let decision = limit.check("x", u64::MAX).await.unwrap();
    admitted(&decision, u64::MAX);
    assert_eq!(decision.policies()[0].remaining(), None);
}

#[test]
#[should_panic(expected = "more than the quota ever lets in")]
fn a_policy_nobody_could_meet_is_not_built() {
    let _ = Policy::new(minute(3)).cost(4);
}

#[test]
#[should_panic(expected = "only a fixed window can be leased")]
fn what_counts_by_time_is_not_leased() {
    let _ = Policy::new(minute(3).gcra()).quota_lease(4);
}

#[tokio::test(start_paused = true)]
async fn a_changed_quota_keeps_what_was_spent() {
    let store = Store::memory();
    let limit = |n| store.rate_limiter(Policy::new(minute(n)).with_name("p"));
    admitted(&limit(10).check("x", 8).await.unwrap(), 2);
    admitted(&limit(20).check("x", 1).await.unwrap(), 11);
    refused(&limit(5).check("x", 1).await.unwrap(), &["p"]);
    // What was said of five is not said of twenty.
    admitted(&limit(20).check("x", 1).await.unwrap(), 10);
}

/// Two layers nobody has named are two limits: the shorter window must not end what the longer one counts.
#[tokio::test(start_paused = true)]
async fn policies_without_a_name_count_apart_by_their_quotas() {
    let store = Store::memory();
    let (login, api) = (minute(3), Quota::requests(100).per(SECOND));
    for spent in 0..6 {
        let _ = store.rate_limiter(api).peek("x", 1).await.unwrap();
        admitted(&store.rate_limiter(api).check("x", 1).await.unwrap(), 99);
        let decision = store.as_another_process().rate_limiter(login).check("x", 1).await.unwrap();
        assert_eq!(decision.is_admitted(), spent < 3, "{spent}");
        tokio::time::sleep(SECOND).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_peek_of_no_cost_says_what_is_left_and_whether_the_key_is_blocked() {
    for quota in [minute(4), minute(4).sliding(), minute(4).gcra()] {
        let limit = Store::memory().rate_limiter(named("p", quota).penalty(1, 300 * SECOND));
        admitted(&limit.peek("x", 0).await.unwrap(), 4);
        admitted(&limit.check("x", 3).await.unwrap(), 1);
        admitted(&limit.peek("x", 0).await.unwrap(), 1);
        admitted(&limit.check("x", 1).await.unwrap(), 0);
        admitted(&limit.peek("x", 0).await.unwrap(), 0);
        refused(&limit.check("x", 1).await.unwrap(), &["p"]);
        let blocked = refused(&limit.peek("x", 0).await.unwrap(), &["p"]);
        assert!(blocked > 60 * SECOND && blocked <= 300 * SECOND, "{blocked:?}");
    }
}

/// They are there for whoever asks in this process.
#[tokio::test(start_paused = true)]
async fn a_peek_of_no_cost_counts_leased_charges() {
    let limit = Store::memory().rate_limiter(named("p", minute(10)).quota_lease(4));
    admitted(&limit.check("x", 1).await.unwrap(), 9);
    admitted(&limit.peek("x", 1).await.unwrap(), 9);
    admitted(&limit.peek("x", 0).await.unwrap(), 9);
}
