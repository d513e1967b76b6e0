//! Both stores at once, the embedded one and Redis, by the same moves.
//!
//! On Redis real time passes besides. It may take part of the 300 ms of an offer, and moves every
//! deadline by as much, but no further than the half second that each of them is away from a tie. A run
//! that took longer says nothing, and is made again.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use super::{
    client_operation::ClientOperation,
    simulated_clients::SimulatedClients,
    store_call::{StoreCall, StoreReply},
    store_harness::StoreHarness,
};
use crate::store::backend::{AcquireReply, LockMode};

/// Most real time of one run, and by how much what is left of a time may differ.
pub(super) const MAX_REAL_TIME: Duration = Duration::from_millis(250);

/// What was not started waits for one millisecond, which has passed on Redis whenever somebody looks.
const UNCLAIM_DELAY: Duration = Duration::from_millis(2);

/// Runs of one case that were too slow, after which the machine is to blame.
pub(super) const MAX_RUNS: usize = 20;

/// The sequence a reply tells.
fn reply_sequence(reply: &StoreReply) -> Option<u64> {
    match reply {
        StoreReply::Acquired(AcquireReply::Busy { seq, .. })
        | StoreReply::ReleasedAndReacquired(_, AcquireReply::Busy { seq, .. }) => Some(*seq),
        _ => None,
    }
}

/// A client that comes back gives the sequence it was told by that store.
fn with_redis_sequence(mut call: StoreCall, seqs: &HashMap<u64, u64>) -> StoreCall {
    if let StoreCall::Acquire(acquire) | StoreCall::ReleaseAndReacquire(_, _, acquire) = &mut call {
        acquire.resume_seq = seqs.get(&acquire.resume_seq).copied().unwrap_or(0);
    }
    call
}

/// Both stores, and clients who make the same moves on them.
pub(super) struct StorePair {
    pub(super) memory: StoreHarness,
    pub(super) redis: StoreHarness,
    pub(super) clients: SimulatedClients,
    /// The sequences that the one store told, and those of the other for them.
    redis_sequences: HashMap<u64, u64>,
    started: Instant,
}

/// A call, and what each of them said.
pub(super) type CallWithReplies = (StoreCall, [StoreReply; 2]);

impl StorePair {
    async fn new(one_shard: bool, modes: &[LockMode]) -> Self {
        let (memory, redis) = (StoreHarness::memory(), StoreHarness::redis().await);
        let clients = SimulatedClients::new(one_shard, modes);
        redis.ping().await;
        Self { memory, redis, clients, redis_sequences: HashMap::new(), started: Instant::now() }
    }

    /// Whether so much real time has passed that it says nothing.
    pub(super) fn is_too_slow(&self) -> bool {
        self.started.elapsed() > MAX_REAL_TIME
    }

    /// `None` if there is nothing yet that the move could be about.
    pub(super) async fn apply(&mut self, made: &ClientOperation) -> Option<CallWithReplies> {
        let made = self.apply_without_delay(made).await?;
        if let StoreCall::Unclaim(..) = made.0 {
            self.memory.advance(UNCLAIM_DELAY).await;
            self.redis.advance(UNCLAIM_DELAY).await;
        }
        Some(made)
    }

    /// The same, and no time passes.
    pub(super) async fn apply_without_delay(
        &mut self,
        made: &ClientOperation,
    ) -> Option<CallWithReplies> {
        let call = self.clients.resolve_operation(&self.memory, made).await?;
        let reply = call.clone().run_on(&self.memory).await;
        let other =
            with_redis_sequence(call.clone(), &self.redis_sequences).run_on(&self.redis).await;
        if let (Some(one), Some(other)) = (reply_sequence(&reply), reply_sequence(&other)) {
            self.redis_sequences.insert(one, other);
        }
        self.clients.observe_call(&call, &reply);
        Some((call, [reply, other]))
    }
}

/// Until a run was not too slow; false if all of so many were.
pub(super) async fn retry_until_in_time(
    runs: usize,
    one_shard: bool,
    modes: &[LockMode],
    mut run: impl AsyncFnMut(&mut StorePair) -> bool,
) -> bool {
    for _ in 0..runs {
        let mut both = StorePair::new(one_shard, modes).await;
        let well = run(&mut both).await;
        // Time passes by naming all keys of the server: those of a thousand runs would make each one slow.
        both.redis.server().delete_all_keys().await;
        if well {
            return true;
        }
    }
    false
}
