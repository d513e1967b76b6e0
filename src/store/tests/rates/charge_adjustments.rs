//! Charge adjustments: refunds, further charges, changed quotas and clocks, on every store.

use std::time::Duration;

use super::{
    ALGORITHMS, SECOND, charge_item, counting_algorithms::quota_of_three, fixed_window_rule,
    gcra_rule, sliding_window_rule,
};
use crate::store::{
    ChargeItem, QuotaRule,
    rate::{AdjustmentKind, Algorithm},
    tests::{
        on_every_store,
        store_harness::{LONG_TIME, StoreHarness, test_key},
    },
};

on_every_store!(
    refund_keeps_window_boundary,
    refund_after_window_end_has_no_effect,
    refund_of_drained_gcra_debt_has_no_effect,
    refund_after_counter_reset_has_no_effect,
    refund_from_before_clock_rewind_has_no_effect,
    refund_from_before_rate_change_has_no_effect,
    later_charge_counts_beyond_limit,
    clock_rewind_delays_at_most_one_window,
    clock_jump_forward_ends_windows,
);

async fn refund_keeps_window_boundary(rig: &StoreHarness) {
    let (key, rule) = (test_key(), fixed_window_rule(3, 600));
    let item = charge_item("p", &key, rule, 3);
    let (_, first) = rig.charge_once(&item).await;
    rig.advance(LONG_TIME / 2).await;
    let after = rig.refund(&item, 3, first.charged_window).await;
    assert_eq!(after.remaining, 3);
    assert!(after.reset_after <= LONG_TIME / 2, "the window restarted: {after:?}");
    let (admitted, again) = rig.charge_once(&item).await;
    assert!(admitted && again.reset_after <= LONG_TIME / 2, "the window restarted: {again:?}");
    rig.advance(LONG_TIME / 2).await;
    assert!(rig.charge_once(&item).await.0);
}

async fn refund_after_window_end_has_no_effect(rig: &StoreHarness) {
    let key = test_key();
    for algorithm in [Algorithm::Fixed, Algorithm::Sliding] {
        let item = charge_item("p", &key, quota_of_three(algorithm), 3);
        let (_, first) = rig.charge_once(&item).await;
        rig.advance_past(LONG_TIME * 2).await;
        assert!(rig.charge_once(&item).await.0);
        let after = rig.refund(&item, 3, first.charged_window).await;
        assert_eq!(after.remaining, 0, "{algorithm:?}: it was of another window");
    }
}

async fn refund_of_drained_gcra_debt_has_no_effect(rig: &StoreHarness) {
    let (key, rule) = (test_key(), gcra_rule(1, 100, 4));
    let item = |cost| charge_item("p", &key, rule, cost);
    let (_, first) = rig.charge_once(&item(4)).await;
    rig.advance(300 * SECOND).await;
    assert!(rig.charge_once(&item(3)).await.0);
    // Three of the first four units have drained.
    let after = rig.refund(&item(0), 4, first.charged_window).await;
    assert!(after.remaining <= 1, "{after:?}");
    rig.advance(100 * SECOND).await;
    let before = rig.read_quota(&item(0)).await.remaining;
    assert_eq!(rig.refund(&item(0), 4, first.charged_window).await.remaining, before);
}

/// Holds for a reset and for a data loss.
async fn refund_after_counter_reset_has_no_effect(rig: &StoreHarness) {
    let key = test_key();
    for algorithm in ALGORITHMS {
        let item = charge_item("p", &key, quota_of_three(algorithm), 3);
        let (_, first) = rig.charge_once(&item).await;
        rig.reset_counter(&item, &key).await;
        // Windows are identified by their time, GCRA debts by an id.
        if algorithm != Algorithm::Gcra {
            rig.advance(SECOND).await;
        }
        let (admitted, second) = rig.charge_once(&item).await;
        assert!(admitted, "{algorithm:?}");
        let after = rig.refund(&item, 3, first.charged_window).await;
        assert_eq!(after.remaining, 0, "{algorithm:?}: another caller has spent it");
        let after = rig.refund(&item, 3, second.charged_window).await;
        assert_eq!(after.remaining, 3, "{algorithm:?}");
    }
}

