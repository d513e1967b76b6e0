//! Rate limiters with several policies.

use futures_util::future::join_all;

use super::{
    SECOND, assert_admitted, assert_refused, named_policy, per_minute, remaining_in_store,
};
use crate::{
    ErrorKind, Policy, PolicyDecision, Quota, RateLimitOutage,
    store::{BackendFault, Store, faulty_store},
};

fn three_policies() -> [Policy; 3] {
    [
        named_policy("fixed", per_minute(5)),
        named_policy("sliding", per_minute(4).sliding()),
        named_policy("gcra", per_minute(3).gcra()),
    ]
}

#[tokio::test(start_paused = true)]
async fn policies_of_one_key_are_charged_atomically_in_one_call() {
    let (store, faults) = faulty_store();
    let [a, b, c] = three_policies();
    let limit = store.rate_limiter(a.clone()).and(b.clone()).and(c.clone());
    for left in (0..3).rev() {
        assert_admitted(&limit.check("x", 1).await.unwrap(), left);
    }
    assert_refused(&limit.check("x", 1).await.unwrap(), &["gcra"]);
    assert_eq!(
        faults.call_count("charge"),
        3,
        "one call for each counter, none for a cached refusal"
    );
    assert_eq!(faults.call_count("settle_charge"), 0);
    for (policy, expected) in [(&a, 2), (&b, 1), (&c, 0)] {
        assert_eq!(remaining_in_store(&store, policy, "x").await, expected, "{policy:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn longest_wait_of_all_violated_policies_applies() {
    let store = Store::memory();
    let [a, b, c] = three_policies();
    let limit = store.rate_limiter(a.clone()).and(b).and(c);
    assert_admitted(&limit.check("x", 3).await.unwrap(), 0);
    // Only one of the three policies has two units left.
    let wait = assert_refused(&limit.check("x", 2).await.unwrap(), &["sliding", "gcra"]);
    let retry_after_of = |name: &str, decision: &crate::Decision| {
        let each = decision.policies().iter().find(|each| each.policy().name() == name);
        each.expect("it is there").retry_after()
    };
    let decision = limit.check("x", 2).await.unwrap();
    assert_eq!(retry_after_of("fixed", &decision), std::time::Duration::ZERO);
    assert_eq!(wait, retry_after_of("sliding", &decision).max(retry_after_of("gcra", &decision)));
    tokio::time::sleep(wait).await;
    assert!(limit.check("x", 2).await.unwrap().is_admitted());
}

/// One refusal is cached only briefly, since a refund may end it. The other policy has the longer
/// wait.
#[tokio::test(start_paused = true)]
async fn recently_refused_policy_is_rechecked_with_the_others() {
    let (store, faults) = faulty_store();
    let (each, all) = (Quota::requests(1).per(100 * SECOND), Quota::requests(1).per(10 * SECOND));
    let limit = store.rate_limiter(named_policy("each", each)).and(named_policy("all", all));
    let check = async |key| limit.check_each([(key, 1), ("all", 1)]).await.unwrap();
    assert!(check("a").await.is_admitted());
    assert_refused(&check("a").await, &["each", "all"]);
    tokio::time::sleep(SECOND).await;
    assert_refused(&check("b").await, &["all"]);
    let calls = faults.call_count("charge");
    assert_refused(&check("b").await, &["all"]);
    assert_eq!(faults.call_count("charge"), calls, "the refusal is cached until its window ends");
    let wait = assert_refused(&check("a").await, &["each", "all"]);
    assert!(wait > 90 * SECOND, "{wait:?}");
}

/// If the other policy cannot be checked, the cached refusal holds, whatever the outage policies
/// are.
#[tokio::test(start_paused = true)]
async fn cached_refusal_holds_during_an_outage() {
    for outage in [RateLimitOutage::Local, RateLimitOutage::Admit, RateLimitOutage::Refuse] {
        let (store, faults) = faulty_store();
        let each = named_policy("each", Quota::requests(1).per(100 * SECOND)).on_outage(outage);
        let all = named_policy("all", Quota::requests(1).per(10 * SECOND)).on_outage(outage);
        let limit = store.rate_limiter(each).and(all);
        let check = async |key| limit.check_each([(key, 1), ("all", 1)]).await;
        assert!(check("a").await.unwrap().is_admitted());
        assert_refused(&check("a").await.unwrap(), &["each", "all"]);
        tokio::time::sleep(SECOND).await;
        assert_refused(&check("b").await.unwrap(), &["all"]);
        let calls = faults.call_count("charge");
        for call in ["charge", "limiters"] {
            faults.set(call, BackendFault::Unavailable, 1_000_000);
        }
        let decision = check("a").await.unwrap();
        assert!(!decision.is_admitted(), "{outage:?}");
        assert!(faults.call_count("charge") > calls, "the other may have to be waited for longer");
    }
}

#[tokio::test(start_paused = true)]
async fn refusal_refunds_charges_of_other_keys() {
    let (store, faults) = faulty_store();
    let [a, b, c] = three_policies();
    let limit = store.rate_limiter(a.clone()).and(b.clone()).and(c.clone());
    let keys = |cost| [("x", cost), ("y", cost), ("z", cost)];
    assert!(limit.check_each(keys(1)).await.unwrap().is_admitted());
    // Spends the second and the third policy.
    assert!(store.rate_limiter(b.clone()).check("y", 3).await.unwrap().is_admitted());
    assert!(store.rate_limiter(c.clone()).check("z", 2).await.unwrap().is_admitted());
    let decision = limit.check_each(keys(1)).await.unwrap();
    assert_refused(&decision, &["sliding", "gcra"]);
    assert_eq!(decision.policies()[0].remaining(), Some(4), "the decision includes the refund");
    assert_eq!(faults.call_count("settle_charge"), 1);
    assert_eq!(remaining_in_store(&store, &a, "x").await, 4, "the charge is refunded");
    // From the refusal cache, without a call.
    let calls = faults.call_count("charge");
    let cached = limit.check_each(keys(1)).await.unwrap();
    assert_refused(&cached, &["sliding", "gcra"]);
    assert_eq!(cached.policies()[0].remaining(), Some(4));
    assert_eq!(faults.call_count("charge"), calls);
}

/// Applies also to a counter that occurs several times, and to a lease.
#[tokio::test(start_paused = true)]
async fn refund_appears_once_in_the_decision() {
    let store = Store::memory();
    let p = |quota| named_policy("p", quota);
    let leased = named_policy("leased", per_minute(9)).quota_lease(3);
    let limit = store.rate_limiter(p(per_minute(9))).and(p(per_minute(9))).and(p(per_minute(8)));
    let limit = limit.and(leased).and(named_policy("tight", per_minute(1)));
    let check = async || {
        let keys = [("x", 1), ("x", 1), ("x", 1), ("y", 1), ("z", 1)];
        let decision = limit.check_each(keys).await.unwrap();
        let left: Vec<_> = decision.policies().iter().map(PolicyDecision::remaining).collect();
        (decision.is_admitted(), left)
    };
    let left = [5, 5, 5, 8, 0].map(Some);
    assert_eq!(check().await, (true, left.to_vec()));
    store.rate_limiter(named_policy("tight", per_minute(1))).reset("z").await.unwrap();
    let other = store.as_another_process().rate_limiter(named_policy("tight", per_minute(1)));
    assert!(other.check("z", 1).await.unwrap().is_admitted());
    assert_eq!(check().await, (false, left.to_vec()));
}

/// Concurrent checks with two tags: some are refused that might have been admitted, but none is
/// admitted beyond a quota, and no refused check stays charged.
#[tokio::test(start_paused = true)]
async fn concurrent_multi_key_checks_stay_within_each_quota() {
    for (x, y) in [(20, 10), (10, 20), (15, 15)] {
        let (store, faults) = faulty_store();
        let (a, b) = (named_policy("a", per_minute(x)), named_policy("b", per_minute(y).gcra()));
        let limits: Vec<_> = (0..3)
            .map(|_| store.as_another_process().rate_limiter(a.clone()).and(b.clone()))
            .collect();
        faults.set("charge", BackendFault::SlowReply(SECOND / 100), 40);
        faults.set("settle_charge", BackendFault::SlowReply(SECOND / 50), 10);
        let check = |n: usize| {
            let limit = limits[n % 3].clone();
            async move {
                tokio::time::sleep(SECOND / 1000 * u32::try_from(n % 7).unwrap()).await;
                limit.check_each([("x", 1), ("y", 1)]).await.unwrap().is_admitted()
            }
        };
        let admitted = join_all((0..60).map(check)).await.into_iter().filter(|each| *each).count();
        let admitted = u64::try_from(admitted).unwrap();
        assert!(admitted <= x.min(y), "{admitted} of {x} and {y}");
        assert_eq!(remaining_in_store(&store, &a, "x").await, x - admitted);
        assert_eq!(remaining_in_store(&store, &b, "y").await, y - admitted);
    }
}

/// A refund in doubt is not repeated. A refund that did not run is sent when possible.
#[tokio::test(start_paused = true)]
async fn refund_across_keys_is_applied_once() {
    for (fault, calls) in [(BackendFault::ReplyTimeout, 1), (BackendFault::Unavailable, 3)] {
        let (store, faults) = faulty_store();
        let [a, b, _] = three_policies();
        let limit = store.rate_limiter(a.clone()).and(b.clone());
        let keys = || [("x", 1), ("y", 1)];
        assert!(limit.check_each(keys()).await.unwrap().is_admitted());
        assert!(store.rate_limiter(b.clone()).check("y", 3).await.unwrap().is_admitted());
        faults.set("settle_charge", fault, calls);
        // Another process, so that the refusal comes from the store and not from the cache.
        let other = store.as_another_process().rate_limiter(a.clone()).and(b);
        assert_refused(&other.check_each(keys()).await.unwrap(), &["sliding"]);
        let spent = 5 - remaining_in_store(&store, &a, "x").await;
        assert!((1..=2).contains(&spent), "{spent}: one was let in, one was not");
        tokio::time::sleep(10 * SECOND).await;
        assert_eq!(remaining_in_store(&store, &a, "x").await, 4, "{fault:?}");
        assert_eq!(faults.call_count("settle_charge"), if calls == 1 { 1 } else { 4 }, "{fault:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn grouped_keys_are_charged_in_one_call() {
    let (store, faults) = faulty_store();
    let [a, b, _] = three_policies();
    let limit = store.rate_limiter(a).and(b).group_by("tenant");
    for _ in 0..4 {
        assert!(limit.check_each([("x", 1), ("y", 1)]).await.unwrap().is_admitted());
    }
    assert_refused(&limit.check_each([("x", 1), ("y", 1)]).await.unwrap(), &["sliding"]);
    assert_eq!((faults.call_count("charge"), faults.call_count("settle_charge")), (4, 0));
}

#[tokio::test(start_paused = true)]
async fn shadow_policy_admits_and_reports_the_violation() {
    let store = Store::memory();
    let watched = named_policy("watched", per_minute(1)).shadow();
    let limit = store.rate_limiter(watched.clone()).and(named_policy("real", per_minute(2)));
    assert_admitted(&limit.check("x", 1).await.unwrap(), 1);
    let decision = limit.check("x", 1).await.unwrap();
    assert_admitted(&decision, 0);
    assert!(decision.policies()[0].is_violated(), "{decision:?}");
    assert!(decision.policies()[0].retry_after() > SECOND);
    let decision = limit.check("x", 1).await.unwrap();
    assert_refused(&decision, &["real"]);
}

#[tokio::test(start_paused = true)]
async fn refused_request_does_not_charge_shadow_policies() {
    let store = Store::memory();
    let watched = named_policy("watched", per_minute(10)).shadow();
    let limit = store.rate_limiter(named_policy("real", per_minute(1))).and(watched.clone());
    for _ in 0..5 {
        let _ = limit.check("x", 1).await.unwrap();
    }
    assert_eq!(remaining_in_store(&store, &watched, "x").await, 9);
}

/// The sum of the costs of one counter exceeds `u64::MAX`.
#[tokio::test(start_paused = true)]
async fn maximum_cost_on_a_repeated_counter_does_not_overflow() {
    let store = Store::memory();
    for quota in [per_minute(4), per_minute(u64::MAX)] {
        let limit = store.rate_limiter(quota).and(quota);
        assert!(limit.check_each([("x", 1), ("x", 1)]).await.unwrap().is_admitted());
        for _ in 0..2 {
            let error = limit.check_each([("x", u64::MAX); 2]).await.map(|d| d.is_admitted());
            let kind = error.map_err(|error| error.kind());
            assert_eq!(kind, Err(ErrorKind::CostAboveQuota), "{quota:?}");
        }
    }
}

/// Two policies of one name share a counter, which has to satisfy both quotas.
#[tokio::test(start_paused = true)]
async fn repeated_counter_is_held_to_both_quotas() {
    let quick = Quota::requests(10).per(SECOND);
    let slow = per_minute(20);
    for [a, b] in [[quick, slow], [quick.sliding(), slow.sliding()], [quick.gcra(), slow.gcra()]] {
        for (first, second) in [(a, b), (b, a)] {
            let [one, other] = [first, second].map(|quota| Policy::new(quota).with_name("p"));
            let limit = Store::memory().rate_limiter(one).and(other);
            let mut passed = [0; 59];
            for spent in &mut passed {
                for _ in 0..20 {
                    let decision = limit.check_each([("x", 1), ("x", 1)]).await.unwrap();
                    *spent += 2 * u64::from(decision.is_admitted());
                }
                tokio::time::sleep(SECOND).await;
            }
            assert!(passed.iter().all(|spent| *spent <= 10), "{first:?}: {passed:?}");
            // GCRA admits its burst and the units of one minute.
            let most = if a == quick.gcra() { 10 + 20 } else { 20 };
            assert!(passed.iter().sum::<u64>() <= most, "{first:?}: {passed:?}");
        }
    }
}

/// As a layer of two such policies does.
#[tokio::test(start_paused = true)]
async fn one_key_is_not_charged_twice_to_one_counter() {
    let store = Store::memory();
    let (a, b) = (named_policy("p", per_minute(4)), named_policy("p", per_minute(9).gcra()));
    let unnamed = || Policy::from(per_minute(4));
    for [one, other] in [[unnamed(), unnamed()], [a.clone(), a.clone()], [a, b]] {
        let name = one.name().to_owned();
        let limit = store.rate_limiter(one).and(other).and(per_minute(7));
        for refused in [limit.check("x", 1).await, limit.peek("x", 1).await] {
            let error = refused.expect_err("it is refused");
            assert_eq!(error.kind(), ErrorKind::Config, "{error}");
            assert!(error.to_string().contains(&format!("called {name:?} too")), "{error}");
        }
        assert!(limit.check_each([("x", 1), ("y", 1)]).await.unwrap().is_admitted());
    }
    assert_eq!(remaining_in_store(&store, &unnamed(), "x").await, 3, "by `check_each` alone");
}
