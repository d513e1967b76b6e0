//! Owner of a shard, and migration of shards to another node.

use std::time::Duration;

use redis::Value;

use super::{RedisCluster, query_cluster_nodes, send_cluster_command};
use crate::redis_server::RedisServer;

impl RedisCluster {
    /// Returns the nodes.
    #[must_use]
    pub fn nodes(&self) -> &[RedisServer] {
        &self.nodes
    }

    /// Returns the index of the node that reports to own a shard.
    ///
    /// # Panics
    ///
    /// If no node owns it.
    pub async fn shard_owner(&self, shard: u16) -> usize {
        let slot = shard_slot(&self.nodes[0], shard).await;
        for (at, node) in self.nodes.iter().enumerate() {
            if owns_slot(node, slot).await {
                return at;
            }
        }
        panic!("no cluster node owns shard {shard}")
    }

    /// Moves a shard with its keys to the next node while it is used. The migration takes at least
    /// `pause`.
    pub async fn migrate_shard(&self, shard: u16, pause: Duration) {
        let source_index = self.shard_owner(shard).await;
        let target_index = (source_index + 1) % self.nodes.len();
        let slot = shard_slot(&self.nodes[0], shard).await.to_string();
        let [source, target] = [&self.nodes[source_index], &self.nodes[target_index]];
        let [source_id, target_id] = [node_id(source).await, node_id(target).await];
        let mut source_connection = source.connection().await;
        let mut target_connection = target.connection().await;
        send_cluster_command(&mut target_connection, &["SETSLOT", &slot, "IMPORTING", &source_id])
            .await;
        send_cluster_command(&mut source_connection, &["SETSLOT", &slot, "MIGRATING", &target_id])
            .await;
        tokio::time::sleep(pause).await;
        loop {
            let mut key_query = redis::cmd("CLUSTER");
            key_query.arg("GETKEYSINSLOT").arg(&slot).arg(20);
            let keys: Vec<String> =
                key_query.query_async(&mut source_connection).await.expect("an answer");
            if keys.is_empty() {
                break;
            }
            let mut migrate = redis::cmd("MIGRATE");
            migrate
                .arg("127.0.0.1")
                .arg(target.port())
                .arg("")
                .arg(0)
                .arg(5000)
                .arg("KEYS")
                .arg(keys);
            let _: Value = migrate.query_async(&mut source_connection).await.expect("they go");
        }
        send_cluster_command(&mut target_connection, &["SETSLOT", &slot, "NODE", &target_id]).await;
        send_cluster_command(&mut source_connection, &["SETSLOT", &slot, "NODE", &target_id]).await;
        let others =
            (0..self.nodes.len()).filter(|index| *index != source_index && *index != target_index);
        for other in others.map(|index| &self.nodes[index]) {
            send_cluster_command(
                &mut other.connection().await,
                &["SETSLOT", &slot, "NODE", &target_id],
            )
            .await;
        }
    }
}

/// Returns the slot of a shard.
pub(super) async fn shard_slot(node: &RedisServer, shard: u16) -> u16 {
    let mut command = redis::cmd("CLUSTER");
    let slot = command.arg("KEYSLOT").arg(format!("{{{shard}}}"));
    slot.query_async(&mut node.connection().await).await.expect("an answer")
}

/// Returns true if the node reports that it owns a slot.
pub(super) async fn owns_slot(node: &RedisServer, slot: u16) -> bool {
    let nodes = query_cluster_nodes(node).await;
    let own_line = nodes
        .lines()
        .find(|line| line.contains("myself"))
        .expect("the list includes the queried node");
    let covers = |range: &str| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let [first, last] = [first, last].map(|n| n.parse().unwrap_or(u16::MAX));
        (first..=last).contains(&slot)
    };
    own_line.contains("master") && own_line.split(' ').skip(8).any(covers)
}

pub(super) async fn node_id(node: &RedisServer) -> String {
    let mut command = redis::cmd("CLUSTER");
    command.arg("MYID").query_async(&mut node.connection().await).await.expect("an answer")
}
