//! The document of changed policies, on every store.

use std::{sync::Arc, time::Duration};

use tokio::time::timeout;

use crate::store::{
    StoredPolicyChanges,
    backend::NodeId,
    tests::{on_every_store, store_harness::StoreHarness},
    wakeup_listeners::WakeupListeners,
};

on_every_store!(document_is_replaced_by_version_and_announced);

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
