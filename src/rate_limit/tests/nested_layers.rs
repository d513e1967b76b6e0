//! Nested gates: a repeated policy is charged once if the outer gate enforces all that the inner
//! one does.

use super::{
    SECOND,
    gate_requests::{TestRateLimitLayer, enter_gate, gate_by_header, leave_gate, new_request},
    named_policy, per_minute,
};
use crate::{
    Key, Quota, RateLimitOutage, RateStatus,
    gate::{Gate as _, GateRequest as _, InitialVerdict, Verdict, fake_request::FakeGateRequest},
    store::{BackendFault, Store, faulty_store},
};

fn nested_gates(store: &Store, inner: Quota) -> (TestRateLimitLayer, TestRateLimitLayer) {
    let named = |quota| gate_by_header("a", quota).policy_name("p").store(store);
    (named(per_minute(10)), named(inner))
}

async fn enter_both(limits: &(TestRateLimitLayer, TestRateLimitLayer)) -> (FakeGateRequest, bool) {
    let mut view = new_request();
    let _outer = enter_gate(&limits.0, &mut view).await.unwrap();
    let skipped = match limits.1.inspect(&mut view) {
        InitialVerdict::Skip => true,
        InitialVerdict::Enter(context) => {
            let Verdict::Pass(ticket) = limits.1.enter(context).await else { panic!("refused") };
            limits.1.annotate_request(&ticket, &mut view);
            false
        }
        other => panic!("{other:?}"),
    };
    (view, skipped)
}

/// The policy was counted by this process only, which `RateStatus` does not show.
#[tokio::test(start_paused = true)]
async fn repeated_policy_is_counted_once_during_an_outage() {
    let (store, faults) = faulty_store();
    for call in ["charge", "limiters"] {
        faults.set(call, BackendFault::Unavailable, 1000);
    }
    let limits = nested_gates(&store, per_minute(10));
    for _ in 0..10 {
        let (view, skipped) = enter_both(&limits).await;
        assert!(skipped && view.extension::<RateStatus>().is_none());
    }
    assert_eq!(enter_gate(&limits.0, &mut new_request()).await.unwrap_err().status, 429);
}

/// The outage policy of the outer layer does not apply to the inner one.
#[tokio::test(start_paused = true)]
async fn inner_refuse_on_outage_policy_is_not_skipped() {
    let (store, faults) = faulty_store();
    faults.set("charge", BackendFault::Unavailable, 2);
    let (outer, inner) = nested_gates(&store, per_minute(10));
    let inner = inner.on_outage(RateLimitOutage::Refuse);
    let mut view = new_request();
    let ticket = enter_gate(&outer, &mut view).await.unwrap();
    assert_eq!(leave_gate(&outer, ticket, 200).await, "", "the outer layer adds no headers");
    assert_eq!(enter_gate(&inner, &mut view).await.unwrap_err().status, 503);
    // The store has recovered.
    let ticket = enter_gate(&inner, &mut view).await.unwrap();
    assert!(view.extension::<RateStatus>().unwrap().outer().is_none());
    assert_eq!(leave_gate(&inner, ticket, 200).await, "\"p\";r=9;t=60");
    assert!(matches!(outer.inspect(&mut view), InitialVerdict::Skip), "it is charged by now");
}

/// A charge in another store does not count: the inner store may be shared, the outer one local to
/// this process.
#[tokio::test(start_paused = true)]
async fn repeated_policy_in_another_store_is_charged_again() {
    let (store, faults) = faulty_store();
    let outer = Store::memory();
    let (_, inner) = nested_gates(&store, per_minute(10));
    assert!(!enter_both(&(nested_gates(&outer, per_minute(10)).0, inner.clone())).await.1);
    assert_eq!(faults.call_count("charge"), 1);
    // Any outer layer on the same store counts, even behind another layer.
    let (mut view, between) = (new_request(), nested_gates(&outer, per_minute(9)).1);
    for layer in [&inner, &between] {
        let _ = enter_gate(layer, &mut view).await.unwrap();
    }
    assert!(matches!(inner.inspect(&mut view), InitialVerdict::Skip));
    // Another handle on the same store counts, too.
    let other = nested_gates(&store.as_another_process(), per_minute(10)).1;
    assert!(matches!(other.inspect(&mut view), InitialVerdict::Skip));
}

