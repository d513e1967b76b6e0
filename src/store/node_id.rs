//! `NodeId`: identity of one incarnation of one process.

use std::{fmt, sync::Arc};

/// Returns 60 random bits in hex.
pub(crate) fn random_hex_id() -> Arc<str> {
    format!("{:016x}", uuid::Uuid::new_v4().as_u64_pair().0).into()
}

/// Identity of one incarnation of one process. It is random, so a restarted process is a new node.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct NodeId(Arc<str>);

impl NodeId {
    pub(crate) fn new() -> Self {
        Self(random_hex_id())
    }

    /// Parses a node returned by the store.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let is_hex = !text.is_empty() && text.bytes().all(|b| b.is_ascii_hexdigit());
        is_hex.then(|| Self(text.into()))
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Node({self})")
    }
}
