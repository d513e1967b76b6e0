//! The counting algorithms, on every store.

use std::time::Duration;

use super::{
    ALGORITHMS, SECOND, charge_item, fixed_window_rule, gcra_rule, repeated_charge,
    sliding_window_rule,
};
use crate::store::{
    ChargeItem, Penalty, QuotaRule, QuotaSnapshot,
    rate::{Algorithm, MAX_UNITS},
    tests::{
        on_every_store,
        store_harness::{LONG_TIME, StoreHarness, keys_of_one_shard, test_key},
    },
};

on_every_store!(
    sliding_window_frees_units_gradually,
    gcra_admits_burst_then_one_per_interval,
    cost_above_capacity_is_refused_permanently,
    charge_after_retry_time_is_admitted,
    penalty_blocks_after_refusals_and_ends,
    reset_clears_charges_and_penalties,
    mixed_counters_are_charged_all_or_none,
);

/// Returns a rule of this algorithm with a capacity of three units.
pub(super) fn quota_of_three(algorithm: Algorithm) -> QuotaRule {
    match algorithm {
        Algorithm::Fixed => fixed_window_rule(3, 600),
        Algorithm::Sliding => sliding_window_rule(3, 600),
        Algorithm::Gcra => gcra_rule(1, 200, 3),
    }
}

/// Asserts that a time is at most `expected`, and little less: on some stores real time passes as
/// well.
fn assert_close_below(expected: Duration, actual: Duration) {
    let tolerance = Duration::from_secs(5);
    assert!(
        actual <= expected && actual + tolerance >= expected,
        "{actual:?}, expected {expected:?}"
    );
}

async fn sliding_window_frees_units_gradually(rig: &StoreHarness) {
    let (key, rule) = (test_key(), sliding_window_rule(4, 1000));
    let item = charge_item("p", &key, rule, 1);
    assert_eq!(rig.charge(repeated_charge(vec![item.clone()], 5)).await.admitted, 4);
    rig.advance(1000 * SECOND).await;
    let snapshot = rig.read_quota(&item).await;
    assert_eq!(snapshot.remaining, 0, "all of it is still within reach");
    assert_close_below(250 * SECOND, snapshot.retry_after);
    assert_close_below(250 * SECOND, snapshot.reset_after);
    for remaining in [1, 0] {
        rig.advance(255 * SECOND).await;
        let (admitted, snapshot) = rig.charge_once(&item).await;
        assert_eq!((admitted, snapshot.remaining), (true, 0), "{remaining}");
        assert!(!rig.charge_once(&item).await.0);
    }
    rig.advance(2000 * SECOND).await;
    assert_eq!(rig.read_quota(&item).await.remaining, 4);
}

async fn gcra_admits_burst_then_one_per_interval(rig: &StoreHarness) {
    let (key, rule) = (test_key(), gcra_rule(1, 100, 3));
    let item = charge_item("p", &key, rule, 1);
    for remaining in (0..3).rev() {
        let (admitted, snapshot) = rig.charge_once(&item).await;
        assert_eq!((admitted, snapshot.remaining), (true, remaining));
        assert_close_below(
            100 * SECOND * (3 - u32::try_from(remaining).unwrap()),
            snapshot.full_after,
        );
    }
    let (admitted, snapshot) = rig.charge_once(&item).await;
    assert!(!admitted);
    assert_close_below(100 * SECOND, snapshot.retry_after);
    assert_close_below(100 * SECOND, snapshot.reset_after);
    for _ in 0..3 {
        rig.advance(100 * SECOND).await;
        assert!(rig.charge_once(&item).await.0);
        assert!(!rig.charge_once(&item).await.0);
    }
    rig.advance(1000 * SECOND).await;
    let snapshot = rig.read_quota(&item).await;
    assert_eq!(
        (snapshot.remaining, snapshot.reset_after, snapshot.full_after),
        (3, Duration::ZERO, Duration::ZERO)
    );
}

async fn cost_above_capacity_is_refused_permanently(rig: &StoreHarness) {
    let key = test_key();
    for algorithm in ALGORITHMS {
        for cost in [4, MAX_UNITS, u64::MAX] {
            let item = charge_item("p", &key, quota_of_three(algorithm), cost);
            let (admitted, snapshot) = rig.charge_once(&item).await;
            assert_eq!(
                (admitted, snapshot.retry_after),
                (false, Duration::MAX),
                "{algorithm:?} {cost}"
            );
            assert_eq!(snapshot.remaining, 3);
        }
    }
}

