//! What each algorithm does, on every store.

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

/// What every algorithm has: three at once.
pub(super) fn quota_of_three(algorithm: Algorithm) -> QuotaRule {
    match algorithm {
        Algorithm::Fixed => fixed_window_rule(3, 600),
        Algorithm::Sliding => sliding_window_rule(3, 600),
        Algorithm::Gcra => gcra_rule(1, 200, 3),
    }
}

/// A little less and a little more than was told: real time passes too on some stores.
fn assert_close_below(time: Duration, told: Duration) {
    let slow = Duration::from_secs(5);
    assert!(told <= time && told + slow >= time, "{told:?}, expected {time:?}");
}

async fn sliding_window_frees_units_gradually(rig: &StoreHarness) {
    let (key, rule) = (test_key(), sliding_window_rule(4, 1000));
    let asked = charge_item("p", &key, rule, 1);
    assert_eq!(rig.charge(repeated_charge(vec![asked.clone()], 5)).await.admitted, 4);
    rig.advance(1000 * SECOND).await;
    let state = rig.read_quota(&asked).await;
    assert_eq!(state.remaining, 0, "all of it is still within reach");
    assert_close_below(250 * SECOND, state.retry_after);
    assert_close_below(250 * SECOND, state.reset_after);
    for left in [1, 0] {
        rig.advance(255 * SECOND).await;
        let (admitted, state) = rig.charge_once(&asked).await;
        assert_eq!((admitted, state.remaining), (true, 0), "{left}");
        assert!(!rig.charge_once(&asked).await.0);
    }
    rig.advance(2000 * SECOND).await;
    assert_eq!(rig.read_quota(&asked).await.remaining, 4);
}

async fn gcra_admits_burst_then_one_per_interval(rig: &StoreHarness) {
    let (key, rule) = (test_key(), gcra_rule(1, 100, 3));
    let asked = charge_item("p", &key, rule, 1);
    for left in (0..3).rev() {
        let (admitted, state) = rig.charge_once(&asked).await;
        assert_eq!((admitted, state.remaining), (true, left));
        assert_close_below(100 * SECOND * (3 - u32::try_from(left).unwrap()), state.full_after);
    }
    let (admitted, state) = rig.charge_once(&asked).await;
    assert!(!admitted);
    assert_close_below(100 * SECOND, state.retry_after);
    assert_close_below(100 * SECOND, state.reset_after);
    for _ in 0..3 {
        rig.advance(100 * SECOND).await;
        assert!(rig.charge_once(&asked).await.0);
        assert!(!rig.charge_once(&asked).await.0);
    }
    rig.advance(1000 * SECOND).await;
    let state = rig.read_quota(&asked).await;
    assert_eq!(
        (state.remaining, state.reset_after, state.full_after),
        (3, Duration::ZERO, Duration::ZERO)
    );
}

