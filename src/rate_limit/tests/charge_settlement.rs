//! Charges that are adjusted after the response.

use std::{future::poll_fn, pin::pin, task::Poll, time::Duration};

use super::{
    SECOND,
    gate_requests::{enter_gate, gate_by_header, leave_gate, new_request, run_request},
    named_policy, per_minute,
};
use crate::{
    Key, Policy, Quota, RateStatus,
    gate::{Gate as _, GateRequest as _, ServiceOutcome},
    store::{BackendFault, Store, faulty_store, with_stalled_stores},
};

/// An unused lease is returned while the handler runs.
#[tokio::test(start_paused = true)]
async fn leased_charge_is_refunded_after_its_lease_ended() {
    let store = Store::memory();
    let policy = named_policy("p", per_minute(100)).quota_lease(10);
    let limit = gate_by_header("a", policy.clone()).refund_on(|status| status >= 500).store(&store);
    let other = store.as_another_process().rate_limiter(policy);
    let left = async || other.peek(Key::header("a", b"1"), 1).await.unwrap().remaining();
    let ticket = enter_gate(&limit, &mut new_request()).await.unwrap();
    assert_eq!(left().await, 90);
    tokio::time::sleep(3 * SECOND).await;
    assert_eq!(left().await, 99, "the unused units are returned");
    leave_gate(&limit, ticket, 503).await;
    assert_eq!(left().await, 100);
    // With a current lease, the refund goes to that lease without a call.
    let ticket = enter_gate(&limit, &mut new_request()).await.unwrap();
    leave_gate(&limit, ticket, 503).await;
    assert_eq!(left().await, 90);
    assert!(store.shutdown(SECOND).await);
    assert_eq!(left().await, 100);
}

/// The charge belongs to an ended window, or was discarded by a reset.
#[tokio::test(start_paused = true)]
async fn refund_of_an_ended_window_or_reset_is_dropped() {
    let store = Store::memory();
    let policy = named_policy("p", per_minute(100)).quota_lease(10);
    let limit = gate_by_header("a", policy.clone()).refund_on(|status| status >= 500).store(&store);
    let other = store.as_another_process().rate_limiter(policy);
    let key = || Key::header("a", b"1");
    let left = async || other.peek(key(), 1).await.unwrap().remaining();
    for reset in [false, true] {
        let ticket = enter_gate(&limit, &mut new_request()).await.unwrap();
        tokio::time::sleep(if reset { 3 * SECOND } else { 90 * SECOND }).await;
        if reset {
            other.reset(key()).await.unwrap();
        }
        assert_eq!(left().await, 100);
        assert!(other.check(key(), 5).await.unwrap().is_admitted());
        leave_gate(&limit, ticket, 503).await;
        assert_eq!(left().await, 95);
        tokio::time::sleep(90 * SECOND).await;
    }
}

/// A shadow policy shows the effect of its enforcement, including refunds.
#[tokio::test(start_paused = true)]
async fn shadow_policy_charges_are_settled() {
    let store = Store::memory();
    let policy = named_policy("p", per_minute(2)).shadow();
    let left = async || {
        let peek =
            store.rate_limiter(policy.clone()).peek(Key::header("a", b"1"), 1).await.unwrap();
        peek.policies()[0].remaining()
    };
    let limit = gate_by_header("a", policy.clone()).refund_on(|status| status >= 500).store(&store);
    for _ in 0..5 {
        assert_eq!(run_request(&limit, 503).await, 503);
    }
    assert_eq!(left().await, Some(2));
    assert_eq!(run_request(&limit, 200).await, 200);
    assert_eq!(left().await, Some(1));
    let limit = gate_by_header("a", policy.clone()).handler_sets_cost().store(&store);
    let mut view = new_request();
    let ticket = enter_gate(&limit, &mut view).await.unwrap();
    assert_eq!(left().await, Some(0));
    assert!(view.extension::<RateStatus>().unwrap().set_cost(0).unwrap());
    leave_gate(&limit, ticket, 200).await;
    assert_eq!(left().await, Some(1));
}

