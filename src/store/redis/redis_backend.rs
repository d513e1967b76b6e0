//! `RedisBackend`: the lanes, batchers and trackers of one store.

use std::{
    fmt,
    sync::{Arc, atomic::AtomicU64},
    time::Duration,
};

use tokio::time::Instant;

use super::super::key_names::KeyNames;
use super::{
    batcher::CallBatcher,
    charge_transport::ChargeTransport,
    claim_settle_transport::{ClaimSettleCommand, ClaimSettleTransport},
    connection_lanes::ConnectionLanes,
    enqueue_transport::EnqueueTransport,
    lane_breaker_and_probe::LaneBreaker,
    lock_command_encoding::LockCommand,
    lock_transport::LockTransport,
    ping_and_failover_watch::PingAndFailoverWatch,
    replica_acks::ReplicaAcks,
    target::ConnectionTarget,
    task_push_transport::TaskPushTransport,
};
use crate::error::{Error, ErrorKind};

/// Store backend on the servers of a [`ConnectionTarget`].
pub(in super::super) struct RedisBackend {
    pub(super) target: ConnectionTarget,
    pub(super) lanes: Arc<ConnectionLanes>,
    /// One per lane, like the other batchers except `charge_batchers`.
    pub(super) lock_batchers: Vec<CallBatcher<LockTransport>>,
    /// In a cluster one per lane, on a single server one in all: its charges go over the first
    /// lane. No undo has to follow a charge on the same lane, and batches split over several lanes
    /// would cost more per charge.
    pub(super) charge_batchers: Vec<CallBatcher<ChargeTransport>>,
    pub(super) claim_settle_batchers: Vec<CallBatcher<ClaimSettleTransport>>,
    pub(super) enqueue_batchers: Vec<CallBatcher<EnqueueTransport>>,
    pub(super) task_push_batchers: Vec<CallBatcher<TaskPushTransport>>,
    /// Sequence number of the next push.
    pub(super) next_push_sequence: AtomicU64,
    pub(super) lane_breakers: Vec<Arc<LaneBreaker>>,
    pub(super) replica_acks: Arc<ReplicaAcks>,
    pub(super) keys: KeyNames,
    pub(super) deadline: Duration,
    pub(super) _failover_watch: Option<PingAndFailoverWatch>,
}

impl RedisBackend {
    /// Returns the batcher of a command. All calls about one shard use one lane.
    #[expect(clippy::indexing_slicing, reason = "there is one for each lane")]
    pub(super) fn lock_batcher(&self, command: &LockCommand) -> &CallBatcher<LockTransport> {
        &self.lock_batchers[self.lanes.lane_of_shard(command.key().shard())]
    }

    /// Returns the batcher of charges under a tag of this shard.
    #[expect(clippy::indexing_slicing, reason = "there is one for all lanes or one for each")]
    pub(super) fn charge_batcher(&self, shard: u16) -> &CallBatcher<ChargeTransport> {
        &self.charge_batchers[self.lanes.lane_of_shard(shard) % self.charge_batchers.len()]
    }

    /// Sends a claim or a settlement, batched with others of its lane.
    #[expect(clippy::indexing_slicing, reason = "there is one for each lane")]
    pub(super) async fn send_claim_or_settlement(
        &self,
        command: ClaimSettleCommand,
    ) -> Result<redis::Value, Error> {
        let shard = command.key().shard();
        self.check_breaker(shard, super::script_sources::CLAIM_SETTLE_BATCH.name)?;
        let started_at = Instant::now();
        let deadline = started_at + self.deadline;
        let batcher = &self.claim_settle_batchers[self.lanes.lane_of_shard(shard)];
        let outcome = if command.frees_run_slot() {
            // The run that starts in the freed slot calls at once, and shares the batch.
            match batcher.submit(command, deadline) {
                Some(outcome) => outcome.await,
                None => Err(Error::new(
                    ErrorKind::Unavailable,
                    super::script_sources::CLAIM_SETTLE_BATCH.name,
                )),
            }
        } else {
            batcher.call(command, deadline).await
        };
        self.record_outcome(
            (shard, super::script_sources::CLAIM_SETTLE_BATCH.name),
            started_at,
            &outcome,
        );
        outcome.map(|reply| reply.first)
    }
}

impl fmt::Debug for RedisBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Neither address nor user: this output ends up in the application's logs.
        f.debug_struct("RedisBackend").field("keys", &self.keys).finish_non_exhaustive()
    }
}
