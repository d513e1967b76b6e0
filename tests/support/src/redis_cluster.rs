//! `RedisCluster`: three masters, shared by the tests of a process.

mod replicated_cluster;
mod slot_migration;

use std::time::Duration;

pub use self::replicated_cluster::ReplicatedCluster;
use redis::{Value, aio::MultiplexedConnection};
use tokio::sync::OnceCell;

use crate::{redis_server::RedisServer, wait::eventually};

const SLOT_COUNT: usize = 16_384;

/// On each node's command line: what it has does not hang on what others have.
const PARTIAL_COVERAGE_ARGS: [&str; 2] = ["--cluster-require-full-coverage", "no"];

/// Three masters.
#[derive(Debug)]
pub struct RedisCluster {
    nodes: Vec<RedisServer>,
}

/// The cluster that the tests of this process share, each in a namespace of its own: that of the run
/// (`cargo xtask test`), or one that this process starts.
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
    /// Starts one, and returns when it can be used, which takes some seconds.
    pub async fn start() -> Self {
        Self::start_with_args(&[]).await
    }

    /// One whose nodes go on while another one is away.
    pub async fn start_with_partial_coverage() -> Self {
        Self::start_with_args(&PARTIAL_COVERAGE_ARGS).await
    }

    /// With further words on the command line of each node.
    async fn start_with_args(words: &[&str]) -> Self {
        let mut nodes = Vec::new();
        for _ in 0..3 {
            nodes.push(RedisServer::start_cluster_node(words).await);
        }
        let first = nodes[0].port().to_string();
        for (at, node) in nodes.iter().enumerate() {
            let [from, to] = [at, at + 1].map(|n| n * SLOT_COUNT / nodes.len());
            // Each by its number: servers before 7.0 know no ranges.
            let slots: Vec<_> = (from..to).map(|slot| slot.to_string()).collect();
            let mut words = vec!["ADDSLOTS"];
            words.extend(slots.iter().map(String::as_str));
            let epoch = (at + 1).to_string();
            let mut connection = node.connection().await;
            send_cluster_command(&mut connection, &words).await;
            send_cluster_command(&mut connection, &["SET-CONFIG-EPOCH", &epoch]).await;
            if at > 0 {
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

    /// Its URL, with a namespace: one node, which knows of the others.
    #[must_use]
    pub fn url(&self, namespace: &str) -> String {
        self.nodes[0].url(namespace).replacen("redis://", "redis+cluster://", 1)
    }
}

async fn query_cluster_nodes(node: &RedisServer) -> String {
    let mut words = redis::cmd("CLUSTER");
    let mut connection = node.connection().await;
    words.arg("NODES").query_async(&mut connection).await.unwrap_or_default()
}

async fn send_cluster_command(connection: &mut MultiplexedConnection, words: &[&str]) {
    let mut command = redis::cmd("CLUSTER");
    let told = command.arg(words).query_async::<Value>(connection);
    let told = tokio::time::timeout(Duration::from_secs(20), told).await.expect("it answers");
    told.expect("the command is right");
}
