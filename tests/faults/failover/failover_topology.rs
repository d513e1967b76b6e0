//! Deployments with a failover: a master behind sentinels, or a node of a cluster.

use lockgate_tests::{
    RedisServer, ReplicatedCluster, SentinelDeployment, connect_with_long_timeout,
};

use super::LOCK_COUNT;

pub(super) const NAMESPACE: &str = "x";

/// A master, the replica that takes its place, and those who see to that.
pub(super) enum FailoverTopology {
    SentinelDeployment(SentinelDeployment),
    Cluster(ReplicatedCluster),
}

impl FailoverTopology {
    pub(super) async fn start_sentinels() -> Self {
        Self::SentinelDeployment(SentinelDeployment::start().await)
    }

    pub(super) async fn start_cluster() -> Self {
        Self::Cluster(ReplicatedCluster::start().await)
    }

    pub(super) fn url(&self) -> String {
        match self {
            Self::SentinelDeployment(all) => all.url(NAMESPACE),
            Self::Cluster(all) => all.url(NAMESPACE),
        }
    }

    pub(super) fn master(&mut self) -> &mut RedisServer {
        match self {
            Self::SentinelDeployment(all) => &mut all.master,
            Self::Cluster(all) => &mut all.master,
        }
    }

    pub(super) fn successor(&self) -> &RedisServer {
        match self {
            Self::SentinelDeployment(all) => &all.replica,
            Self::Cluster(all) => &all.replica,
        }
    }

    /// Whether all that say who is the master say that it is the successor.
    pub(super) async fn have_switched_to_successor(&self) -> bool {
        match self {
            Self::SentinelDeployment(all) => all.have_switched_to_replica().await,
            Self::Cluster(all) => all.all_nodes_see_promotion().await,
        }
    }

    /// The old master, which was killed, is started again, empty: it is to be a replica.
    pub(super) async fn restart_old_master(&mut self) {
        match self {
            Self::SentinelDeployment(all) => all.restart_old_master().await,
            Self::Cluster(all) => all.restart_as_replica().await,
        }
    }

    /// Names of locks that the master has.
    pub(super) async fn locks_of_master(&self) -> [String; LOCK_COUNT] {
        let master = match self {
            Self::SentinelDeployment(_) => return ["a", "b", "c", "d"].map(str::to_owned),
            Self::Cluster(all) => &all.master,
        };
        let store = connect_with_long_timeout(&self.url()).await;
        let mut connection = master.connection().await;
        let mut found = Vec::new();
        for name in (0..64).map(|n| format!("lock-{n}")) {
            let guard = store.lock(&*name).acquire().await.expect("it is free");
            let mut keys = redis::cmd("KEYS");
            let keys = keys.arg(format!("lg:1:{NAMESPACE}:*}}:h:*"));
            let here: Vec<String> = keys.query_async(&mut connection).await.expect("an answer");
            guard.release().await;
            if !here.is_empty() {
                found.push(name);
            }
            if let Ok(all) = found.clone().try_into() {
                return all;
            }
        }
        panic!("the master has {} locks of 64", found.len())
    }
}
