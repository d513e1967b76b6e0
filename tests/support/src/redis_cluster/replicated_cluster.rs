//! `ReplicatedCluster`: a cluster in which one master has a replica and may be killed.

use super::{
    PARTIAL_COVERAGE_ARGS, RedisCluster, query_cluster_nodes, send_cluster_command,
    slot_migration::{node_id, owns_slot, shard_slot},
};
use crate::{redis_server::RedisServer, wait::eventually};

/// Cluster of three masters, one with a replica. The node timeout is four seconds.
#[derive(Debug)]
pub struct ReplicatedCluster {
    /// Master with the replica.
    pub master: RedisServer,
    /// Replica that is promoted when the master fails.
    pub replica: RedisServer,
    other_masters: Vec<RedisServer>,
    failed_over: bool,
}

impl ReplicatedCluster {
    /// Starts the cluster and waits until it is usable and the replica has synchronized, which
    /// takes some seconds.
    pub async fn start() -> Self {
        Self::start_with_args(&[]).await
    }

    /// Starts a cluster whose other nodes keep serving while the master is unavailable.
    pub async fn start_with_partial_coverage() -> Self {
        Self::start_with_args(&PARTIAL_COVERAGE_ARGS).await
    }

    async fn start_with_args(arguments: &[&str]) -> Self {
        let arguments = [&["--cluster-node-timeout", "4000"][..], arguments].concat();
        let mut other_masters = RedisCluster::start_with_args(&arguments).await.nodes;
        let master = other_masters.remove(1);
        let replica = RedisServer::start_cluster_node(&arguments).await;
        let cluster = Self { master, replica, other_masters, failed_over: false };
        attach_replica(&cluster.replica, &cluster.master, &cluster.other_masters).await;
        cluster
    }

    /// Returns the URL with a namespace; it names one of the other masters.
    #[must_use]
    pub fn url(&self, namespace: &str) -> String {
        self.other_masters[0].url(namespace).replacen("redis://", "redis+cluster://", 1)
    }

    /// Returns true if all remaining nodes report the replica as master of its slots.
    pub async fn all_nodes_see_promotion(&self) -> bool {
        for node in self.other_masters.iter().chain([&self.replica]) {
            let nodes = query_cluster_nodes(node).await;
            let line = nodes.lines().find(|line| is_line_of_port(line, self.replica.port()));
            // The slots are at the end of the line.
            let owns = |line: &str| line.contains("master") && line.split(' ').nth(8).is_some();
            if !line.is_some_and(owns) {
                return false;
            }
        }
        true
    }

    /// Restarts the old master as a replica of its successor.
    pub async fn restart_as_replica(&mut self) {
        self.master.restart().await;
        attach_replica(&self.master, &self.replica, &self.other_masters).await;
        self.failed_over = true;
    }

    /// Returns true if [`restart_as_replica`](Self::restart_as_replica) has swapped the roles.
    #[must_use]
    pub fn has_failed_over(&self) -> bool {
        self.failed_over
    }

    /// Returns the masters without a replica.
    #[must_use]
    pub fn other_masters(&self) -> &[RedisServer] {
        &self.other_masters
    }

    /// Returns true if the master reports that it owns this shard.
    pub async fn master_owns_shard(&self, shard: u16) -> bool {
        owns_slot(&self.master, shard_slot(&self.master, shard).await).await
    }

    /// Waits until the replica has all earlier writes of the master, which must own this shard.
    pub async fn wait_for_replication(&self, shard: u16) {
        self.master.wait_for_replica(&format!("mark:{{{shard}}}")).await;
    }

    /// Disconnects the replica; the master writes without it until it resumes.
    pub async fn isolate_replica(&self) {
        self.master.disconnect_replica(&self.replica).await;
    }
}

fn is_line_of_port(line: &str, port: u16) -> bool {
    line.split(' ').nth(1).is_some_and(|address| address.contains(&format!(":{port}@")))
}

/// Attaches a new node as a replica, and waits until it has synchronized and all nodes know it.
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
        wait.arg(1).arg(100).query_async::<i64>(&mut connection).await.is_ok_and(|count| count == 1)
    })
    .await;
    for node in others {
        eventually("all to know the replica", async || {
            let nodes = query_cluster_nodes(node).await;
            nodes
                .lines()
                .any(|line| is_line_of_port(line, replica.port()) && line.contains("slave"))
        })
        .await;
    }
}
