//! [`SilentNode`]: a node with a worker that has not answered an inquiry.

use serde::Serialize;

/// Store handle with a worker for deferred requests whose process has not answered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct SilentNode {
    /// Id of the store handle, as in [`ProcessReport::node`](crate::ProcessReport::node) and in the
    /// logs of the process.
    pub node: String,
    /// Time until the lease of its worker ends, in milliseconds; zero after the end. A worker
    /// renews its lease in time while it can reach the store.
    pub lease_left_ms: u64,
}
