//! `RedisTopology`: the deployment with the store of a fleet.

use crate::{
    redis_cluster::{RedisCluster, ReplicatedCluster},
    redis_server::RedisServer,
};

/// One server, or the nodes of a cluster.
pub trait RedisTopology {
    /// Returns the URL for a direct connection.
    fn url(&self, namespace: &str) -> String;

    /// Returns the server if there is only one; each process then has its own proxy.
    fn single_server(&self) -> Option<&RedisServer> {
        None
    }

    /// Returns the servers that own keys now.
    fn masters(&self) -> Vec<&RedisServer>;

    /// Returns all servers, running or not.
    fn servers(&self) -> Vec<&RedisServer> {
        self.masters()
    }
}

impl RedisTopology for RedisServer {
    fn url(&self, namespace: &str) -> String {
        Self::url(self, namespace)
    }

    fn single_server(&self) -> Option<&RedisServer> {
        Some(self)
    }

    fn masters(&self) -> Vec<&RedisServer> {
        vec![self]
    }
}

impl RedisTopology for RedisCluster {
    fn url(&self, namespace: &str) -> String {
        Self::url(self, namespace)
    }

    fn masters(&self) -> Vec<&RedisServer> {
        self.nodes().iter().collect()
    }
}

impl RedisTopology for ReplicatedCluster {
    fn url(&self, namespace: &str) -> String {
        Self::url(self, namespace)
    }

    fn masters(&self) -> Vec<&RedisServer> {
        let current_master = if self.has_failed_over() { &self.replica } else { &self.master };
        self.other_masters().iter().chain([current_master]).collect()
    }

    fn servers(&self) -> Vec<&RedisServer> {
        self.other_masters().iter().chain([&self.master, &self.replica]).collect()
    }
}