async fn charge_after_retry_time_is_admitted(rig: &StoreHarness) {
    let key = test_key();
    let rules = [
        fixed_window_rule(3, 7),
        sliding_window_rule(5, 7),
        gcra_rule(3, 7, 2),
        gcra_rule(7, 3, 5),
        sliding_window_rule(1, 1),
    ];
    for (index, rule) in rules.into_iter().enumerate() {
        let item_with_cost = |cost| charge_item(&index.to_string(), &key, rule, cost);
        for round in 0..8 {
            while rig.charge_once(&item_with_cost(1)).await.0 {}
            let item = item_with_cost(1 + round % 2);
            let (admitted, snapshot) = rig.charge_once(&item).await;
            if admitted || snapshot.retry_after == Duration::MAX {
                continue;
            }
            rig.advance(snapshot.retry_after).await;
            assert!(rig.charge_once(&item).await.0, "{rule:?}, after {:?}", snapshot.retry_after);
        }
    }
}

fn with_penalty(item: ChargeItem, after_refusals: u32) -> ChargeItem {
    ChargeItem { penalty: Some(Penalty { after_refusals, block_for: LONG_TIME * 4 }), ..item }
}

async fn penalty_blocks_after_refusals_and_ends(rig: &StoreHarness) {
    let key = test_key();
    for algorithm in ALGORITHMS {
        let item = with_penalty(charge_item("p", &key, quota_of_three(algorithm), 3), 2);
        assert!(rig.charge_once(&item).await.0);
        let (admitted, snapshot) = rig.charge_once(&item).await;
        assert!(
            !admitted && snapshot.blocked_for.is_none() && snapshot.retry_after <= LONG_TIME * 2,
            "{algorithm:?} {snapshot:?}"
        );
        let unaffordable = ChargeItem { cost: 4, ..item.clone() };
        assert!(
            rig.charge_once(&unaffordable).await.1.blocked_for.is_none(),
            "it could not have been let in"
        );
        assert!(rig.read_quota(&item).await.blocked_for.is_none());
        let (admitted, snapshot) = rig.charge_once(&item).await;
        assert!(!admitted && snapshot.blocked_for.is_some(), "{algorithm:?} {snapshot:?}");
        assert_close_below(LONG_TIME * 4, snapshot.retry_after);
        rig.advance_past(LONG_TIME * 2).await;
        // The quota is free again, but the block still refuses and does not become longer.
        for cost in [1, 0] {
            let (admitted, snapshot) = rig.charge_once(&ChargeItem { cost, ..item.clone() }).await;
            assert!(
                !admitted
                    && snapshot.blocked_for.is_some()
                    && snapshot.retry_after <= LONG_TIME * 2,
                "{algorithm:?} {snapshot:?}"
            );
            assert_eq!(snapshot.remaining, 3);
        }
        rig.advance_past(LONG_TIME * 2).await;
        let (admitted, snapshot) = rig.charge_once(&item).await;
        assert!(admitted && snapshot.blocked_for.is_none(), "{algorithm:?} {snapshot:?}");
    }
}

async fn reset_clears_charges_and_penalties(rig: &StoreHarness) {
    let key = test_key();
    for algorithm in ALGORITHMS {
        let item = with_penalty(charge_item("p", &key, quota_of_three(algorithm), 3), 1);
        assert!(rig.charge_once(&item).await.0);
        assert!(rig.charge_once(&item).await.1.blocked_for.is_some());
        rig.reset_counter(&item, &key).await;
        assert!(rig.charge_once(&item).await.0, "{algorithm:?}");
    }
}

async fn mixed_counters_are_charged_all_or_none(rig: &StoreHarness) {
    let [key, other] = keys_of_one_shard::<2>();
    let group = |cost: u64| {
        let items =
            ALGORITHMS.map(|algorithm| charge_item("p", &key, quota_of_three(algorithm), cost));
        // The last counter has one unit less.
        items
            .into_iter()
            .chain([charge_item("q", &other, fixed_window_rule(2, 600), 1)])
            .collect::<Vec<_>>()
    };
    let remaining = |snapshots: &[QuotaSnapshot]| {
        snapshots.iter().map(|snapshot| snapshot.remaining).collect::<Vec<_>>()
    };
    let first = rig.charge(repeated_charge(group(1), 1)).await;
    assert_eq!((first.admitted, remaining(&first.snapshots)), (1, vec![2, 2, 2, 1]));
    let refused = rig.charge(repeated_charge(group(3), 1)).await;
    assert_eq!((refused.admitted, remaining(&refused.snapshots)), (0, vec![2, 2, 2, 1]));
    let has_room: Vec<_> =
        refused.snapshots.iter().map(|snapshot| snapshot.retry_after.is_zero()).collect();
    assert_eq!(
        has_room,
        [false, false, false, true],
        "each snapshot shows whether its counter refused"
    );
    let partial = rig.charge(repeated_charge(group(1), 3)).await;
    assert_eq!((partial.admitted, remaining(&partial.snapshots)), (1, vec![1, 1, 1, 0]));
    let refused = rig.charge(repeated_charge(group(1), 1)).await;
    let has_room: Vec<_> =
        refused.snapshots.iter().map(|snapshot| snapshot.retry_after.is_zero()).collect();
    assert_eq!(has_room, [true, true, true, false]);
}
