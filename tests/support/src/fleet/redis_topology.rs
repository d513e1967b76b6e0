//! `RedisTopology`: the deployment with the store of a fleet.

use crate::{
    redis_cluster::{RedisCluster, ReplicatedCluster},
    redis_server::RedisServer,
};

/// One server, or the nodes of a cluster.
pub trait RedisTopology {
    /// For whoever goes there by himself.
    fn url(&self, namespace: &str) -> String;

    /// The one server, if that is all: then each process has a proxy of its own.
    fn single_server(&self) -> Option<&RedisServer> {
        None
    }

    /// Those that have the keys now.
    fn masters(&self) -> Vec<&RedisServer>;

    /// All, whether they are there or not.
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
        let own = if self.has_failed_over() { &self.replica } else { &self.master };
        self.other_masters().iter().chain([own]).collect()
    }

    fn servers(&self) -> Vec<&RedisServer> {
        self.other_masters().iter().chain([&self.master, &self.replica]).collect()
    }
}
