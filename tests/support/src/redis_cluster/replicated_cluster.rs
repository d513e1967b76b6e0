//! `ReplicatedCluster`: a cluster in which one master has a replica and may be killed.

use super::{
    PARTIAL_COVERAGE_ARGS, RedisCluster, query_cluster_nodes, send_cluster_command,
    slot_migration::{node_id, owns_slot, shard_slot},
};
use crate::{redis_server::RedisServer, wait::eventually};

/// A cluster of three masters, one of which has a replica, that takes a node for gone after two seconds.
#[derive(Debug)]
pub struct ReplicatedCluster {
    /// Who has the replica.
    pub master: RedisServer,
    /// Who is promoted when that has gone.
    pub replica: RedisServer,
    other_masters: Vec<RedisServer>,
    failed_over: bool,
}

impl ReplicatedCluster {
    /// Starts it, and returns when it can be used and the replica is one, which takes some seconds.
    pub async fn start() -> Self {
        Self::start_with_args(&[]).await
    }

    /// One whose other nodes go on while the master is away.
    pub async fn start_with_partial_coverage() -> Self {
        Self::start_with_args(&PARTIAL_COVERAGE_ARGS).await
    }

    async fn start_with_args(words: &[&str]) -> Self {
        let words = [&["--cluster-node-timeout", "4000"][..], words].concat();
        let mut others = RedisCluster::start_with_args(&words).await.nodes;
        let master = others.remove(1);
        let replica = RedisServer::start_cluster_node(&words).await;
        let all = Self { master, replica, other_masters: others, failed_over: false };
        attach_replica(&all.replica, &all.master, &all.other_masters).await;
        all
    }

    /// Its URL, with a namespace: one of the nodes that stay.
    #[must_use]
    pub fn url(&self, namespace: &str) -> String {
        self.other_masters[0].url(namespace).replacen("redis://", "redis+cluster://", 1)
    }

    /// Whether all nodes that stay take the replica for the master of its slots.
    pub async fn all_nodes_see_promotion(&self) -> bool {
        for node in self.other_masters.iter().chain([&self.replica]) {
            let nodes = query_cluster_nodes(node).await;
            let line = nodes.lines().find(|line| is_line_of_port(line, self.replica.port()));
            // Its slots stand at the end.
            let owns = |line: &str| line.contains("master") && line.split(' ').nth(8).is_some();
            if !line.is_some_and(owns) {
                return false;
            }
        }
        true
    }

    /// The old master is started anew, and is a replica of its successor.
    pub async fn restart_as_replica(&mut self) {
        self.master.restart().await;
        attach_replica(&self.master, &self.replica, &self.other_masters).await;
        self.failed_over = true;
    }

    /// Whether the replica is the master now, as far as it was done here.
    #[must_use]
    pub fn has_failed_over(&self) -> bool {
        self.failed_over
    }

    /// The masters that have no replica.
    #[must_use]
    pub fn other_masters(&self) -> &[RedisServer] {
        &self.other_masters
    }

    /// Whether the master has this shard, by its own word.
    pub async fn master_owns_shard(&self, shard: u16) -> bool {
        owns_slot(&self.master, shard_slot(&self.master, shard).await).await
    }

    /// Until the replica has all that the master, who has this shard, has written until now.
    pub async fn wait_for_replication(&self, shard: u16) {
        self.master.wait_for_replica(&format!("mark:{{{shard}}}")).await;
    }

    /// From now on the master writes for itself alone, until the replica goes on.
    pub async fn isolate_replica(&self) {
        self.master.disconnect_replica(&self.replica).await;
    }
}

fn is_line_of_port(line: &str, port: u16) -> bool {
    line.split(' ').nth(1).is_some_and(|address| address.contains(&format!(":{port}@")))
}

/// Makes a node that knows nobody a replica, and returns when it has what the master has, and all know of it.
async fn attach_replica(replica: &RedisServer, master: &RedisServer, others: &[RedisServer]) {
    let id = node_id(master).await;
    let port = master.port().to_string();
    send_cluster_command(&mut replica.connection().await, &["MEET", "127.0.0.1", &port]).await;
    eventually("it to know its master", async || {
        query_cluster_nodes(replica)
            .await
            .lines()
            .any(|line| line.starts_with(&id) && !line.contains("handshake"))
    })
    .await;
    send_cluster_command(&mut replica.connection().await, &["REPLICATE", &id]).await;
    eventually("the replica to follow", async || {
        let mut wait = redis::cmd("WAIT");
        let mut connection = master.connection().await;
        wait.arg(1).arg(100).query_async::<i64>(&mut connection).await.is_ok_and(|many| many == 1)
    })
    .await;
    for node in others {
        eventually("all to know the replica", async || {
            let known = query_cluster_nodes(node).await;
            known
                .lines()
                .any(|line| is_line_of_port(line, replica.port()) && line.contains("slave"))
        })
        .await;
    }
}
