//! Redis or Valkey as the store: what a step of an engine goes through on its way to the server.
//!
//! [`steps`] turns a typed step into one script call; [`call`] sends it, within the deadline, past the
//! breaker, again where that is safe. Steps about one lock ([`ask`]) go together with others that wait
//! ([`combine`]) over a lane's [`wire`], and so do those of quotas ([`charges`]), of requests that are
//! deferred ([`enqueues`]) and of their runs ([`runs`]). [`target`] knows where the servers are, [`connect`] keeps the
//! connections; [`listen`] has a connection of its own for messages. In a cluster every shard has a lane, to
//! whichever of the [`nodes`] has it, and steps about several shards are several calls (`steps::apart`).

mod lock_command;
mod circuit_breaker;
mod store_builder;
mod call_execution;
mod charge_transport;
mod batcher;
mod connection_lanes;
mod raw_charge_reply;
mod enqueue_transport;
mod call_fault;
mod fence_recovery;
mod lane_health;
mod home_runtime;
mod server_tracker;
mod subscriber;
mod node_lanes;
mod connection_source;
mod msgpack;
mod reply_reader;
mod replica_acks;
mod acl;
mod run_transport;
mod scripts;
mod server_info;
mod jitter;
mod operations;
mod target;
mod push_transport;
#[cfg(test)]
mod tests;
mod failover_monitor;
mod lock_transport;

use std::{
    fmt,
    sync::{Arc, atomic::AtomicU64},
    time::Duration,
};

use tokio::time::Instant;

use self::{
    lock_command::LockCommand,
    charge_transport::ChargeTransport,
    batcher::CallBatcher,
    connection_lanes::ConnectionLanes,
    enqueue_transport::EnqueueTransport,
    lane_health::LaneHealth,
    replica_acks::ReplicaAcks,
    run_transport::{RunCommand, RunTransport},
    target::ConnectionTarget,
    push_transport::PushTransport,
    failover_monitor::FailoverMonitor,
    lock_transport::LockTransport,
};
use super::key_names::KeyNames;
use crate::error::{Error, ErrorKind};

pub use self::store_builder::StoreBuilder;
pub(crate) use self::operations::BatchedCharge;

/// What a [`Target`] leads to, as a store.
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
        f.debug_struct("Redis").field("keys", &self.keys).finish_non_exhaustive()
    }
}