/// A failed inner service becomes a 500 in an outer layer.
#[tokio::test(start_paused = true)]
async fn service_error_is_settled_as_status_500() {
    let store = Store::memory();
    let limit = gate_by_header("a", per_minute(2)).refund_on(|status| status == 500).store(&store);
    for _ in 0..5 {
        let ticket = enter_gate(&limit, &mut new_request()).await.unwrap();
        let _ = limit.leave(ticket, ServiceOutcome::Failed).await;
    }
}

#[tokio::test(start_paused = true)]
async fn handler_cost_replaces_the_charge() {
    let store = Store::memory();
    let policy = named_policy("p", per_minute(10));
    let limit = gate_by_header("a", policy.clone()).handler_sets_cost().store(&store);
    let spent = async || {
        let peek = store.rate_limiter(policy.clone()).peek(Key::header("a", b"1"), 1).await;
        10 - peek.unwrap().remaining()
    };
    let ticket = |cost: Option<u64>| {
        let limit = limit.clone();
        async move {
            let mut view = new_request();
            let ticket = enter_gate(&limit, &mut view).await.unwrap();
            let status = view.extension::<RateStatus>().unwrap();
            assert!(cost.is_none_or(|cost| status.set_cost(cost).unwrap()));
            ticket
        }
    };
    leave_gate(&limit, ticket(Some(4)).await, 200).await;
    assert_eq!(spent().await, 4);
    leave_gate(&limit, ticket(Some(0)).await, 200).await;
    assert_eq!(spent().await, 4);
    // A dropped ticket costs the handler's value, or else the original charge.
    drop(ticket(Some(3)).await);
    assert!(store.shutdown(SECOND).await);
    assert_eq!(spent().await, 7);
    drop(ticket(None).await);
    assert!(store.shutdown(SECOND).await);
    assert_eq!(spent().await, 8);
    // More than the remaining units.
    leave_gate(&limit, ticket(Some(50)).await, 200).await;
    assert_eq!(run_request(&limit, 200).await, 429);
}

/// An outage starts with the balance after the adjustment.
#[tokio::test(start_paused = true)]
async fn handler_cost_counts_in_a_following_outage() {
    for quota in
        [per_minute(10), per_minute(10).sliding(), per_minute(10).gcra(), per_minute(10).burst(12)]
    {
        let (store, faults) = faulty_store();
        let limit = gate_by_header("a", named_policy("p", quota)).handler_sets_cost().store(&store);
        let mut view = new_request();
        let ticket = enter_gate(&limit, &mut view).await.unwrap();
        assert!(view.extension::<RateStatus>().unwrap().set_cost(quota.capacity() - 2).unwrap());
        leave_gate(&limit, ticket, 200).await;
        for call in ["charge", "limiters"] {
            faults.set(call, BackendFault::Unavailable, 1000);
        }
        for expected in [200, 200, 429] {
            assert_eq!(run_request(&limit, 200).await, expected, "{quota:?}");
        }
    }
}

/// The cost is unknown when the request arrives, as for downloads charged by the byte.
#[tokio::test(start_paused = true)]
async fn handler_cost_is_charged_to_a_free_request() {
    let (store, faults) = faulty_store();
    let policy = named_policy("p", per_minute(10)).cost(0);
    let plan = gate_by_header("a", named_policy("plan", per_minute(10)).cost(0))
        .quota_by(|(): &()| async { Quota::unlimited() });
    let watched =
        gate_by_header("b", named_policy("watched", per_minute(10)).shadow()).cost_by(|(): &()| 0);
    let limit = gate_by_header("a", policy.clone()).handler_sets_cost();
    let limit = limit.and(watched.handler_sets_cost()).and(plan.handler_sets_cost()).store(&store);
    let spent = async |policy: &Policy, header: &str, value: &[u8]| {
        let limit = store.rate_limiter(policy.clone());
        10 - limit.peek(Key::header(header, value), 1).await.unwrap().policies()[0]
            .remaining()
            .unwrap()
    };
    for (cost, expected) in [(Some(4), 4), (None, 4), (Some(0), 4), (Some(3), 7)] {
        let mut view = new_request();
        let ticket = enter_gate(&limit, &mut view).await.unwrap();
        let status = view.extension::<RateStatus>().unwrap();
        assert!(cost.is_none_or(|cost| status.set_cost(cost).unwrap()));
        leave_gate(&limit, ticket, 200).await;
        assert_eq!(spent(&policy, "a", b"1").await, expected);
        assert_eq!(
            spent(&named_policy("watched", per_minute(10)).shadow(), "b", b"2").await,
            expected
        );
    }
    assert_eq!(faults.call_count("settle_charge"), 4, "two keys, twice");
}

