//! While a node is down, the others are asked for the owners of its shards repeatedly, at little
//! cost.

use std::cell::Cell;

use super::{
    super::wait_until, acquire_command, keys_in_distinct_shards, retry_while_unavailable,
    wakeup_listener::SECOND,
};
use crate::store::{
    backend::{LockMode, LockToken},
    tests::test_cluster::TestCluster,
};

/// The node that is killed.
const KILLED_NODE: usize = 1;

/// Returns a number from `INFO` of a live node.
async fn info_number(cluster: &TestCluster, section: &str, field: &str) -> u64 {
    let text: String = cluster.query(0, &["INFO", section]).await;
    let line = text.lines().find_map(|line| line.strip_prefix(field));
    let number = line.and_then(|line| line.split([':', '=', ',']).find(|part| !part.is_empty()));
    number.and_then(|number| number.parse().ok()).unwrap_or(0)
}

#[tokio::test]
async fn topology_refresh_reuses_connections_during_outage() {
    let cluster = TestCluster::start(3, false, 30 * SECOND).await;
    let store =
        cluster.store_builder("away").call_timeout(SECOND).connect().await.expect("it is there");
    let mut lost_key = None;
    for key in keys_in_distinct_shards(8) {
        let token = LockToken::new(store.node());
        retry_while_unavailable(async || {
            store.backend().acquire(acquire_command(&key, &token)).await
        })
        .await;
        let release =
            async || store.backend().release(key.clone(), token.clone(), LockMode::Exclusive).await;
        retry_while_unavailable(release).await;
        if cluster.slot_owner(cluster.slot_of_shard(key.shard()).await).await == KILLED_NODE {
            lost_key = Some(key);
        }
    }
    let lost_key = lost_key.expect("each has some");
    let refresh_stat = if cluster.supports_sharded_pubsub().await {
        "cmdstat_cluster|slots:calls"
    } else {
        "cmdstat_cluster:calls"
    };
    let own_queries = Cell::new(0);
    let query_info = async |section, field| {
        own_queries.set(own_queries.get() + 1);
        info_number(&cluster, section, field).await
    };
    cluster.signal_node(KILLED_NODE, "-KILL").await;
    let (before, connections) = (
        query_info("commandstats", refresh_stat).await,
        query_info("stats", "total_connections_received").await,
    );
    let first = own_queries.get();
    let mut refresh_count = 0;
    while refresh_count < 6 {
        let token = LockToken::new(store.node());
        store
            .backend()
            .acquire(acquire_command(&lost_key, &token))
            .await
            .expect_err("the cluster node is unavailable");
        refresh_count = query_info("commandstats", refresh_stat).await - before;
    }
    let new_connections = query_info("stats", "total_connections_received").await
        - connections
        - (own_queries.get() - first);
    println!("figure: connections for {refresh_count} refreshes {new_connections}");
    assert!(new_connections <= 4, "{new_connections} connections for {refresh_count} refreshes");
}

/// A process may run for weeks without another topology refresh.
#[tokio::test]
async fn cached_topology_connections_are_closed_after_use() {
    let cluster = TestCluster::start(3, false, 30 * SECOND).await;
    let store =
        cluster.store_builder("kept").call_timeout(SECOND).connect().await.expect("it is there");
    let count_refresh_connections = async || {
        let clients: String = cluster.query(0, &["CLIENT", "LIST"]).await;
        let is_refresh =
            |line: &&str| line.contains(" cmd=cluster") || line.contains(" cmd=config");
        clients.lines().filter(is_refresh).count()
    };
    for key in keys_in_distinct_shards(1) {
        let token = LockToken::new(store.node());
        retry_while_unavailable(async || {
            store.backend().acquire(acquire_command(&key, &token)).await
        })
        .await;
    }
    wait_until("a node to be asked", async || count_refresh_connections().await > 0).await;
    wait_until("the refresh connections to close", async || count_refresh_connections().await == 0)
        .await;
}
