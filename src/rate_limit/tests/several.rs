//! Several policies at once.

use futures_util::future::join_all;

use super::{SECOND, admitted, left, minute, named, refused};
use crate::{
    ErrorKind, Policy, PolicyDecision, Quota, RateLimitOutage,
    store::{Fault, Store, faulty},
};

fn three() -> [Policy; 3] {
    [
        named("fixed", minute(5)),
        named("sliding", minute(4).sliding()),
        named("gcra", minute(3).gcra()),
    ]
}

#[tokio::test(start_paused = true)]
async fn policies_of_one_key_are_one_call_and_charged_all_or_none() {
    let (store, faults) = faulty();
    let [a, b, c] = three();
    let limit = store.rate_limiter(a.clone()).and(b.clone()).and(c.clone());
    for left in (0..3).rev() {
        admitted(&limit.check("x", 1).await.unwrap(), left);
    }
    refused(&limit.check("x", 1).await.unwrap(), &["gcra"]);
    assert_eq!(faults.seen("charge"), 3, "one call for each, and none for what is known");
    assert_eq!(faults.seen("settle_charge"), 0);
    for (policy, expected) in [(&a, 2), (&b, 1), (&c, 0)] {
        assert_eq!(left(&store, policy, "x").await, expected, "{policy:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn every_violated_policy_is_named_and_the_longest_binds() {
    let store = Store::memory();
    let [a, b, c] = three();
    let limit = store.rate_limiter(a.clone()).and(b).and(c);
    admitted(&limit.check("x", 3).await.unwrap(), 0);
    // Of the three, only one has room for two.
    let wait = refused(&limit.check("x", 2).await.unwrap(), &["sliding", "gcra"]);
    let own = |name: &str, decision: &crate::Decision| {
        let each = decision.policies().iter().find(|each| each.policy().name() == name);
        each.expect("it is there").retry_after()
    };
    let decision = limit.check("x", 2).await.unwrap();
    assert_eq!(own("fixed", &decision), std::time::Duration::ZERO);
    assert_eq!(wait, own("sliding", &decision).max(own("gcra", &decision)));
    tokio::time::sleep(wait).await;
    assert!(limit.check("x", 2).await.unwrap().is_admitted());
}

/// One of them is remembered for a short time only, since it may be given back; it has to be waited for longer.
#[tokio::test(start_paused = true)]
async fn what_has_been_refused_of_late_is_asked_before_others_are_named_alone() {
    let (store, faults) = faulty();
    let (each, all) = (Quota::requests(1).per(100 * SECOND), Quota::requests(1).per(10 * SECOND));
    let limit = store.rate_limiter(named("each", each)).and(named("all", all));
    let check = async |key| limit.check_each([(key, 1), ("all", 1)]).await.unwrap();
    assert!(check("a").await.is_admitted());
    refused(&check("a").await, &["each", "all"]);
    tokio::time::sleep(SECOND).await;
    refused(&check("b").await, &["all"]);
    let asked = faults.seen("charge");
    refused(&check("b").await, &["all"]);
    assert_eq!(faults.seen("charge"), asked, "it is known until its window ends");
    let wait = refused(&check("a").await, &["each", "all"]);
    assert!(wait > 90 * SECOND, "{wait:?}");
}

/// If it can't be asked, the one that is known stands, whatever the others would do without the store.
#[tokio::test(start_paused = true)]
async fn what_is_known_to_be_refused_stays_so_while_the_store_is_away() {
    for outage in [RateLimitOutage::Local, RateLimitOutage::Admit, RateLimitOutage::Refuse] {
        let (store, faults) = faulty();
        let each = named("each", Quota::requests(1).per(100 * SECOND)).on_outage(outage);
        let all = named("all", Quota::requests(1).per(10 * SECOND)).on_outage(outage);
        let limit = store.rate_limiter(each).and(all);
        let check = async |key| limit.check_each([(key, 1), ("all", 1)]).await;
        assert!(check("a").await.unwrap().is_admitted());
        refused(&check("a").await.unwrap(), &["each", "all"]);
        tokio::time::sleep(SECOND).await;
        refused(&check("b").await.unwrap(), &["all"]);
        let asked = faults.seen("charge");
        for call in ["charge", "limiters"] {
            faults.set(call, Fault::Away, 1_000_000);
        }
        let decision = check("a").await.unwrap();
        assert!(!decision.is_admitted(), "{outage:?}");
        assert!(faults.seen("charge") > asked, "the other may have to be waited for longer");
    }
}

#[tokio::test(start_paused = true)]
async fn what_was_charged_before_a_refusal_is_given_back() {
    let (store, faults) = faulty();
    let [a, b, c] = three();
    let limit = store.rate_limiter(a.clone()).and(b.clone()).and(c.clone());
    let keys = |cost| [("x", cost), ("y", cost), ("z", cost)];
    assert!(limit.check_each(keys(1)).await.unwrap().is_admitted());
    // The second is spent, and so is the third.
    assert!(store.rate_limiter(b.clone()).check("y", 3).await.unwrap().is_admitted());
    assert!(store.rate_limiter(c.clone()).check("z", 2).await.unwrap().is_admitted());
    let decision = limit.check_each(keys(1)).await.unwrap();
    refused(&decision, &["sliding", "gcra"]);
    assert_eq!(decision.policies()[0].remaining(), Some(4), "it is told as given back");
    assert_eq!(faults.seen("settle_charge"), 1);
    assert_eq!(left(&store, &a, "x").await, 4, "given back");
    // From memory, without a call.
    let seen = faults.seen("charge");
    let again = limit.check_each(keys(1)).await.unwrap();
    refused(&again, &["sliding", "gcra"]);
    assert_eq!(again.policies()[0].remaining(), Some(4));
    assert_eq!(faults.seen("charge"), seen);
}

/// Also to a counter that is named twice, and to a lease.
#[tokio::test(start_paused = true)]
async fn what_is_given_back_is_told_once() {
    let store = Store::memory();
    let p = |quota| named("p", quota);
    let leased = named("leased", minute(9)).quota_lease(3);
    let limit = store.rate_limiter(p(minute(9))).and(p(minute(9))).and(p(minute(8)));
    let limit = limit.and(leased).and(named("tight", minute(1)));
    let check = async || {
        let keys = [("x", 1), ("x", 1), ("x", 1), ("y", 1), ("z", 1)];
        let decision = limit.check_each(keys).await.unwrap();
        let left: Vec<_> = decision.policies().iter().map(PolicyDecision::remaining).collect();
        (decision.is_admitted(), left)
    };
    let left = [5, 5, 5, 8, 0].map(Some);
    assert_eq!(check().await, (true, left.to_vec()));
    store.rate_limiter(named("tight", minute(1))).reset("z").await.unwrap();
    let other = store.as_another_process().rate_limiter(named("tight", minute(1)));
    assert!(other.check("z", 1).await.unwrap().is_admitted());
    assert_eq!(check().await, (false, left.to_vec()));
}

/// Many at once, under two tags: some are refused that might have been let in, but nobody is let in beyond a quota,
/// and nothing stays charged for who was refused.
#[tokio::test(start_paused = true)]
async fn charges_of_several_keys_at_once_let_in_no_more_than_each_quota() {
    for (x, y) in [(20, 10), (10, 20), (15, 15)] {
        let (store, faults) = faulty();
        let (a, b) = (named("a", minute(x)), named("b", minute(y).gcra()));
        let limits: Vec<_> = (0..3)
            .map(|_| store.as_another_process().rate_limiter(a.clone()).and(b.clone()))
            .collect();
        faults.set("charge", Fault::Slow(SECOND / 100), 40);
        faults.set("settle_charge", Fault::Slow(SECOND / 50), 10);
        let one = |n: usize| {
            let limit = limits[n % 3].clone();
            async move {
                tokio::time::sleep(SECOND / 1000 * u32::try_from(n % 7).unwrap()).await;
                limit.check_each([("x", 1), ("y", 1)]).await.unwrap().is_admitted()
            }
        };
        let admitted = join_all((0..60).map(one)).await.into_iter().filter(|each| *each).count();
        let admitted = u64::try_from(admitted).unwrap();
        assert!(admitted <= x.min(y), "{admitted} of {x} and {y}");
        assert_eq!(left(&store, &a, "x").await, x - admitted);
        assert_eq!(left(&store, &b, "y").await, y - admitted);
    }
}

/// What is not known to be given back is not given back again, and what is known not to be is when it can be.
#[tokio::test(start_paused = true)]
async fn what_is_given_back_across_keys_is_given_back_once() {
    for (fault, calls) in [(Fault::NoReply, 1), (Fault::Away, 3)] {
        let (store, faults) = faulty();
        let [a, b, _] = three();
        let limit = store.rate_limiter(a.clone()).and(b.clone());
        let keys = || [("x", 1), ("y", 1)];
        assert!(limit.check_each(keys()).await.unwrap().is_admitted());
        assert!(store.rate_limiter(b.clone()).check("y", 3).await.unwrap().is_admitted());
        faults.set("settle_charge", fault, calls);
        // From the store, not from memory: it is another process.
        let other = store.as_another_process().rate_limiter(a.clone()).and(b);
        refused(&other.check_each(keys()).await.unwrap(), &["sliding"]);
        let spent = 5 - left(&store, &a, "x").await;
        assert!((1..=2).contains(&spent), "{spent}: one was let in, one was not");
        tokio::time::sleep(10 * SECOND).await;
        assert_eq!(left(&store, &a, "x").await, 4, "{fault:?}");
        assert_eq!(faults.seen("settle_charge"), if calls == 1 { 1 } else { 4 }, "{fault:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_group_is_one_call_whatever_the_keys() {
    let (store, faults) = faulty();
    let [a, b, _] = three();
    let limit = store.rate_limiter(a).and(b).group_by("tenant");
    for _ in 0..4 {
        assert!(limit.check_each([("x", 1), ("y", 1)]).await.unwrap().is_admitted());
    }
    refused(&limit.check_each([("x", 1), ("y", 1)]).await.unwrap(), &["sliding"]);
    assert_eq!((faults.seen("charge"), faults.seen("settle_charge")), (4, 0));
}

#[tokio::test(start_paused = true)]
async fn a_policy_in_shadow_lets_pass_and_says_so() {
    let store = Store::memory();
    let watched = named("watched", minute(1)).shadow();
    let limit = store.rate_limiter(watched.clone()).and(named("real", minute(2)));
    admitted(&limit.check("x", 1).await.unwrap(), 1);
    let decision = limit.check("x", 1).await.unwrap();
    admitted(&decision, 0);
    assert!(decision.policies()[0].is_violated(), "{decision:?}");
    assert!(decision.policies()[0].retry_after() > SECOND);
    let decision = limit.check("x", 1).await.unwrap();
    refused(&decision, &["real"]);
}

#[tokio::test(start_paused = true)]
async fn a_shadow_is_not_charged_for_what_the_others_refuse() {
    let store = Store::memory();
    let watched = named("watched", minute(10)).shadow();
    let limit = store.rate_limiter(named("real", minute(1))).and(watched.clone());
    for _ in 0..5 {
        let _ = limit.check("x", 1).await.unwrap();
    }
    assert_eq!(left(&store, &watched, "x").await, 9);
}

/// The sum of what one counter is charged is more than a number can say.
#[tokio::test(start_paused = true)]
async fn no_cost_is_too_large_to_be_named_twice() {
    let store = Store::memory();
    for quota in [minute(4), minute(u64::MAX)] {
        let limit = store.rate_limiter(quota).and(quota);
        assert!(limit.check("x", 1).await.unwrap().is_admitted());
        for _ in 0..2 {
            let error = limit.check("x", u64::MAX).await.map(|d| d.is_admitted());
            let told = error.map_err(|error| error.kind());
            assert_eq!(told, Err(ErrorKind::CostAboveQuota), "{quota:?}");
        }
    }
}

/// Two policies of one name are one counter, and held to what both allow.
#[tokio::test(start_paused = true)]
async fn one_counter_that_is_named_twice_lets_in_no_more_than_either() {
    let quick = Quota::requests(10).per(SECOND);
    let slow = minute(20);
    for [a, b] in [[quick, slow], [quick.sliding(), slow.sliding()], [quick.gcra(), slow.gcra()]] {
        for (first, second) in [(a, b), (b, a)] {
            let [one, other] = [first, second].map(|quota| Policy::new(quota).with_name("p"));
            let limit = Store::memory().rate_limiter(one).and(other);
            let mut passed = [0; 59];
            for spent in &mut passed {
                for _ in 0..20 {
                    *spent += 2 * u64::from(limit.check("x", 1).await.unwrap().is_admitted());
                }
                tokio::time::sleep(SECOND).await;
            }
            assert!(passed.iter().all(|spent| *spent <= 10), "{first:?}: {passed:?}");
            // GCRA lets in its burst and what a minute has.
            let most = if a == quick.gcra() { 10 + 20 } else { 20 };
            assert!(passed.iter().sum::<u64>() <= most, "{first:?}: {passed:?}");
        }
    }
}