/// The last cost set before the settlement counts.
#[tokio::test(start_paused = true)]
async fn cost_set_after_settlement_is_ignored() {
    let store = Store::memory();
    let limit = gate_by_header("a", per_minute(10)).handler_sets_cost().store(&store);
    let left = async || {
        let peek = store.rate_limiter(per_minute(10)).peek(Key::header("a", b"1"), 1).await;
        peek.unwrap().remaining()
    };
    for (dropped, expected) in [(false, 8), (true, 6)] {
        let mut view = new_request();
        let ticket = enter_gate(&limit, &mut view).await.unwrap();
        let status = view.extension::<RateStatus>().unwrap();
        assert!(status.set_cost(3).unwrap() && status.set_cost(2).unwrap());
        if dropped {
            drop(ticket);
        } else {
            leave_gate(&limit, ticket, 200).await;
        }
        assert!(!status.set_cost(5).unwrap());
        assert!(store.shutdown(SECOND).await);
        assert_eq!(left().await, expected);
    }
}

#[tokio::test(start_paused = true)]
async fn handler_cost_without_the_setting_is_ignored() {
    let store = Store::memory();
    let limit = gate_by_header("a", per_minute(10)).store(&store);
    let mut view = new_request();
    let ticket = enter_gate(&limit, &mut view).await.unwrap();
    assert!(!view.extension::<RateStatus>().unwrap().set_cost(5).unwrap());
    leave_gate(&limit, ticket, 200).await;
    let peek = store.rate_limiter(per_minute(10)).peek(Key::header("a", b"1"), 1).await;
    assert_eq!(peek.unwrap().remaining(), 9);
}

/// Adjustments that cannot have reached the store are sent again, after the response.
#[tokio::test(start_paused = true)]
async fn pending_settlements_are_sent_after_an_outage() {
    for fault in [BackendFault::Unavailable, BackendFault::LoginRefused] {
        let (store, faults) = faulty_store();
        let policy = named_policy("p", per_minute(9));
        let refunds =
            gate_by_header("a", policy.clone()).refund_on(|status| status >= 500).store(&store);
        let by_handler = gate_by_header("a", policy.clone()).handler_sets_cost().store(&store);
        let spent = async || {
            let peek = store.rate_limiter(policy.clone()).peek(Key::header("a", b"1"), 1).await;
            9 - peek.unwrap().remaining()
        };
        faults.set("settle_charge", fault, 5);
        let began = tokio::time::Instant::now();
        assert_eq!(run_request(&refunds, 503).await, 503);
        let mut view = new_request();
        let ticket = enter_gate(&by_handler, &mut view).await.unwrap();
        assert!(view.extension::<RateStatus>().unwrap().set_cost(4).unwrap());
        leave_gate(&by_handler, ticket, 200).await;
        assert_eq!(began.elapsed(), Duration::ZERO, "no response waits for that");
        assert_eq!(spent().await, 2);
        tokio::time::sleep(10 * SECOND).await;
        assert_eq!(spent().await, 4, "one charge is refunded, the other is raised to four");
        assert_eq!(
            faults.call_count("settle_charge"),
            7,
            "five failed calls and one for each settlement"
        );
    }
}

/// The adjustment may have run, so a second call might apply it twice.
#[tokio::test(start_paused = true)]
async fn uncertain_settlement_is_not_sent_again() {
    let (store, faults) = faulty_store();
    let limit = gate_by_header("a", per_minute(9)).refund_on(|status| status >= 500).store(&store);
    faults.set("settle_charge", BackendFault::ReplyTimeout, 1);
    assert_eq!(run_request(&limit, 503).await, 503);
    assert_eq!(run_request(&limit, 200).await, 200);
    tokio::time::sleep(30 * SECOND).await;
    assert_eq!(faults.call_count("settle_charge"), 1);
    let peek = store.rate_limiter(per_minute(9)).peek(Key::header("a", b"1"), 1).await.unwrap();
    assert_eq!(peek.remaining(), 8);
}

