//! `RedisCluster`: three masters, shared by the tests of a process.

mod replicated_cluster;
mod slot_migration;

use std::time::Duration;

pub use self::replicated_cluster::ReplicatedCluster;
use redis::{Value, aio::MultiplexedConnection};
use tokio::sync::OnceCell;

use crate::{redis_server::RedisServer, wait::eventually};

const SLOT_COUNT: usize = 16_384;

/// Arguments of each node: it serves its slots even if other slots are unavailable.
const PARTIAL_COVERAGE_ARGS: [&str; 2] = ["--cluster-require-full-coverage", "no"];

/// Cluster of three masters.
#[derive(Debug)]
pub struct RedisCluster {
    nodes: Vec<RedisServer>,
}

/// Returns the cluster that the tests of this process share, each in its own namespace: that of
/// `cargo xtask test`, or one that this process starts.
pub async fn shared_cluster() -> &'static RedisCluster {
    static CLUSTER: OnceCell<RedisCluster> = OnceCell::const_new();
    CLUSTER
        .get_or_init(async || {
            let Ok(ports) = std::env::var("LOCKGATE_TESTS_CLUSTER") else {
                return RedisCluster::start().await;
            };
            let mut nodes = Vec::new();
            for port in ports.split(',') {
                nodes.push(RedisServer::attach(port.parse().expect("a port")).await);
            }
            RedisCluster { nodes }
        })
        .await
}

impl RedisCluster {
    /// Starts a cluster and waits until it is usable, which takes some seconds.
    pub async fn start() -> Self {
        Self::start_with_args(&[]).await
    }

    /// Starts a cluster whose nodes keep serving while another one is unavailable.
    pub async fn start_with_partial_coverage() -> Self {
        Self::start_with_args(&PARTIAL_COVERAGE_ARGS).await
    }

    /// Starts a cluster with further arguments of each node.
    async fn start_with_args(arguments: &[&str]) -> Self {
        let mut nodes = Vec::new();
        for _ in 0..3 {
            nodes.push(RedisServer::start_cluster_node(arguments).await);
        }
        let first = nodes[0].port().to_string();
        for (index, node) in nodes.iter().enumerate() {
            let [from, to] = [index, index + 1].map(|n| n * SLOT_COUNT / nodes.len());
            // Slot by slot, since servers before 7.0 do not support ranges.
            let slots: Vec<_> = (from..to).map(|slot| slot.to_string()).collect();
            let mut arguments = vec!["ADDSLOTS"];
            arguments.extend(slots.iter().map(String::as_str));
            let epoch = (index + 1).to_string();
            let mut connection = node.connection().await;
            send_cluster_command(&mut connection, &arguments).await;
            send_cluster_command(&mut connection, &["SET-CONFIG-EPOCH", &epoch]).await;
            if index > 0 {
                send_cluster_command(&mut connection, &["MEET", "127.0.0.1", &first]).await;
            }
        }
        for node in &nodes {
            let connection = node.connection().await;
            eventually("the nodes to know each other", async || {
                let info: String = redis::cmd("CLUSTER")
                    .arg("INFO")
                    .query_async(&mut connection.clone())
                    .await
                    .unwrap_or_default();
                info.contains("cluster_state:ok") && info.contains("cluster_known_nodes:3")
            })
            .await;
        }
        Self { nodes }
    }

    /// Returns the URL with a namespace; it names one node.
    #[must_use]
    pub fn url(&self, namespace: &str) -> String {
        self.nodes[0].url(namespace).replacen("redis://", "redis+cluster://", 1)
    }
}

async fn query_cluster_nodes(node: &RedisServer) -> String {
    let mut command = redis::cmd("CLUSTER");
    let mut connection = node.connection().await;
    command.arg("NODES").query_async(&mut connection).await.unwrap_or_default()
}

async fn send_cluster_command(connection: &mut MultiplexedConnection, arguments: &[&str]) {
    let mut command = redis::cmd("CLUSTER");
    let reply = command.arg(arguments).query_async::<Value>(connection);
    let reply = tokio::time::timeout(Duration::from_secs(20), reply).await.expect("it answers");
    reply.expect("the command is right");
}
