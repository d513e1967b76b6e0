//! Replies to the calls of a worker: `HeartbeatReply` with its shards and peers, and `DueLocks`.

use std::time::Duration;

use crate::{
    key::Key,
    store::{job_id::JobId, node_id::NodeId},
};

/// Time for which a shard that a worker has given up still counts as watched. The other workers are
/// notified at once and claim it a moment later. `heartbeat_and_shard_assignment.lua` has the same
/// number.
pub(crate) const SHARD_VACANCY_GRACE: Duration = Duration::from_secs(1);

/// Reply to a heartbeat.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct HeartbeatReply {
    /// Shards that this node watches now.
    pub(crate) own_shards: Vec<u16>,
    /// Those of `own_shards` with a job that is due, or will be.
    pub(crate) busy_shards: Vec<u16>,
    /// Other live workers, at most 100.
    pub(crate) peers: Vec<NodeId>,
    /// The queue is paused, and no worker watches a shard.
    pub(crate) is_paused: bool,
    /// Time until the lease of the next worker in the ring of all workers ends, if it is not
    /// renewed.
    pub(crate) peer_expires_in: Option<Duration>,
}

/// Due locks of one shard, returned by `JobBackend::poll_due`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct DueLocks {
    /// Locks that are due, each with its first job.
    pub(crate) locks: Vec<(Key, Option<JobId>)>,
    pub(crate) next_due_in: Option<Duration>,
}