/// The settlement continues when the client disconnects during it.
#[tokio::test(start_paused = true)]
async fn dropped_response_is_refunded() {
    let (store, faults) = faulty_store();
    let limit = gate_by_header("a", per_minute(9)).refund_on(|status| status >= 500).store(&store);
    let ticket = enter_gate(&limit, &mut new_request()).await.unwrap();
    faults.set("settle_charge", BackendFault::SlowCall(SECOND), 1);
    {
        let mut leaving = pin!(limit.leave(ticket, ServiceOutcome::Answered(503)));
        assert!(poll_fn(|cx| Poll::Ready(leaving.as_mut().poll(cx))).await.is_pending());
    }
    assert!(store.shutdown(5 * SECOND).await);
    let peek = store.rate_limiter(per_minute(9)).peek(Key::header("a", b"1"), 1).await.unwrap();
    assert_eq!(peek.remaining(), 9);
}

/// A refund is not retried after the end of its window.
#[tokio::test(start_paused = true)]
async fn failed_settlement_ends_with_its_window_or_shutdown() {
    let (store, faults) = faulty_store();
    let limit = gate_by_header("a", per_minute(9)).refund_on(|status| status >= 500).store(&store);
    faults.set("settle_charge", BackendFault::Unavailable, 1_000_000);
    assert_eq!(run_request(&limit, 503).await, 503);
    tokio::time::sleep(60 * SECOND).await;
    let tries = faults.call_count("settle_charge");
    assert!((5..30).contains(&tries), "{tries}");
    tokio::time::sleep(600 * SECOND).await;
    assert_eq!(faults.call_count("settle_charge"), tries);
    // A shutdown tries once more and does not wait.
    assert_eq!(run_request(&limit, 503).await, 503);
    let began = tokio::time::Instant::now();
    assert!(store.shutdown(60 * SECOND).await);
    assert!(began.elapsed() < SECOND / 10);
    assert_eq!(faults.call_count("settle_charge"), tries + 2);
    tokio::time::sleep(60 * SECOND).await;
    assert_eq!(faults.call_count("settle_charge"), tries + 2);
}

/// A pending settlement does not own the store.
#[tokio::test(start_paused = true)]
async fn pending_settlement_does_not_keep_the_store_alive() {
    let (store, faults) = faulty_store();
    let limit = gate_by_header("a", per_minute(9)).refund_on(|status| status >= 500).store(&store);
    faults.set("settle_charge", BackendFault::Unavailable, 1_000_000);
    assert_eq!(run_request(&limit, 503).await, 503);
    let weak = store.downgrade();
    drop((limit, store));
    tokio::time::sleep(SECOND).await;
    assert!(weak.upgrade().is_none(), "the store is still referenced");
}

/// The number of pending settlements is limited; further charges stay as they are.
#[tokio::test(start_paused = true)]
async fn pending_settlements_are_bounded() {
    let (store, faults) = faulty_store();
    let policy = named_policy("p", per_minute(10_000));
    let limit = gate_by_header("a", policy.clone()).refund_on(|status| status >= 500).store(&store);
    faults.set("settle_charge", BackendFault::Unavailable, 1_000_000);
    for _ in 0..1500 {
        assert_eq!(run_request(&limit, 503).await, 503);
    }
    faults.set("settle_charge", BackendFault::Unavailable, 0);
    tokio::time::sleep(10 * SECOND).await;
    let peek = store.rate_limiter(policy).peek(Key::header("a", b"1"), 1).await.unwrap();
    assert_eq!(10_000 - peek.remaining(), 1500 - 1024);
}

#[test]
fn response_with_a_stalled_store_runtime_skips_refund_wait() {
    with_stalled_stores(|[store, ..]| async move {
        let limit = gate_by_header("a", named_policy("p", per_minute(2)))
            .refund_on(|status| status >= 500)
            .store(&store);
        assert_eq!(run_request(&limit, 503).await, 503);
    });
}
