//! Large numbers, many counters, many processes, on every store.

use std::time::Duration;

use super::{charge_item, fixed_window_rule, repeated_charge};
use crate::{
    error::ErrorKind,
    store::{
        QuotaRule, SettleChargeCommand,
        backend::NodeId,
        rate::{AdjustmentKind, MAX_UNITS},
        tests::{
            on_every_store,
            store_harness::{LONG_TIME, SHORT_TIME, StoreHarness, test_key},
        },
    },
};

on_every_store!(
    counts_near_max_units_are_exact,
    charge_of_101_counters_is_config_error,
    register_limiter_counts_live_processes,
);

async fn counts_near_max_units_are_exact(rig: &StoreHarness) {
    let (key, week) = (test_key(), Duration::from_secs(7 * 24 * 3600));
    let rules = [
        QuotaRule::Fixed { limit: MAX_UNITS, window: week },
        QuotaRule::Sliding { limit: MAX_UNITS, window: week },
        // GCRA drains inexactly at this size; a single charge is exact.
        QuotaRule::Gcra { limit: MAX_UNITS, window: week, burst: MAX_UNITS },
    ];
    for (index, rule) in rules.into_iter().enumerate() {
        let item = |cost| charge_item(&index.to_string(), &key, rule, cost);
        let (admitted, snapshot) = rig.charge_once(&item(MAX_UNITS - 3)).await;
        assert!(admitted, "{rule:?} {snapshot:?}");
        if index < 2 {
            assert_eq!(snapshot.remaining, 3, "{rule:?}");
            assert!(!rig.charge_once(&item(4)).await.0);
            for remaining in (0..3).rev() {
                let (admitted, snapshot) = rig.charge_once(&item(1)).await;
                assert_eq!((admitted, snapshot.remaining), (true, remaining), "{rule:?}");
            }
            assert!(!rig.charge_once(&item(1)).await.0);
            // A charge beyond the limit leaves zero units.
            let snapshot =
                rig.adjust_charge(&item(0), AdjustmentKind::Charge { units: MAX_UNITS }).await;
            assert_eq!(snapshot.remaining, 0);
            let (_, snapshot) = rig.charge_once(&item(1)).await;
            assert!(
                snapshot.retry_after > Duration::ZERO && snapshot.retry_after <= 2 * week,
                "{snapshot:?}"
            );
        }
    }
    // In the second window: a third of the previous sliding window still counts.
    rig.advance(week + week / 3 * 2).await;
    let snapshot = rig.read_quota(&charge_item("1", &key, rules[1], 1)).await;
    let (third, tolerance) = (MAX_UNITS / 3, MAX_UNITS / 1000);
    let used_units = MAX_UNITS - snapshot.remaining;
    assert!(used_units <= third + 1 && used_units + tolerance > third, "{used_units} of {third}");
}

async fn charge_of_101_counters_is_config_error(rig: &StoreHarness) {
    let key = test_key();
    let items: Vec<_> =
        (0..101).map(|n| charge_item(&n.to_string(), &key, fixed_window_rule(1, 1), 1)).collect();
    let error = rig.backend().charge(repeated_charge(items.clone(), 1)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config);
    assert!(error.to_string().contains("101"), "{error}");
    let charged = rig.charge(repeated_charge(items[1..].to_vec(), 1)).await;
    assert_eq!((charged.admitted, charged.snapshots.len()), (1, 100));
    let none = SettleChargeCommand { tag: key, items: Vec::new() };
    assert!(rig.settle_charge(none).await.is_empty());
}

async fn register_limiter_counts_live_processes(rig: &StoreHarness) {
    let (a, b) = (NodeId::new(), NodeId::new());
    let count = async |node: &NodeId, lease| {
        rig.backend().register_limiter(node.clone(), lease).await.unwrap()
    };
    assert_eq!(count(&a, LONG_TIME).await, 1);
    assert_eq!(count(&b, SHORT_TIME).await, 2);
    assert_eq!(rig.heartbeat(&a, LONG_TIME).await.peers, [], "workers are something else");
    rig.advance_past(SHORT_TIME).await;
    assert_eq!(count(&a, LONG_TIME).await, 1);
    assert_eq!(count(&a, Duration::ZERO).await, 0);
}
