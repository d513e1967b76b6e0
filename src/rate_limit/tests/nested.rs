//! A gate within another one: the same policy is charged once, if the one is held to all that the other is about.

use super::{
    SECOND,
    gate::{Limit, by, enter, leave, view},
    minute, named,
};
use crate::{
    Key, Quota, RateLimitOutage, RateStatus,
    gate::{Gate as _, GateRequest as _, InitialVerdict, Verdict, fake::FakeView},
    store::{Fault, Store, faulty},
};

fn nested(store: &Store, inner: Quota) -> (Limit, Limit) {
    let named = |quota| by("a", quota).policy_name("p").store(store);
    (named(minute(10)), named(inner))
}

async fn both(limits: &(Limit, Limit)) -> (FakeView, bool) {
    let mut view = view();
    let _outer = enter(&limits.0, &mut view).await.unwrap();
    let skipped = match limits.1.inspect(&mut view) {
        InitialVerdict::Skip => true,
        InitialVerdict::Enter(facts) => {
            let Verdict::Pass(ticket) = limits.1.enter(facts).await else { panic!("refused") };
            limits.1.annotate_request(&ticket, &mut view);
            false
        }
        other => panic!("{other:?}"),
    };
    (view, skipped)
}

/// Also if this process alone has counted it, which handlers know nothing of.
#[tokio::test(start_paused = true)]
async fn the_same_policy_twice_is_counted_once_while_the_store_is_away() {
    let (store, faults) = faulty();
    for call in ["charge", "limiters"] {
        faults.set(call, Fault::Away, 1000);
    }
    let limits = nested(&store, minute(10));
    for _ in 0..10 {
        let (view, skipped) = both(&limits).await;
        assert!(skipped && view.extension::<RateStatus>().is_none());
    }
    assert_eq!(enter(&limits.0, &mut view()).await.unwrap_err().status, 429);
}

/// What it would do without the store is its own business.
#[tokio::test(start_paused = true)]
async fn the_same_policy_is_not_left_out_while_the_store_is_away_if_it_would_refuse() {
    let (store, faults) = faulty();
    faults.set("charge", Fault::Away, 2);
    let (outer, inner) = nested(&store, minute(10));
    let inner = inner.on_outage(RateLimitOutage::Refuse);
    let mut view = view();
    let ticket = enter(&outer, &mut view).await.unwrap();
    assert_eq!(leave(&outer, ticket, 200).await, "", "it is told nothing");
    assert_eq!(enter(&inner, &mut view).await.unwrap_err().status, 503);
    // The store is back.
    let ticket = enter(&inner, &mut view).await.unwrap();
    assert!(view.extension::<RateStatus>().unwrap().outer().is_none());
    assert_eq!(leave(&inner, ticket, 200).await, "\"p\";r=9;t=60");
    assert!(matches!(outer.inspect(&mut view), InitialVerdict::Skip), "it is charged by now");
}

/// What is counted elsewhere says nothing: the inner one may be of all processes, the outer one of this alone.
#[tokio::test(start_paused = true)]
async fn the_same_policy_in_another_store_is_charged_too() {
    let (store, faults) = faulty();
    let outer = Store::memory();
    let (_, inner) = nested(&store, minute(10));
    assert!(!both(&(nested(&outer, minute(10)).0, inner.clone())).await.1);
    assert_eq!(faults.seen("charge"), 1);
    // It is asked where it counts, however far out that was.
    let (mut view, between) = (view(), nested(&outer, minute(9)).1);
    for layer in [&inner, &between] {
        let _ = enter(layer, &mut view).await.unwrap();
    }
    assert!(matches!(inner.inspect(&mut view), InitialVerdict::Skip));
    // Another handle of the same store counts there, too.
    let other = nested(&store.as_another_process(), minute(10)).1;
    assert!(matches!(other.inspect(&mut view), InitialVerdict::Skip));
}

/// The inner quota might be the stricter one: it is not left out.
#[tokio::test(start_paused = true)]
async fn the_same_counter_by_another_quota_is_charged_twice() {
    let store = Store::memory();
    let (view, skipped) = both(&nested(&store, minute(5))).await;
    assert!(!skipped);
    let status = view.extension::<RateStatus>().unwrap();
    assert_eq!(status.decision().remaining(), 3);
    assert_eq!(status.outer().unwrap().decision().remaining(), 9);
}

/// Whether the inner of two layers that are alike lets a second request in, where one is allowed.
async fn inner_limits(outer: impl Fn(Limit) -> Limit) -> bool {
    let store = Store::memory();
    let outer = outer(by("a", minute(1)).store(&store));
    let inner = by("a", minute(1)).store(&store);
    for _ in 0..4 {
        let mut view = view();
        let Ok(_outer) = enter(&outer, &mut view).await else { return true };
        match inner.inspect(&mut view) {
            InitialVerdict::Answer(_) | InitialVerdict::SharedAnswer(_) => return true,
            InitialVerdict::Skip | InitialVerdict::PassLight(_) => {}
            InitialVerdict::Enter(facts) => {
                if matches!(inner.enter(facts).await, Verdict::Answer(_)) {
                    return true;
                }
            }
        }
    }
    false
}

/// Who only watched, or took less, has not asked for the other.
#[tokio::test(start_paused = true)]
async fn the_same_policy_is_left_out_only_if_it_was_held_to() {
    assert!(inner_limits(|outer| outer).await);
    assert!(inner_limits(Limit::shadow).await);
    assert!(inner_limits(|outer| outer.cost_by(|(): &()| 0)).await);
}

/// Nor if it does not punish as the inner one would, which the request would get away with.
#[tokio::test(start_paused = true)]
async fn the_same_policy_with_another_penalty_is_charged_too() {
    let plain = || named("p", minute(10));
    let penal = |after| plain().penalty(after, 300 * SECOND);
    for (outer, inner, left_out) in [
        (plain(), penal(3), false),
        (penal(2), penal(3), false),
        (penal(3), penal(3), true),
        (penal(3), plain(), true),
    ] {
        let store = Store::memory();
        let [one, other] = [&outer, &inner].map(|policy| by("a", policy.clone()).store(&store));
        assert_eq!(both(&(one, other)).await.1, left_out, "{outer:?} {inner:?}");
    }
}

/// What the inner one is set to do after the response is done, and not lost with its charge.
#[tokio::test(start_paused = true)]
async fn the_same_policy_is_charged_too_if_that_is_put_right() {
    let store = Store::memory();
    let plain = by("a", named("p", minute(10))).store(&store);
    let spent = async || 10 - left_of(&store, Key::header("a", b"1")).await;
    let refunds = plain.clone().refund_on(|status| status >= 500);
    let mut view = view();
    let _outer = enter(&plain, &mut view).await.unwrap();
    let ticket = enter(&refunds, &mut view).await.unwrap();
    assert_eq!(spent().await, 2);
    leave(&refunds, ticket, 503).await;
    assert_eq!(spent().await, 1);
    let by_handler = plain.clone().handler_sets_cost();
    let ticket = enter(&by_handler, &mut view).await.unwrap();
    assert!(view.extension::<RateStatus>().unwrap().set_cost(4).unwrap());
    leave(&by_handler, ticket, 200).await;
    assert_eq!(spent().await, 5);
}

/// What the policy `p` of ten a minute has left for a key.
async fn left_of(store: &Store, key: Key) -> u64 {
    store.rate_limiter(named("p", minute(10))).peek(key, 1).await.unwrap().remaining()
}
