//! The registry of workers as operators see it.

use std::time::Duration;

use super::{
    on_every_store,
    store_harness::{LONG_TIME, StoreHarness},
};
use crate::store::{Store, backend::NodeId};

on_every_store!(registry_lists_workers_with_their_leases_until_they_leave);

async fn registry_lists_workers_with_their_leases_until_they_leave(rig: &StoreHarness) {
    let registered = async || rig.backend().list_registered_workers().await.unwrap();
    assert_eq!(registered().await, []);
    let [first, second] = [NodeId::new(), NodeId::new()];
    for node in [&first, &second] {
        rig.heartbeat(node, LONG_TIME).await;
    }
    let mut nodes: Vec<_> = registered().await.into_iter().map(|(node, _)| node).collect();
    nodes.sort();
    let mut expected = [first.to_string(), second.to_string()];
    expected.sort();
    assert_eq!(nodes, expected);
    rig.heartbeat(&first, Duration::ZERO).await;
    let left = registered().await;
    assert_eq!(left.len(), 1);
    assert_eq!(left[0].0, second.to_string());
    assert!(left[0].1 > LONG_TIME / 2 && left[0].1 <= LONG_TIME, "{left:?}");
    assert_eq!(rig.backend().count_live_workers().await.unwrap(), 1);
}

#[tokio::test(start_paused = true)]
async fn node_with_a_worker_that_does_not_answer_is_silent() {
    let store = Store::memory();
    let _guard = store.lock("order:7").acquire().await.expect("it is free");
    let hung = NodeId::new();
    for node in [&hung, store.node()] {
        store.backend().heartbeat(node.clone(), LONG_TIME).await.expect("the store answers");
    }
    let fleet = store.fleet().await.expect("the store answers");
    assert_eq!(fleet.processes.len(), 1);
    let silent: Vec<_> = fleet.silent.iter().map(|node| node.node.as_str()).collect();
    assert_eq!(silent, [hung.as_str()]);
    assert!(fleet.silent[0].lease_left_ms > 0);
}
