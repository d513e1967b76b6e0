//! While a node is away, the others are asked who has its shards, again and again; and have little to do with it.

use std::cell::Cell;

use super::{
    super::wait_until, acquire_command, keys_in_distinct_shards, retry_while_unavailable,
    wakeup_listener::SECOND,
};
use crate::store::{
    backend::{LockMode, LockToken},
    tests::test_cluster::TestCluster,
};

/// Who goes.
const KILLED_NODE: usize = 1;

/// What a node that lives tells of itself.
async fn info_number(cluster: &TestCluster, section: &str, field: &str) -> u64 {
    let text: String = cluster.query(0, &["INFO", section]).await;
    let line = text.lines().find_map(|line| line.strip_prefix(field));
    let number = line.and_then(|line| line.split([':', '=', ',']).find(|word| !word.is_empty()));
    number.and_then(|number| number.parse().ok()).unwrap_or(0)
}

#[tokio::test]
async fn topology_refresh_reuses_connections_during_outage() {
    let cluster = TestCluster::start(3, false, 30 * SECOND).await;
    let store =
        cluster.store_builder("away").call_timeout(SECOND).connect().await.expect("it is there");
    let mut gone = None;
    for key in keys_in_distinct_shards(8) {
        let me = LockToken::new(store.node());
        retry_while_unavailable(async || store.backend().acquire(acquire_command(&key, &me)).await)
            .await;
        let release =
            async || store.backend().release(key.clone(), me.clone(), LockMode::Exclusive).await;
        retry_while_unavailable(release).await;
        if cluster.slot_owner(cluster.slot_of_shard(key.shard()).await).await == KILLED_NODE {
            gone = Some(key);
        }
    }
    let gone = gone.expect("each has some");
    let asks = if cluster.supports_sharded_pubsub().await {
        "cmdstat_cluster|slots:calls"
    } else {
        "cmdstat_cluster:calls"
    };
    let own = Cell::new(0);
    let told = async |section, field| {
        own.set(own.get() + 1);
        info_number(&cluster, section, field).await
    };
    cluster.signal_node(KILLED_NODE, "-KILL").await;
    let (before, made) =
        (told("commandstats", asks).await, told("stats", "total_connections_received").await);
    let first = own.get();
    let mut looks = 0;
    while looks < 6 {
        let me = LockToken::new(store.node());
        store.backend().acquire(acquire_command(&gone, &me)).await.expect_err("it is away");
        looks = told("commandstats", asks).await - before;
    }
    let made = told("stats", "total_connections_received").await - made - (own.get() - first);
    println!("figure: connections for {looks} looks {made}");
    assert!(made <= 4, "{made} connections for {looks} looks");
}

/// A process may run for weeks without another look.
#[tokio::test]
async fn cached_topology_connections_are_closed_after_use() {
    let cluster = TestCluster::start(3, false, 30 * SECOND).await;
    let store =
        cluster.store_builder("kept").call_timeout(SECOND).connect().await.expect("it is there");
    let kept = async || {
        let clients: String = cluster.query(0, &["CLIENT", "LIST"]).await;
        let asked = |line: &&str| line.contains(" cmd=cluster") || line.contains(" cmd=config");
        clients.lines().filter(asked).count()
    };
    for key in keys_in_distinct_shards(1) {
        let me = LockToken::new(store.node());
        retry_while_unavailable(async || store.backend().acquire(acquire_command(&key, &me)).await)
            .await;
    }
    wait_until("a node to be asked", async || kept().await > 0).await;
    wait_until("nobody to keep a connection", async || kept().await == 0).await;
}
