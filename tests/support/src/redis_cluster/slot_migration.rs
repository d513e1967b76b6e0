//! Owner of a shard, and migration of shards to another node.

use std::time::Duration;

use redis::Value;

use super::{RedisCluster, query_cluster_nodes, send_cluster_command};
use crate::redis_server::RedisServer;

impl RedisCluster {
    /// Its nodes.
    #[must_use]
    pub fn nodes(&self) -> &[RedisServer] {
        &self.nodes
    }

    /// Which of them has a shard, by its own word.
    ///
    /// # Panics
    ///
    /// If none has it.
    pub async fn shard_owner(&self, shard: u16) -> usize {
        let slot = shard_slot(&self.nodes[0], shard).await;
        for (at, node) in self.nodes.iter().enumerate() {
            if owns_slot(node, slot).await {
                return at;
            }
        }
        panic!("nobody has shard {shard}")
    }

    /// Moves a shard with all that is in it to the next node, while it is used; for so long, at least, it is on its way.
    pub async fn migrate_shard(&self, shard: u16, pause: Duration) {
        let from = self.shard_owner(shard).await;
        let to = (from + 1) % self.nodes.len();
        let slot = shard_slot(&self.nodes[0], shard).await.to_string();
        let [giver, taker] = [&self.nodes[from], &self.nodes[to]];
        let [gives, takes] = [node_id(giver).await, node_id(taker).await];
        let mut at_giver = giver.connection().await;
        let mut at_taker = taker.connection().await;
        send_cluster_command(&mut at_taker, &["SETSLOT", &slot, "IMPORTING", &gives]).await;
        send_cluster_command(&mut at_giver, &["SETSLOT", &slot, "MIGRATING", &takes]).await;
        tokio::time::sleep(pause).await;
        loop {
            let mut some = redis::cmd("CLUSTER");
            some.arg("GETKEYSINSLOT").arg(&slot).arg(20);
            let keys: Vec<String> = some.query_async(&mut at_giver).await.expect("an answer");
            if keys.is_empty() {
                break;
            }
            let mut go = redis::cmd("MIGRATE");
            go.arg("127.0.0.1").arg(taker.port()).arg("").arg(0).arg(5000).arg("KEYS").arg(keys);
            let _: Value = go.query_async(&mut at_giver).await.expect("they go");
        }
        send_cluster_command(&mut at_taker, &["SETSLOT", &slot, "NODE", &takes]).await;
        send_cluster_command(&mut at_giver, &["SETSLOT", &slot, "NODE", &takes]).await;
        let others = (0..self.nodes.len()).filter(|at| *at != from && *at != to);
        for other in others.map(|at| &self.nodes[at]) {
            send_cluster_command(
                &mut other.connection().await,
                &["SETSLOT", &slot, "NODE", &takes],
            )
            .await;
        }
    }
}

/// The slot of a shard.
pub(super) async fn shard_slot(node: &RedisServer, shard: u16) -> u16 {
    let mut words = redis::cmd("CLUSTER");
    let slot = words.arg("KEYSLOT").arg(format!("{{{shard}}}"));
    slot.query_async(&mut node.connection().await).await.expect("an answer")
}

/// Whether a node has a slot, by its own word.
pub(super) async fn owns_slot(node: &RedisServer, slot: u16) -> bool {
    let known = query_cluster_nodes(node).await;
    let own = known.lines().find(|line| line.contains("myself")).expect("it knows itself");
    let covers = |range: &str| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let [first, last] = [first, last].map(|n| n.parse().unwrap_or(u16::MAX));
        (first..=last).contains(&slot)
    };
    own.contains("master") && own.split(' ').skip(8).any(covers)
}

pub(super) async fn node_id(node: &RedisServer) -> String {
    let mut words = redis::cmd("CLUSTER");
    words.arg("MYID").query_async(&mut node.connection().await).await.expect("an answer")
}
