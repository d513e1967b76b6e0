//! Redis or Valkey as the store: what a step of an engine goes through on its way to the server.
//!
//! [`steps`] turns a typed step into one script call; [`call`] sends it, within the deadline, past the
//! breaker, again where that is safe. Steps about one lock ([`ask`]) go together with others that wait
//! ([`combine`]) over a lane's [`wire`], and so do those of quotas ([`charge_batchers`]), of requests that are
//! deferred ([`enqueue_batchers`]) and of their runs ([`run_batchers`]). [`target`] knows where the servers are, [`connect`] keeps the
//! connections; [`listen`] has a connection of its own for messages. In a cluster every shard has a lane, to
//! whichever of the [`nodes`] has it, and steps about several shards are several calls (`steps::apart`).

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

/// What a [`ConnectionTarget`] leads to, as a store.
pub(super) struct RedisBackend {
    target: ConnectionTarget,
    lanes: Arc<ConnectionLanes>,
    /// One for each lane, as the others are.
    lock_batchers: Vec<CallBatcher<LockTransport>>,
    /// Charges go with charges: of one server all of them, by its first lane. Nothing undoes them that would have to go
    /// the same way, and who is alone in half of the flights pays for a whole one. In a cluster one for each lane.
    charge_batchers: Vec<CallBatcher<ChargeTransport>>,
    run_batchers: Vec<CallBatcher<RunTransport>>,
    enqueue_batchers: Vec<CallBatcher<EnqueueTransport>>,
    push_batchers: Vec<CallBatcher<PushTransport>>,
    /// Number of the next push.
    next_push: AtomicU64,
    lane_health: Vec<Arc<LaneHealth>>,
    replica_acks: Arc<ReplicaAcks>,
    keys: KeyNames,
    deadline: Duration,
    _failover_monitor: Option<FailoverMonitor>,
}

impl RedisBackend {
    /// Where a step waits for others. All about one shard go the same way.
    #[expect(clippy::indexing_slicing, reason = "there are as many as lanes")]
    fn lock_batcher(&self, ask: &LockCommand) -> &CallBatcher<LockTransport> {
        // Lanes and combiners are as many.
        &self.lock_batchers[self.lanes.lane_of_shard(ask.key().shard())]
    }

    /// Where a charge under a tag of this shard waits for others.
    #[expect(clippy::indexing_slicing, reason = "there is one, or as many as lanes")]
    fn charge_batcher(&self, shard: u16) -> &CallBatcher<ChargeTransport> {
        &self.charge_batchers[self.lanes.lane_of_shard(shard) % self.charge_batchers.len()]
    }

    /// Sends a claim or a settlement, with others that go the same way.
    #[expect(clippy::indexing_slicing, reason = "there are as many as lanes")]
    async fn send_run_command(&self, ask: RunCommand) -> Result<redis::Value, Error> {
        let shard = ask.key().shard();
        self.check_breaker(shard, scripts::RUN_BATCH.name)?;
        let until = Instant::now() + self.deadline;
        let lane = &self.run_batchers[self.lanes.lane_of_shard(shard)];
        let outcome = if ask.frees_run_slot() {
            // What begins in the room that its run leaves comes at once, and goes with it.
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
        // Neither address nor user: this ends in other people's logs.
        f.debug_struct("RedisBackend").field("keys", &self.keys).finish_non_exhaustive()
    }
}
