//! Store backend on Redis or Valkey.
//!
//! - [`operations`] turns each typed operation into one script call.
//! - [`call_execution`] sends a call within its deadline, past the circuit breaker, and again where
//!   that is safe.
//! - [`batcher`] sends concurrent calls of one lane together. Each kind has a transport:
//!   [`lock_transport`], [`charge_transport`], [`enqueue_transport`], [`run_transport`] and
//!   [`push_transport`].
//! - [`connection_lanes`] keeps the connections, and [`target`] finds the servers.
//! - [`subscriber`] receives messages on connections of its own.
//!
//! In a cluster every shard has a lane, on a connection to the cluster node that owns the shard
//! ([`node_lanes`]). An operation on several shards is several calls there
//! (`operations::cluster_fan_out`).

mod acl;
mod batcher;
mod call_execution;
mod call_fault;
mod charge_transport;
mod circuit_breaker;
mod connection_lanes;
mod connection_source;
mod enqueue_transport;
mod failover_monitor;
mod fence_recovery;
mod home_runtime;
mod jitter;
mod lane_health;
mod lock_command;
mod lock_transport;
mod msgpack;
mod node_lanes;
mod operations;
mod push_transport;
mod raw_charge_reply;
mod replica_acks;
mod reply_reader;
mod run_transport;
mod scripts;
mod server_info;
mod server_tracker;
mod store_builder;
mod subscriber;
mod target;
#[cfg(test)]
mod tests;

use std::{
    fmt,
    sync::{Arc, atomic::AtomicU64},
    time::Duration,
};

use tokio::time::Instant;

use self::{
    batcher::CallBatcher,
    charge_transport::ChargeTransport,
    connection_lanes::ConnectionLanes,
    enqueue_transport::EnqueueTransport,
    failover_monitor::FailoverMonitor,
    lane_health::LaneHealth,
    lock_command::LockCommand,
    lock_transport::LockTransport,
    push_transport::PushTransport,
    replica_acks::ReplicaAcks,
    run_transport::{RunCommand, RunTransport},
    target::ConnectionTarget,
};
use super::key_names::KeyNames;
use crate::error::{Error, ErrorKind};

pub(crate) use self::operations::BatchedCharge;
pub use self::store_builder::StoreBuilder;

/// Store backend on the servers of a [`ConnectionTarget`].
pub(super) struct RedisBackend {
    target: ConnectionTarget,
    lanes: Arc<ConnectionLanes>,
    /// One per lane, like the other batchers except `charge_batchers`.
    lock_batchers: Vec<CallBatcher<LockTransport>>,
    /// In a cluster one per lane, on a single server one in all: its charges go over the first
    /// lane. No undo has to follow a charge on the same lane, and batches split over several lanes
    /// would cost more per charge.
    charge_batchers: Vec<CallBatcher<ChargeTransport>>,
    run_batchers: Vec<CallBatcher<RunTransport>>,
    enqueue_batchers: Vec<CallBatcher<EnqueueTransport>>,
    push_batchers: Vec<CallBatcher<PushTransport>>,
    /// Sequence number of the next push.
    next_push: AtomicU64,
    lane_health: Vec<Arc<LaneHealth>>,
    replica_acks: Arc<ReplicaAcks>,
    keys: KeyNames,
    deadline: Duration,
    _failover_monitor: Option<FailoverMonitor>,
}

impl RedisBackend {
    /// Returns the batcher of a command. All calls about one shard use one lane.
    #[expect(clippy::indexing_slicing, reason = "there are as many as lanes")]
    fn lock_batcher(&self, ask: &LockCommand) -> &CallBatcher<LockTransport> {
        &self.lock_batchers[self.lanes.lane_of_shard(ask.key().shard())]
    }

    /// Returns the batcher of charges under a tag of this shard.
    #[expect(clippy::indexing_slicing, reason = "there is one, or as many as lanes")]
    fn charge_batcher(&self, shard: u16) -> &CallBatcher<ChargeTransport> {
        &self.charge_batchers[self.lanes.lane_of_shard(shard) % self.charge_batchers.len()]
    }

    /// Sends a claim or a settlement, batched with others of its lane.
    #[expect(clippy::indexing_slicing, reason = "there are as many as lanes")]
    async fn send_run_command(&self, ask: RunCommand) -> Result<redis::Value, Error> {
        let shard = ask.key().shard();
        self.check_breaker(shard, scripts::RUN_BATCH.name)?;
        let until = Instant::now() + self.deadline;
        let lane = &self.run_batchers[self.lanes.lane_of_shard(shard)];
        let outcome = if ask.frees_run_slot() {
            // The run that starts in the freed slot calls at once, and shares the batch.
            match lane.submit(ask, until) {
                Some(outcome) => outcome.await,
                None => Err(Error::new(ErrorKind::Unavailable, scripts::RUN_BATCH.name)),
            }
        } else {
            lane.call(ask, until).await
        };
        self.record_outcome(shard, &outcome);
        outcome.map(|answer| answer.first)
    }
}

impl fmt::Debug for RedisBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Neither address nor user: this output ends up in the application's logs.
        f.debug_struct("RedisBackend").field("keys", &self.keys).finish_non_exhaustive()
    }
}