/// The inner quota may be the stricter one, so it is not skipped.
#[tokio::test(start_paused = true)]
async fn repeated_counter_with_another_quota_is_charged_twice() {
    let store = Store::memory();
    let (view, skipped) = enter_both(&nested_gates(&store, per_minute(5))).await;
    assert!(!skipped);
    let status = view.extension::<RateStatus>().unwrap();
    assert_eq!(status.decision().remaining(), 3);
    assert_eq!(status.outer().unwrap().decision().remaining(), 9);
}

/// Returns true if two nested layers with a quota of one refuse a further request.
async fn is_second_request_refused(
    outer: impl Fn(TestRateLimitLayer) -> TestRateLimitLayer,
) -> bool {
    let store = Store::memory();
    let outer = outer(gate_by_header("a", per_minute(1)).store(&store));
    let inner = gate_by_header("a", per_minute(1)).store(&store);
    for _ in 0..4 {
        let mut view = new_request();
        let Ok(_outer) = enter_gate(&outer, &mut view).await else { return true };
        match inner.inspect(&mut view) {
            InitialVerdict::Answer(_) | InitialVerdict::SharedAnswer(_) => return true,
            InitialVerdict::Skip | InitialVerdict::PassLight(_) => {}
            InitialVerdict::Enter(context) => {
                if matches!(inner.enter(context).await, Verdict::Answer(_)) {
                    return true;
                }
            }
        }
    }
    false
}

/// An outer policy in shadow mode, or with a lower cost, does not replace the inner one.
#[tokio::test(start_paused = true)]
async fn repeated_policy_is_skipped_only_if_enforced_in_full() {
    assert!(is_second_request_refused(|outer| outer).await);
    assert!(is_second_request_refused(TestRateLimitLayer::shadow).await);
    assert!(is_second_request_refused(|outer| outer.cost_by(|(): &()| 0)).await);
}

/// An outer policy without the penalty of the inner one does not replace it.
#[tokio::test(start_paused = true)]
async fn repeated_policy_with_another_penalty_is_charged_again() {
    let plain = || named_policy("p", per_minute(10));
    let penal = |after| plain().penalty(after, 300 * SECOND);
    for (outer, inner, is_skipped) in [
        (plain(), penal(3), false),
        (penal(2), penal(3), false),
        (penal(3), penal(3), true),
        (penal(3), plain(), true),
    ] {
        let store = Store::memory();
        let [one, other] =
            [&outer, &inner].map(|policy| gate_by_header("a", policy.clone()).store(&store));
        assert_eq!(enter_both(&(one, other)).await.1, is_skipped, "{outer:?} {inner:?}");
    }
}

/// The settlement of the inner policy needs a charge of its own.
#[tokio::test(start_paused = true)]
async fn repeated_policy_with_a_settlement_is_charged_again() {
    let store = Store::memory();
    let plain = gate_by_header("a", named_policy("p", per_minute(10))).store(&store);
    let spent = async || 10 - remaining_for_key(&store, Key::header("a", b"1")).await;
    let refunds = plain.clone().refund_on(|status| status >= 500);
    let mut view = new_request();
    let _outer = enter_gate(&plain, &mut view).await.unwrap();
    let ticket = enter_gate(&refunds, &mut view).await.unwrap();
    assert_eq!(spent().await, 2);
    leave_gate(&refunds, ticket, 503).await;
    assert_eq!(spent().await, 1);
    let by_handler = plain.clone().handler_sets_cost();
    let ticket = enter_gate(&by_handler, &mut view).await.unwrap();
    assert!(view.extension::<RateStatus>().unwrap().set_cost(4).unwrap());
    leave_gate(&by_handler, ticket, 200).await;
    assert_eq!(spent().await, 5);
}

/// Units that the policy `p`, of ten per minute, has left for a key.
async fn remaining_for_key(store: &Store, key: Key) -> u64 {
    store.rate_limiter(named_policy("p", per_minute(10))).peek(key, 1).await.unwrap().remaining()
}
