//! Large numbers, many counters, many processes; on every store.

use std::time::Duration;

use super::{fixed, item, of};
use crate::{
    error::ErrorKind,
    store::{
        QuotaRule, SettleChargeCommand,
        backend::NodeId,
        rate::{AdjustmentKind, MAX_UNITS},
        tests::{
            on_every_store,
            rig::{LONG, Rig, SHORT, key},
        },
    },
};

on_every_store!(
    numbers_near_the_bound_are_exact,
    too_many_counters_are_refused_with_a_sentence,
    live_limiters_are_counted,
);

async fn numbers_near_the_bound_are_exact(rig: &Rig) {
    let (key, week) = (key(), Duration::from_secs(7 * 24 * 3600));
    let rules = [
        QuotaRule::Fixed { limit: MAX_UNITS, window: week },
        QuotaRule::Sliding { limit: MAX_UNITS, window: week },
        // Not exact by itself; what is spent at once is.
        QuotaRule::Gcra { limit: MAX_UNITS, window: week, burst: MAX_UNITS },
    ];
    for (n, rule) in rules.into_iter().enumerate() {
        let asked = |cost| item(&n.to_string(), &key, rule, cost);
        let (admitted, state) = rig.spend(&asked(MAX_UNITS - 3)).await;
        assert!(admitted, "{rule:?} {state:?}");
        if n < 2 {
            assert_eq!(state.remaining, 3, "{rule:?}");
            assert!(!rig.spend(&asked(4)).await.0);
            for left in (0..3).rev() {
                let (admitted, state) = rig.spend(&asked(1)).await;
                assert_eq!((admitted, state.remaining), (true, left), "{rule:?}");
            }
            assert!(!rig.spend(&asked(1)).await.0);
            // Even more than all is all.
            let state = rig.put_right(&asked(0), AdjustmentKind::Charge { units: MAX_UNITS }).await;
            assert_eq!(state.remaining, 0);
            let (_, state) = rig.spend(&asked(1)).await;
            assert!(
                state.retry_after > Duration::ZERO && state.retry_after <= 2 * week,
                "{state:?}"
            );
        }
    }
    // In the second week of the sliding one: a third of the last one is within reach.
    rig.advance(week + week / 3 * 2).await;
    let state = rig.peek(&item("1", &key, rules[1], 1)).await;
    let (third, slow) = (MAX_UNITS / 3, MAX_UNITS / 1000);
    let used = MAX_UNITS - state.remaining;
    assert!(used <= third + 1 && used + slow > third, "{used} of {third}");
}

async fn too_many_counters_are_refused_with_a_sentence(rig: &Rig) {
    let key = key();
    let items: Vec<_> = (0..101).map(|n| item(&n.to_string(), &key, fixed(1, 1), 1)).collect();
    let error = rig.backend().charge(of(items.clone(), 1)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config);
    assert!(error.to_string().contains("101"), "{error}");
    let charged = rig.charge(of(items[1..].to_vec(), 1)).await;
    assert_eq!((charged.admitted, charged.snapshots.len()), (1, 100));
    let none = SettleChargeCommand { tag: key, items: Vec::new() };
    assert!(rig.settle_charge(none).await.is_empty());
}

async fn live_limiters_are_counted(rig: &Rig) {
    let (a, b) = (NodeId::new(), NodeId::new());
    let count = async |node: &NodeId, lease| {
        rig.backend().register_limiter(node.clone(), lease).await.unwrap()
    };
    assert_eq!(count(&a, LONG).await, 1);
    assert_eq!(count(&b, SHORT).await, 2);
    assert_eq!(rig.beat(&a, LONG).await.peers, [], "workers are something else");
    rig.pass(SHORT).await;
    assert_eq!(count(&a, LONG).await, 1);
    assert_eq!(count(&a, Duration::ZERO).await, 0);
}
