//! Where the store of a fleet is.

use super::Fleet;
use crate::{
    cluster::{Cluster, Replicated},
    redis::Server,
};

/// One server, or the nodes of a cluster.
pub trait Ground {
    /// For whoever goes there by himself.
    fn url(&self, namespace: &str) -> String;

    /// The one server, if that is all: then each process has a proxy of its own.
    fn alone(&self) -> Option<&Server> {
        None
    }

    /// Those that have the keys now.
    fn masters(&self) -> Vec<&Server>;

    /// All, whether they are there or not.
    fn servers(&self) -> Vec<&Server> {
        self.masters()
    }
}

impl Ground for Server {
    fn url(&self, namespace: &str) -> String {
        Self::url(self, namespace)
    }

    fn alone(&self) -> Option<&Server> {
        Some(self)
    }

    fn masters(&self) -> Vec<&Server> {
        vec![self]
    }
}

impl Ground for Cluster {
    fn url(&self, namespace: &str) -> String {
        Self::url(self, namespace)
    }

    fn masters(&self) -> Vec<&Server> {
        self.nodes().iter().collect()
    }
}

impl Ground for Replicated {
    fn url(&self, namespace: &str) -> String {
        Self::url(self, namespace)
    }

    fn masters(&self) -> Vec<&Server> {
        let own = if self.has_failed_over() { &self.replica } else { &self.master };
        self.others().iter().chain([own]).collect()
    }

    fn servers(&self) -> Vec<&Server> {
        self.others().iter().chain([&self.master, &self.replica]).collect()
    }
}

impl<G: Ground> Fleet<G> {
    /// The shard of a resource, which says so where its lock is held: for the time before anything else is done.
    ///
    /// # Panics
    ///
    /// If it can't be had.
    pub async fn shard(&self, resource: &str) -> u16 {
        let guard = self.hold(resource).await;
        let pattern = format!("lg:1:{}:*}}:h:*", self.namespace);
        let mut held = Vec::new();
        for server in self.server.masters() {
            let mut keys = redis::cmd("KEYS");
            let keys = keys.arg(&pattern).query_async(&mut server.connection().await).await;
            held.extend::<Vec<String>>(keys.expect("an answer"));
        }
        guard.release().await;
        let [key] = &held[..] else { panic!("one is held: {held:?}") };
        let shard = key.split(['{', '}']).nth(1).and_then(|shard| shard.parse().ok());
        shard.expect("it has a shard")
    }
}
