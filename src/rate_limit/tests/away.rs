//! What is decided while the store is away.

use std::time::Duration;

use super::{SECOND, admitted, minute, named, refused};
use crate::{
    ErrorKind, Quota, RateLimitOutage,
    rate_limit::RateLimiter,
    store::{Fault, Faults, Store, faulty},
};

const EVER: usize = 1_000_000;

/// How many of so many are let in, at once.
async fn passed(limit: &RateLimiter, key: &str, of: usize) -> usize {
    let mut passed = 0;
    for _ in 0..of {
        let decision = limit.check(key, 1).await.unwrap();
        assert!(decision.is_local(), "{decision:?}");
        passed += usize::from(decision.is_admitted());
    }
    passed
}

fn go(faults: &Faults, fault: Fault, calls: usize) {
    faults.set("charge", fault, calls);
    faults.set("limiters", fault, calls);
}

#[tokio::test(start_paused = true)]
async fn a_key_that_nobody_has_seen_has_the_whole_quota() {
    let (store, faults) = faulty();
    go(&faults, Fault::Away, EVER);
    for quota in [minute(10), minute(10).sliding(), minute(20).burst(10)] {
        let limit = store.rate_limiter(quota);
        assert_eq!(passed(&limit, "x", 30).await, 10, "{quota:?}");
        // It fills up evenly: within six seconds at least one of ten a minute.
        tokio::time::sleep(6 * SECOND).await;
        assert!((1..=2).contains(&passed(&limit, "x", 30).await), "{quota:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn it_is_asked_again_only_after_it_has_been_well_for_a_while() {
    let (store, faults) = faulty();
    let limit = store.rate_limiter(minute(10));
    admitted(&limit.check("x", 1).await.unwrap(), 9);
    go(&faults, Fault::Away, EVER);
    assert_eq!(passed(&limit, "x", 4).await, 4);
    // It comes and goes.
    for _ in 0..5 {
        go(&faults, Fault::Away, 0);
        tokio::time::sleep(SECOND / 2).await;
        assert_eq!(passed(&limit, "gone", 1).await, 1);
        go(&faults, Fault::Away, EVER);
        tokio::time::sleep(SECOND / 2).await;
    }
    let asked = faults.seen("charge");
    assert_eq!(passed(&limit, "flaps", 2).await, 2);
    assert_eq!(faults.seen("charge"), asked, "nobody waits for it meanwhile");
    go(&faults, Fault::Away, 0);
    tokio::time::sleep(2 * SECOND).await;
    // What was let in without it is not charged to it.
    admitted(&limit.check("x", 1).await.unwrap(), 8);
}

#[tokio::test(start_paused = true)]
async fn one_slow_answer_is_no_outage_but_three_are() {
    let (store, faults) = faulty();
    let limit = store.rate_limiter(minute(100));
    admitted(&limit.check("x", 1).await.unwrap(), 99);
    faults.set("charge", Fault::NoReply, 1);
    assert_eq!(passed(&limit, "x", 1).await, 1);
    assert!(!limit.check("x", 1).await.unwrap().is_local(), "it is asked again");
    faults.set("charge", Fault::NoReply, 3);
    assert_eq!(passed(&limit, "x", 3).await, 3);
    assert_eq!(passed(&limit, "x", 3).await, 3);
    assert_eq!(faults.left("charge"), 0);
    tokio::time::sleep(3 * SECOND).await;
    assert!(!limit.check("x", 1).await.unwrap().is_local());
}

/// A check that the store does not take is no reason to do without it.
#[tokio::test(start_paused = true)]
async fn a_call_that_is_wrong_is_no_outage() {
    let store = Store::memory();
    let one = |n: usize| named(&n.to_string(), minute(9));
    // More counters than one call has.
    let wrong = (1..101).fold(store.rate_limiter(one(0)), |limit, n| limit.and(one(n)));
    assert_eq!(passed(&wrong, "x", 5).await, 5);
    assert!(!store.rate_limiter(minute(9)).check("x", 1).await.unwrap().is_local());
}

#[tokio::test(start_paused = true)]
async fn of_several_policies_the_strictest_counts() {
    let (store, faults) = faulty();
    let local = named("local", minute(2));
    let with =
        |outage| store.rate_limiter(local.clone()).and(named("o", minute(9)).on_outage(outage));
    go(&faults, Fault::Away, EVER);
    assert_eq!(passed(&with(RateLimitOutage::Admit), "x", 5).await, 2);
    assert_eq!(
        with(RateLimitOutage::Refuse).check("x", 1).await.unwrap_err().kind(),
        ErrorKind::Unavailable
    );
}

/// Four processes that have heard of each other.
async fn four() -> (Vec<Store>, Faults) {
    let (store, faults) = faulty();
    let mut all: Vec<_> = (0..3).map(|_| store.as_another_process()).collect();
    all.push(store);
    for each in &all {
        let _ = each.rate_limiter(minute(100)).check("warm", 1).await.unwrap();
    }
    tokio::time::sleep(6 * SECOND).await;
    (all, faults)
}

/// After an outage in which their places have ended, the first to be answered finds itself alone.
#[tokio::test(start_paused = true)]
async fn the_shares_stand_until_the_store_is_asked_again() {
    let (all, faults) = four().await;
    go(&faults, Fault::Away, EVER);
    for each in &all {
        assert_eq!(passed(&each.rate_limiter(minute(100)), "warm", 1).await, 1);
        let dear = each.rate_limiter(minute(100)).check("x", 50).await.unwrap();
        assert!(dear.is_local() && dear.is_admitted(), "no share is too small for it");
    }
    tokio::time::sleep(16 * SECOND).await;
    // One answer, and it is away again.
    faults.set("limiters", Fault::Away, 0);
    let seen = faults.seen("limiters");
    while faults.seen("limiters") == seen {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    faults.set("limiters", Fault::Away, EVER);
    tokio::time::sleep(SECOND).await;
    for (n, each) in all.iter().enumerate() {
        let limit = each.rate_limiter(minute(100));
        for _ in 0..3 {
            let dear = limit.check("x", 50).await.unwrap();
            assert!(dear.is_local() && !dear.is_admitted(), "{n}: a quarter of it is there");
        }
        assert_eq!(passed(&limit, "new", 100).await, 25, "{n}");
        let two = each.rate_limiter(named("two", minute(2)));
        assert_eq!(passed(&two, "x", 20).await, 1, "{n}: one for each");
    }
}

/// What was made when there were more processes lets in no more when there are fewer.
#[tokio::test(start_paused = true)]
async fn a_request_that_is_dearer_than_an_old_share_is_not_let_in_for_ever() {
    let (all, faults) = four().await;
    let (one, others) = all.split_first().unwrap();
    let limit = one.rate_limiter(minute(100));
    faults.set("charge", Fault::NoReply, 1);
    assert!(limit.check("x", 50).await.unwrap().is_admitted());
    for other in others {
        assert!(other.shutdown(SECOND).await);
    }
    tokio::time::sleep(6 * SECOND).await;
    for _ in 0..5 {
        faults.set("charge", Fault::NoReply, 1);
        let decision = limit.check("x", 50).await.unwrap();
        assert!(decision.is_local() && !decision.is_admitted(), "{decision:?}");
        let _ = limit.check("y", 1).await.unwrap();
    }
}

/// And the new ones count when it is.
#[tokio::test(start_paused = true)]
async fn who_has_gone_meanwhile_has_no_share_of_the_next_outage() {
    let (mut all, faults) = four().await;
    all.truncate(1);
    let limit = all[0].rate_limiter(minute(100));
    go(&faults, Fault::Away, EVER);
    assert_eq!(passed(&limit, "x", 100).await, 25);
    tokio::time::sleep(16 * SECOND).await;
    go(&faults, Fault::Away, 0);
    tokio::time::sleep(3 * SECOND).await;
    assert!(!limit.check("y", 1).await.unwrap().is_local());
    go(&faults, Fault::Away, EVER);
    assert_eq!(passed(&limit, "z", 200).await, 100);
}

/// What was decided here once says nothing when the store has answered since.
#[tokio::test(start_paused = true)]
async fn an_outage_begins_with_what_was_heard_last() {
    let (store, faults) = faulty();
    let limit = store.rate_limiter(minute(10));
    faults.set("charge", Fault::NoReply, 1);
    assert_eq!(passed(&limit, "x", 1).await, 1);
    tokio::time::sleep(60 * SECOND).await;
    admitted(&limit.check("x", 9).await.unwrap(), 1);
    go(&faults, Fault::Away, EVER);
    assert_eq!(passed(&limit, "x", 30).await, 1);
    // And only with that.
    assert_eq!(passed(&limit, "x", 30).await, 0);
}

/// Who costs less may still be let in.
#[tokio::test(start_paused = true)]
async fn a_dear_request_that_is_refused_is_told_what_is_left_here() {
    let (store, faults) = faulty();
    let limit = store.rate_limiter(minute(10));
    go(&faults, Fault::Away, EVER);
    for _ in 0..2 {
        assert!(limit.check("x", 4).await.unwrap().is_admitted());
    }
    let decision = limit.check("x", 4).await.unwrap();
    let wait = refused(&decision, &["default"]);
    assert!(decision.is_local() && decision.remaining() == 2, "{decision:?}");
    assert!(decision.reset_after() <= 6 * SECOND && wait > 6 * SECOND, "{decision:?}");
    assert_eq!(passed(&limit, "x", 5).await, 2);
    let decision = limit.check("x", 1).await.unwrap();
    assert_eq!((decision.remaining(), decision.reset_after()), (0, decision.retry_after()));
}

/// Of a lease, too: what the store had left beside it, and what is not spent of it, or is given back.
#[tokio::test(start_paused = true)]
async fn an_outage_begins_with_what_a_lease_has_left() {
    for (checks, pause, left) in [(50, 0u32, 50), (45, 0, 55), (45, 3, 55)] {
        let (store, faults) = faulty();
        let limit = store.rate_limiter(named("leased", minute(100)).quota_lease(10));
        for _ in 0..checks {
            assert!(!limit.check("x", 1).await.unwrap().is_local());
        }
        go(&faults, Fault::Away, EVER);
        assert_eq!(passed(&limit, "gone", 1).await, 1);
        tokio::time::sleep(pause * SECOND).await;
        assert_eq!(passed(&limit, "x", 200).await, left, "{checks} checks, {pause} s");
    }
}

/// Nobody has more than a burst and what refills, however often the store comes and goes: what it says takes away from
/// what is left here, and gives nothing.
#[tokio::test(start_paused = true)]
async fn a_store_that_comes_and_goes_gives_nothing_away() {
    let (store, faults) = faulty();
    let limit = store.rate_limiter(minute(20));
    let start = tokio::time::Instant::now();
    let mut alone = 0;
    for _ in 0..19 {
        // An answer that says that something is left.
        assert!(!limit.check("x", 1).await.unwrap().is_local());
        // And two questions that are lost on their way: one more, and it counted as away.
        for _ in 0..2 {
            faults.set("charge", Fault::Stray(3600 * SECOND), 1);
            let decision = limit.check("x", 1).await.unwrap();
            assert!(decision.is_local());
            alone += u64::from(decision.is_admitted());
        }
    }
    let refilled = start.elapsed().as_secs() / 3 + 1;
    assert!((20..=20 + refilled).contains(&alone), "{alone}, and {refilled} are refilled");
}

/// The same, when it has been well for so long that it is asked again.
#[tokio::test(start_paused = true)]
async fn the_next_outage_does_not_begin_with_another_burst() {
    let (store, faults) = faulty();
    let limit = store.rate_limiter(minute(20));
    let start = tokio::time::Instant::now();
    let mut alone = 0;
    for _ in 0..4 {
        go(&faults, Fault::Away, EVER);
        alone += passed(&limit, "x", 30).await;
        go(&faults, Fault::Away, 0);
        tokio::time::sleep(3 * SECOND).await;
        assert!(!limit.check("x", 1).await.unwrap().is_local());
    }
    let refilled = usize::try_from(start.elapsed().as_secs() / 3 + 1).unwrap();
    assert!((20..=20 + refilled).contains(&alone), "{alone}, and {refilled} are refilled");
}

/// Numbers that no clock has room for.
#[tokio::test(start_paused = true)]
async fn odd_quotas_do_no_harm() {
    let (store, faults) = faulty();
    go(&faults, Fault::Away, EVER);
    let year = Duration::from_secs(365 * 24 * 60 * 60);
    for quota in [
        Quota::requests(1).per(year).burst(u64::MAX),
        Quota::requests(u64::MAX).per(Duration::from_millis(1)),
        Quota::requests(1).per(year),
        Quota::requests(u64::MAX).per(year).gcra(),
    ] {
        assert_eq!(passed(&store.rate_limiter(quota), "x", 1).await, 1, "{quota:?}");
    }
}

/// Failures count that follow each other: who lives on leases has others between them.
#[tokio::test(start_paused = true)]
async fn leases_that_are_had_end_a_row_of_failures() {
    let (store, faults) = faulty();
    let limit = store.rate_limiter(named("leased", minute(1000)).quota_lease(2));
    for _ in 0..5 {
        for _ in 0..4 {
            assert!(!limit.check("x", 1).await.unwrap().is_local());
        }
        faults.set("charge", Fault::NoReply, 1);
        assert!(limit.check("x", 1).await.unwrap().is_local());
    }
    assert!(!limit.check("x", 1).await.unwrap().is_local());
}