async fn refund_from_before_clock_rewind_has_no_effect(rig: &StoreHarness) {
    let key = test_key();
    for algorithm in ALGORITHMS {
        let item = |cost| charge_item("p", &key, quota_of_six(algorithm), cost);
        let (_, first) = rig.charge_once(&item(4)).await;
        rig.advance(300 * SECOND).await;
        // One of the first four units is still owed.
        assert!(rig.charge_once(&item(1)).await.0, "{algorithm:?}");
        rig.rewind_clock(LONG_TIME * 100).await;
        let before = rig.read_quota(&item(0)).await.remaining;
        let after = rig.refund(&item(0), 4, first.charged_window).await;
        assert_eq!(after.remaining, before, "{algorithm:?}: it was of another clock");
        // Charges after the rewind can be refunded as usual.
        let (admitted, last) = rig.charge_once(&item(1)).await;
        assert!(admitted, "{algorithm:?}");
        let after = rig.refund(&item(0), 1, last.charged_window).await;
        assert_eq!(after.remaining, before, "{algorithm:?}");
    }
}

/// The share of the debt that has drained at the new rate is unknown.
async fn refund_from_before_rate_change_has_no_effect(rig: &StoreHarness) {
    let (key, slow, fast) = (test_key(), gcra_rule(1, 100, 4), gcra_rule(1, 10, 4));
    let item = |rule, cost| charge_item("p", &key, rule, cost);
    for refund_rule in [fast, slow] {
        let (_, first) = rig.charge_once(&item(slow, 4)).await;
        assert_eq!(rig.read_quota(&item(fast, 0)).await.remaining, 0);
        rig.advance(30 * SECOND).await;
        assert!(rig.charge_once(&item(fast, 3)).await.0);
        let _ = rig.refund(&item(refund_rule, 0), 4, first.charged_window).await;
        assert_eq!(rig.read_quota(&item(fast, 0)).await.remaining, 0, "{refund_rule:?}");
        rig.advance(LONG_TIME).await;
    }
}

async fn later_charge_counts_beyond_limit(rig: &StoreHarness) {
    let key = test_key();
    for algorithm in ALGORITHMS {
        let item = charge_item("p", &key, quota_of_three(algorithm), 1);
        let after = rig.adjust_charge(&item, AdjustmentKind::Charge { units: 5 }).await;
        assert_eq!(after.remaining, 0, "{algorithm:?}");
        let (admitted, snapshot) = rig.charge_once(&item).await;
        assert!(
            !admitted
                && snapshot.retry_after > Duration::ZERO
                && snapshot.retry_after <= 2 * LONG_TIME,
            "{snapshot:?}"
        );
        rig.advance(snapshot.retry_after).await;
        assert!(rig.charge_once(&item).await.0, "{algorithm:?}");
    }
}

/// Like `quota_of_three`, with six units in the same time.
fn quota_of_six(algorithm: Algorithm) -> QuotaRule {
    match algorithm {
        Algorithm::Fixed => fixed_window_rule(6, 600),
        Algorithm::Sliding => sliding_window_rule(6, 600),
        Algorithm::Gcra => gcra_rule(1, 100, 6),
    }
}

async fn clock_rewind_delays_at_most_one_window(rig: &StoreHarness) {
    let key = test_key();
    for algorithm in ALGORITHMS {
        let item = charge_item("p", &key, quota_of_three(algorithm), 3);
        assert!(rig.charge_once(&item).await.0);
        rig.rewind_clock(LONG_TIME * 100).await;
        let (admitted, snapshot) = rig.charge_once(&item).await;
        assert!(!admitted && snapshot.retry_after <= 2 * LONG_TIME, "{algorithm:?} {snapshot:?}");
        rig.advance(snapshot.retry_after).await;
        assert!(rig.charge_once(&item).await.0, "{algorithm:?}: refused after `retry_after`");
    }
}

async fn clock_jump_forward_ends_windows(rig: &StoreHarness) {
    let key = test_key();
    for algorithm in ALGORITHMS {
        let item = charge_item("p", &key, quota_of_three(algorithm), 3);
        let (_, first) = rig.charge_once(&item).await;
        rig.advance(LONG_TIME * 1_000_000).await;
        assert!(rig.charge_once(&item).await.0, "{algorithm:?}");
        let again = ChargeItem { cost: 1, ..item };
        assert!(!rig.charge_once(&again).await.0, "{algorithm:?}: no more than the quota");
        // Charges from before the jump have expired. A refund of them must not reduce later
        // charges.
        let after = rig.refund(&again, 3, first.charged_window).await;
        assert_eq!(after.remaining, 0, "{algorithm:?}");
        let after = rig.adjust_charge(&again, AdjustmentKind::Charge { units: 1 }).await;
        assert_eq!(after.remaining, 0, "{algorithm:?}");
    }
}
