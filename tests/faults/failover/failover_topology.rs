//! Deployments with a failover: a master behind sentinels, or a node of a cluster.

use lockgate_tests::{
    RedisServer, ReplicatedCluster, SentinelDeployment, connect_with_long_timeout,
};

use super::LOCK_COUNT;

pub(super) const NAMESPACE: &str = "x";

/// A master, its replica, and the sentinels or cluster nodes that promote it.
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
            Self::SentinelDeployment(deployment) => deployment.url(NAMESPACE),
            Self::Cluster(deployment) => deployment.url(NAMESPACE),
        }
    }

    pub(super) fn master(&mut self) -> &mut RedisServer {
        match self {
            Self::SentinelDeployment(deployment) => &mut deployment.master,
            Self::Cluster(deployment) => &mut deployment.master,
        }
    }

    pub(super) fn successor(&self) -> &RedisServer {
        match self {
            Self::SentinelDeployment(deployment) => &deployment.replica,
            Self::Cluster(deployment) => &deployment.replica,
        }
    }

    /// Returns true if all sentinels or cluster nodes report the successor as master.
    pub(super) async fn have_switched_to_successor(&self) -> bool {
        match self {
            Self::SentinelDeployment(deployment) => deployment.have_switched_to_replica().await,
            Self::Cluster(deployment) => deployment.all_nodes_see_promotion().await,
        }
    }

    /// Restarts the killed master, empty, as a replica.
    pub(super) async fn restart_old_master(&mut self) {
        match self {
            Self::SentinelDeployment(deployment) => deployment.restart_old_master().await,
            Self::Cluster(deployment) => deployment.restart_as_replica().await,
        }
    }

    /// Returns names of locks whose shards the master owns.
    pub(super) async fn locks_of_master(&self) -> [String; LOCK_COUNT] {
        let master = match self {
            Self::SentinelDeployment(_) => return ["a", "b", "c", "d"].map(str::to_owned),
            Self::Cluster(names) => &names.master,
        };
        let store = connect_with_long_timeout(&self.url()).await;
        let mut connection = master.connection().await;
        let mut names_found = Vec::new();
        for name in (0..64).map(|n| format!("lock-{n}")) {
            let guard = store.lock(&*name).acquire().await.expect("it is free");
            let mut keys = redis::cmd("KEYS");
            let keys = keys.arg(format!("lg:1:{NAMESPACE}:*}}:h:*"));
            let keys_on_master: Vec<String> =
                keys.query_async(&mut connection).await.expect("an answer");
            guard.release().await;
            if !keys_on_master.is_empty() {
                names_found.push(name);
            }
            if let Ok(names) = names_found.clone().try_into() {
                return names;
            }
        }
        panic!("the master has {} locks of 64", names_found.len())
    }
}