async fn cost_above_capacity_is_refused_permanently(rig: &StoreHarness) {
    let key = test_key();
    for algorithm in ALGORITHMS {
        for cost in [4, MAX_UNITS, u64::MAX] {
            let asked = charge_item("p", &key, quota_of_three(algorithm), cost);
            let (admitted, state) = rig.charge_once(&asked).await;
            assert_eq!(
                (admitted, state.retry_after),
                (false, Duration::MAX),
                "{algorithm:?} {cost}"
            );
            assert_eq!(state.remaining, 3);
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
    for (n, rule) in rules.into_iter().enumerate() {
        let asked = |cost| charge_item(&n.to_string(), &key, rule, cost);
        for turn in 0..8 {
            while rig.charge_once(&asked(1)).await.0 {}
            let wanted = asked(1 + turn % 2);
            let (admitted, state) = rig.charge_once(&wanted).await;
            if admitted || state.retry_after == Duration::MAX {
                continue;
            }
            rig.advance(state.retry_after).await;
            assert!(rig.charge_once(&wanted).await.0, "{rule:?}, after {:?}", state.retry_after);
        }
    }
}

fn with_penalty(item: ChargeItem, after: u32) -> ChargeItem {
    ChargeItem {
        penalty: Some(Penalty { after_refusals: after, block_for: LONG_TIME * 4 }),
        ..item
    }
}

async fn penalty_blocks_after_refusals_and_ends(rig: &StoreHarness) {
    let key = test_key();
    for algorithm in ALGORITHMS {
        let asked = with_penalty(charge_item("p", &key, quota_of_three(algorithm), 3), 2);
        assert!(rig.charge_once(&asked).await.0);
        let (admitted, state) = rig.charge_once(&asked).await;
        assert!(
            !admitted && state.blocked_for.is_none() && state.retry_after <= LONG_TIME * 2,
            "{algorithm:?} {state:?}"
        );
        let never = ChargeItem { cost: 4, ..asked.clone() };
        assert!(
            rig.charge_once(&never).await.1.blocked_for.is_none(),
            "it could not have been let in"
        );
        assert!(rig.read_quota(&asked).await.blocked_for.is_none());
        let (admitted, state) = rig.charge_once(&asked).await;
        assert!(!admitted && state.blocked_for.is_some(), "{algorithm:?} {state:?}");
        assert_close_below(LONG_TIME * 4, state.retry_after);
        rig.advance_past(LONG_TIME * 2).await;
        // The quota is there again; still nobody gets in, and the block gets no longer.
        for cost in [1, 0] {
            let (admitted, state) = rig.charge_once(&ChargeItem { cost, ..asked.clone() }).await;
            assert!(
                !admitted && state.blocked_for.is_some() && state.retry_after <= LONG_TIME * 2,
                "{algorithm:?} {state:?}"
            );
            assert_eq!(state.remaining, 3);
        }
        rig.advance_past(LONG_TIME * 2).await;
        let (admitted, state) = rig.charge_once(&asked).await;
        assert!(admitted && state.blocked_for.is_none(), "{algorithm:?} {state:?}");
    }
}

async fn reset_clears_charges_and_penalties(rig: &StoreHarness) {
    let key = test_key();
    for algorithm in ALGORITHMS {
        let asked = with_penalty(charge_item("p", &key, quota_of_three(algorithm), 3), 1);
        assert!(rig.charge_once(&asked).await.0);
        assert!(rig.charge_once(&asked).await.1.blocked_for.is_some());
        rig.reset_counter(&asked, &key).await;
        assert!(rig.charge_once(&asked).await.0, "{algorithm:?}");
    }
}

async fn mixed_counters_are_charged_all_or_none(rig: &StoreHarness) {
    let [key, other] = keys_of_one_shard::<2>();
    let group = |cost: u64| {
        let of_each =
            ALGORITHMS.map(|algorithm| charge_item("p", &key, quota_of_three(algorithm), cost));
        // The last one has less.
        of_each
            .into_iter()
            .chain([charge_item("q", &other, fixed_window_rule(2, 600), 1)])
            .collect::<Vec<_>>()
    };
    let remaining =
        |states: &[QuotaSnapshot]| states.iter().map(|state| state.remaining).collect::<Vec<_>>();
    let first = rig.charge(repeated_charge(group(1), 1)).await;
    assert_eq!((first.admitted, remaining(&first.snapshots)), (1, vec![2, 2, 2, 1]));
    let refused = rig.charge(repeated_charge(group(3), 1)).await;
    assert_eq!((refused.admitted, remaining(&refused.snapshots)), (0, vec![2, 2, 2, 1]));
    let blames: Vec<_> =
        refused.snapshots.iter().map(|state| state.retry_after.is_zero()).collect();
    assert_eq!(blames, [false, false, false, true], "each tells whether it is to blame");
    let part = rig.charge(repeated_charge(group(1), 3)).await;
    assert_eq!((part.admitted, remaining(&part.snapshots)), (1, vec![1, 1, 1, 0]));
    let refused = rig.charge(repeated_charge(group(1), 1)).await;
    let blames: Vec<_> =
        refused.snapshots.iter().map(|state| state.retry_after.is_zero()).collect();
    assert_eq!(blames, [true, true, true, false]);
}
