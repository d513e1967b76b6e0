//! Where the store of a fleet is.

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
