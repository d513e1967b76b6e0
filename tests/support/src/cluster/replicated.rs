//! A cluster one of whose masters can go.

use super::{
    Cluster, GOES_ON, nodes,
    slots::{has, id, slot},
    tell,
};
use crate::{redis::Server, wait::eventually};

/// A cluster of three masters, one of which has a replica, that takes a node for gone after two seconds.
#[derive(Debug)]
pub struct Replicated {
    /// Who has the replica.
    pub master: Server,
    /// Who is promoted when that has gone.
    pub replica: Server,
    others: Vec<Server>,
    failed_over: bool,
}

impl Replicated {
    /// Starts it, and returns when it can be used and the replica is one, which takes some seconds.
    pub async fn start() -> Self {
        Self::start_with(&[]).await
    }

    /// One whose other nodes go on while the master is away.
    pub async fn that_goes_on() -> Self {
        Self::start_with(&GOES_ON).await
    }

    async fn start_with(words: &[&str]) -> Self {
        let words = [&["--cluster-node-timeout", "4000"][..], words].concat();
        let mut others = Cluster::start_with(&words).await.nodes;
        let master = others.remove(1);
        let replica = Server::of_a_cluster(&words).await;
        let all = Self { master, replica, others, failed_over: false };
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
        self.failed_over = true;
    }

    /// Whether the replica is the master now, as far as it was done here.
    #[must_use]
    pub fn has_failed_over(&self) -> bool {
        self.failed_over
    }

    /// The masters that have no replica.
    #[must_use]
    pub fn others(&self) -> &[Server] {
        &self.others
    }

    /// Whether the master has this shard, by its own word.
    pub async fn is_of_the_master(&self, shard: u16) -> bool {
        has(&self.master, slot(&self.master, shard).await).await
    }

    /// Until the replica has all that the master, who has this shard, has written until now.
    pub async fn replica_has_it_all(&self, shard: u16) {
        self.master.replica_has_it_all(&format!("mark:{{{shard}}}")).await;
    }

    /// From now on the master writes for itself alone, until the replica goes on.
    pub async fn cut_off_the_replica(&self) {
        self.master.cut_off(&self.replica).await;
    }
}

fn is_about(line: &str, port: u16) -> bool {
    line.split(' ').nth(1).is_some_and(|address| address.contains(&format!(":{port}@")))
}

/// Makes a node that knows nobody a replica, and returns when it has what the master has, and all know of it.
async fn follow(replica: &Server, master: &Server, others: &[Server]) {
    let id = id(master).await;
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
