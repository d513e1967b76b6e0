//! A Redis Cluster of the tests' own: three masters, which the tests of a process share.

use std::time::Duration;

use redis::{Value, aio::MultiplexedConnection};
use tokio::sync::OnceCell;

use crate::{redis::Server, wait::eventually};

const SLOTS: usize = 16_384;

/// Three masters.
#[derive(Debug)]
pub struct Cluster {
    nodes: Vec<Server>,
}

/// The cluster that the tests of this process share, each in a namespace of its own.
pub async fn shared_cluster() -> &'static Cluster {
    static CLUSTER: OnceCell<Cluster> = OnceCell::const_new();
    CLUSTER.get_or_init(Cluster::start).await
}

impl Cluster {
    /// Starts one, and returns when it can be used, which takes some seconds.
    pub async fn start() -> Self {
        Self::start_with(&[]).await
    }

    /// With further words on the command line of each node.
    async fn start_with(words: &[&str]) -> Self {
        let mut nodes = Vec::new();
        for _ in 0..3 {
            nodes.push(Server::of_a_cluster(words).await);
        }
        let first = nodes[0].port().to_string();
        for (at, node) in nodes.iter().enumerate() {
            let [from, to] = [at, at + 1].map(|n| n * SLOTS / nodes.len());
            // Each by its number: servers before 7.0 know no ranges.
            let slots: Vec<_> = (from..to).map(|slot| slot.to_string()).collect();
            let mut words = vec!["ADDSLOTS"];
            words.extend(slots.iter().map(String::as_str));
            let epoch = (at + 1).to_string();
            let mut connection = node.connection().await;
            tell(&mut connection, &words).await;
            tell(&mut connection, &["SET-CONFIG-EPOCH", &epoch]).await;
            if at > 0 {
                tell(&mut connection, &["MEET", "127.0.0.1", &first]).await;
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

/// A cluster of three masters, one of which has a replica, that takes a node for gone after two seconds.
#[derive(Debug)]
pub struct Replicated {
    /// Who has the replica.
    pub master: Server,
    /// Who is promoted when that has gone.
    pub replica: Server,
    others: Vec<Server>,
}

impl Replicated {
    /// Starts it, and returns when it can be used and the replica is one, which takes some seconds.
    pub async fn start() -> Self {
        let words = ["--cluster-node-timeout", "2000"];
        let mut others = Cluster::start_with(&words).await.nodes;
        let master = others.remove(1);
        let replica = Server::of_a_cluster(&words).await;
        let all = Self { master, replica, others };
        follow(&all.replica, &all.master, &all.others).await;
        all
    }

    /// Its URL, with a namespace: one of the nodes that stay.
    #[must_use]
    pub fn url(&self, namespace: &str) -> String {
        self.others[0].url(namespace).replacen("redis://", "redis+cluster://", 1)
    }

    /// Whether all nodes that stay take the replica for the master of its slots.
    pub async fn all_left_the_old_one(&self) -> bool {
        for node in self.others.iter().chain([&self.replica]) {
            let nodes = nodes(node).await;
            let line = nodes.lines().find(|line| is_about(line, self.replica.port()));
            // Its slots stand at the end.
            let owns = |line: &str| line.contains("master") && line.split(' ').nth(8).is_some();
            if !line.is_some_and(owns) {
                return false;
            }
        }
        true
    }

    /// The old master is started anew, and is a replica of its successor.
    pub async fn comes_back(&mut self) {
        self.master.restart().await;
        follow(&self.master, &self.replica, &self.others).await;
    }
}

async fn nodes(node: &Server) -> String {
    let mut words = redis::cmd("CLUSTER");
    let mut connection = node.connection().await;
    words.arg("NODES").query_async(&mut connection).await.unwrap_or_default()
}

fn is_about(line: &str, port: u16) -> bool {
    line.split(' ').nth(1).is_some_and(|address| address.contains(&format!(":{port}@")))
}

/// Makes a node that knows nobody a replica, and returns when it has what the master has, and all know of it.
async fn follow(replica: &Server, master: &Server, others: &[Server]) {
    let known = nodes(master).await;
    let id =
        known.lines().find(|line| line.contains("myself")).and_then(|line| line.split(' ').next());
    let id = id.expect("it knows itself").to_owned();
    let port = master.port().to_string();
    tell(&mut replica.connection().await, &["MEET", "127.0.0.1", &port]).await;
    eventually("it to know its master", async || {
        nodes(replica)
            .await
            .lines()
            .any(|line| line.starts_with(&id) && !line.contains("handshake"))
    })
    .await;
    tell(&mut replica.connection().await, &["REPLICATE", &id]).await;
    eventually("the replica to follow", async || {
        let mut wait = redis::cmd("WAIT");
        let mut connection = master.connection().await;
        wait.arg(1).arg(100).query_async::<i64>(&mut connection).await.is_ok_and(|many| many == 1)
    })
    .await;
    for node in others {
        eventually("all to know the replica", async || {
            let known = nodes(node).await;
            known.lines().any(|line| is_about(line, replica.port()) && line.contains("slave"))
        })
        .await;
    }
}

async fn tell(connection: &mut MultiplexedConnection, words: &[&str]) {
    let mut command = redis::cmd("CLUSTER");
    let told = command.arg(words).query_async::<Value>(connection);
    let told = tokio::time::timeout(Duration::from_secs(20), told).await.expect("it answers");
    told.expect("the command is right");
}
