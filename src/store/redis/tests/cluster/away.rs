//! While a node is away, the others are asked who has its shards, again and again; and have little to do with it.

use std::cell::Cell;

use super::{super::eventually, ask, ear::SECOND, insist, keys};
use crate::store::{
    backend::{LockMode, LockToken},
    tests::cluster::Cluster,
};

/// Who goes.
const GOES: usize = 1;

/// What a node that lives tells of itself.
async fn told(cluster: &Cluster, section: &str, field: &str) -> u64 {
    let text: String = cluster.ask(0, &["INFO", section]).await;
    let line = text.lines().find_map(|line| line.strip_prefix(field));
    let number = line.and_then(|line| line.split([':', '=', ',']).find(|word| !word.is_empty()));
    number.and_then(|number| number.parse().ok()).unwrap_or(0)
}

#[tokio::test]
async fn nodes_that_live_are_asked_by_the_connections_there_are() {
    let cluster = Cluster::start(3, false, 30 * SECOND).await;
    let store = cluster.builder("away").call_timeout(SECOND).connect().await.expect("it is there");
    let mut gone = None;
    for key in keys(8) {
        let me = LockToken::new(store.node());
        insist(async || store.backend().acquire(ask(&key, &me)).await).await;
        let release =
            async || store.backend().release(key.clone(), me.clone(), LockMode::Exclusive).await;
        insist(release).await;
        if cluster.owner(cluster.slot(key.shard()).await).await == GOES {
            gone = Some(key);
        }
    }
    let gone = gone.expect("each has some");
    let asks = if cluster.tells_shards().await {
        "cmdstat_cluster|slots:calls"
    } else {
        "cmdstat_cluster:calls"
    };
    let own = Cell::new(0);
    let told = async |section, field| {
        own.set(own.get() + 1);
        told(&cluster, section, field).await
    };
    cluster.signal(GOES, "-KILL").await;
    let (before, made) =
        (told("commandstats", asks).await, told("stats", "total_connections_received").await);
    let first = own.get();
    let mut looks = 0;
    while looks < 6 {
        let me = LockToken::new(store.node());
        store.backend().acquire(ask(&gone, &me)).await.expect_err("it is away");
        looks = told("commandstats", asks).await - before;
    }
    let made = told("stats", "total_connections_received").await - made - (own.get() - first);
    println!("figure: connections for {looks} looks {made}");
    assert!(made <= 4, "{made} connections for {looks} looks");
}

/// A process may run for weeks without another look.
#[tokio::test]
async fn connections_that_are_not_believed_any_more_are_closed() {
    let cluster = Cluster::start(3, false, 30 * SECOND).await;
    let store = cluster.builder("kept").call_timeout(SECOND).connect().await.expect("it is there");
    let kept = async || {
        let clients: String = cluster.ask(0, &["CLIENT", "LIST"]).await;
        let asked = |line: &&str| line.contains(" cmd=cluster") || line.contains(" cmd=config");
        clients.lines().filter(asked).count()
    };
    for key in keys(1) {
        let me = LockToken::new(store.node());
        insist(async || store.backend().acquire(ask(&key, &me)).await).await;
    }
    eventually("a node to be asked", async || kept().await > 0).await;
    eventually("nobody to keep a connection", async || kept().await == 0).await;
}
