//! Layers with several policies on one key, and what their handlers see.

use std::panic::AssertUnwindSafe;

use super::{
    gate_requests::{enter_gate, gate_by_header, new_request, run_request},
    named_policy, per_minute,
};
use crate::{
    ErrorKind, Key, Quota, RateStatus,
    gate::{Gate as _, GateRequest as _},
    rate_limit::RateLimitLayer,
    store::{Store, faulty_store},
};

#[tokio::test(start_paused = true)]
async fn policies_of_one_key_are_charged_together_or_not_at_all() {
    let (store, faults) = faulty_store();
    let (wide, narrow) =
        (named_policy("wide", per_minute(9)), named_policy("narrow", per_minute(2)));
    let limit = gate_by_header("a", wide.clone()).and_policy(narrow.clone()).store(&store);
    for status in [200, 200, 429, 429] {
        assert_eq!(run_request(&limit, 200).await, status);
    }
    assert_eq!(faults.call_count("charge"), 2, "one call for each admitted request");
    let key = Key::header("a", b"1");
    for (policy, remaining) in [(wide, 7), (narrow, 0)] {
        let other = store.as_another_process().rate_limiter(policy.clone());
        let decision = other.peek(key.clone(), 1).await.expect("it answers");
        assert_eq!(decision.policies()[0].remaining(), Some(remaining), "{policy:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn added_policy_is_on_the_key_of_the_last_one() {
    let store = Store::memory();
    let limit = gate_by_header("a", named_policy("by a", per_minute(9)))
        .and(gate_by_header("b", named_policy("by b", per_minute(9))))
        .and_policy(named_policy("added", per_minute(1)))
        .store(&store);
    assert_eq!(run_request(&limit, 200).await, 200);
    let remaining = async |key: Key| {
        let limiter = store.rate_limiter(named_policy("added", per_minute(1)));
        limiter.peek(key, 1).await.expect("it answers").remaining()
    };
    assert_eq!(remaining(Key::header("a", b"1")).await, 1);
    assert_eq!(remaining(Key::header("b", b"2")).await, 0);
}

#[test]
fn policy_that_shares_a_counter_or_a_name_is_refused() {
    let limit = || gate_by_header("a", per_minute(5)).and_policy(named_policy("x", per_minute(6)));
    for (policy, name) in [
        (per_minute(5).into(), "\"5-per-60s\""),
        (named_policy("x", per_minute(6)), "\"x\""),
        (named_policy("x", per_minute(7).gcra()), "\"x\""),
    ] {
        let refused = limit().try_and_policy(policy).expect_err(name);
        assert_eq!(refused.kind(), ErrorKind::Config);
        let message = refused.to_string();
        assert!(message.starts_with("RateLimitLayer::and_policy: another policy"), "{message}");
        assert!(message.contains(name) && message.contains("Policy::with_name"), "{message}");
    }
    let sliding = limit().try_and_policy(per_minute(5).sliding());
    sliding.expect("another counter").try_and_policy(Quota::unlimited()).expect("no counter");
    // A counter of another key.
    let other_key = limit().and(gate_by_header("b", per_minute(7)));
    other_key.try_and_policy(per_minute(5)).expect("another key");
}

#[test]
#[should_panic(expected = "another policy of this key is called \"5-per-60s\" too")]
fn same_quota_twice_panics_where_the_layer_is_built() {
    let _ = gate_by_header("a", per_minute(5)).and_policy(per_minute(5));
}

#[tokio::test(start_paused = true)]
async fn remaining_is_the_fewest_of_all_policies_and_layers() {
    let store = Store::memory();
    let limit =
        |name: &str, quota: Quota| gate_by_header("a", named_policy(name, quota)).store(&store);
    let status_inside = async |outer: u64, [first, second]: [u64; 2]| {
        let outer = limit(&format!("outer {outer}"), per_minute(outer));
        let inner = limit(&format!("first {first}"), per_minute(first))
            .and_policy(named_policy(&format!("second {second}"), per_minute(second)))
            .and_policy(named_policy("shadow", per_minute(1)).shadow());
        let mut view = new_request();
        let _outer = enter_gate(&outer, &mut view).await.expect("it is admitted");
        let _inner = enter_gate(&inner, &mut view).await.expect("it is admitted");
        view.extension::<RateStatus>().expect("the store has decided")
    };
    assert_eq!(status_inside(30, [20, 10]).await.remaining(), 9);
    assert_eq!(status_inside(31, [11, 21]).await.remaining(), 10);
    let status = status_inside(5, [22, 12]).await;
    assert_eq!((status.remaining(), status.decision().remaining()), (4, 11));
}

#[test]
#[should_panic(expected = "another policy of this key is called \"x\" too")]
fn policy_that_is_named_after_another_one_is_refused_when_the_layer_is_applied() {
    let limit = gate_by_header("a", named_policy("x", per_minute(5))).and_policy(per_minute(6));
    limit.policy_name("x").validate_settings();
}

/// Each way of building a layer ends in the same check.
#[test]
fn joined_layers_with_an_equal_policy_on_one_key_are_refused() {
    let x = || named_policy("x", per_minute(5));
    let message = |limit: RateLimitLayer<()>| {
        let built = std::panic::catch_unwind(AssertUnwindSafe(|| limit.validate_settings()));
        built.err().map(|panic| *panic.downcast::<String>().expect("a sentence"))
    };
    for limit in [
        gate_by_header("a", x()).and(gate_by_header("a", x())),
        gate_by_header("a", x()).and(gate_by_header("a", per_minute(6)).policy_name("x")),
        gate_by_header("a", x()).and(gate_by_header("b", x())).and(gate_by_header("a", x())),
        gate_by_header("b", x())
            .and(gate_by_header("a", x()).and_policy(per_minute(6)))
            .and(gate_by_header("b", per_minute(7)).policy_name("x")),
    ] {
        let message = message(limit).expect("it is refused");
        assert!(message.contains("another policy of this key is called \"x\" too"), "{message}");
    }
    let unnamed = gate_by_header("a", per_minute(5)).and(gate_by_header("a", per_minute(5)));
    assert!(message(unnamed).expect("it is refused").contains("\"5-per-60s\""));
    let other_key = gate_by_header("a", x()).and(gate_by_header("b", x()));
    assert_eq!(message(other_key), None);
    let other_name = gate_by_header("a", x()).and(gate_by_header("a", per_minute(6)));
    assert_eq!(message(other_name), None);
}
