//! The document of changed policies, on every store.

use std::{sync::Arc, time::Duration};

use tokio::time::timeout;

use super::charge_item;
use crate::store::{
    ChargeItem, CounterName, Penalty, QuotaRule, StoredPolicyChanges,
    backend::NodeId,
    tests::{
        on_every_store,
        store_harness::{LONG_TIME, SHORT_TIME, StoreHarness, test_key},
    },
    wakeup_listeners::WakeupListeners,
};

on_every_store!(
    document_is_replaced_by_version_and_announced,
    operator_blocks_longer_than_the_penalty_and_unblocks,
);

fn document(version: u64, text: &str) -> StoredPolicyChanges {
    StoredPolicyChanges { version, document: text.to_owned() }
}

async fn document_is_replaced_by_version_and_announced(rig: &StoreHarness) {
    let wakeups = Arc::new(WakeupListeners::default());
    let announced = wakeups.policy_changes();
    rig.subscribe_node(&NodeId::new(), &wakeups).await;
    if rig.resyncs_on_subscribe() {
        timeout(Duration::from_secs(10), announced.notified()).await.expect("a resync");
    }
    let backend = rig.backend();
    let replace = async |old, new| backend.replace_policy_changes(old, new).await.unwrap();
    assert_eq!(backend.read_policy_changes().await.unwrap(), StoredPolicyChanges::default());

    assert!(replace(0, document(1, "one")).await);
    timeout(Duration::from_secs(10), announced.notified()).await.expect("a message");
    assert!(replace(0, document(1, "one")).await, "the same call again");
    assert!(!replace(0, document(1, "two")).await, "another operator was first");
    assert_eq!(backend.read_policy_changes().await.unwrap(), document(1, "one"));

    assert!(replace(1, document(2, "")).await);
    assert!(!replace(0, document(1, "one")).await, "a late copy");
    assert_eq!(backend.read_policy_changes().await.unwrap(), document(2, ""));
}

async fn operator_blocks_longer_than_the_penalty_and_unblocks(rig: &StoreHarness) {
    let key = test_key();
    let block = async |item: &ChargeItem, block| {
        let counter = CounterName {
            policy: Arc::clone(&item.policy),
            subject: key.clone(),
            algorithm: item.rule.algorithm(),
        };
        rig.backend().block_counters(key.clone(), vec![counter], block).await.unwrap();
    };
    let (limit, window) = (9, SHORT_TIME);
    for rule in [
        QuotaRule::Fixed { limit, window },
        QuotaRule::Sliding { limit, window },
        QuotaRule::Gcra { limit, window, burst: limit },
    ] {
        let penalty = Some(Penalty { after_refusals: 5, block_for: SHORT_TIME });
        let item = ChargeItem { penalty, ..charge_item("p", &key, rule, 1) };
        assert!(rig.charge_once(&item).await.0);
        block(&item, 4 * SHORT_TIME).await;
        let (admitted, snapshot) = rig.charge_once(&item).await;
        let left = snapshot.blocked_for.expect("a block");
        assert!(!admitted && left > 3 * SHORT_TIME && left <= 4 * SHORT_TIME, "{left:?}");
        rig.advance(2 * SHORT_TIME).await;
        assert!(!rig.charge_once(&item).await.0, "a penalty would have ended");
        rig.advance(2 * SHORT_TIME).await;
        assert!(rig.charge_once(&item).await.0);

        block(&item, LONG_TIME).await;
        assert!(!rig.charge_once(&item).await.0);
        block(&item, Duration::ZERO).await;
        assert!(rig.charge_once(&item).await.0);
    }
}
