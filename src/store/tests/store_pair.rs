//! `StorePair`: the embedded store and Redis, with the same operations on both.
//!
//! On Redis, real time passes as well. It may use up part of the 300 ms of an offer, and moves
//! every deadline by as much, but by less than the half second between each deadline and a tie. A
//! slower run is inconclusive and is repeated.

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

/// Longest real time of one run, and tolerance of remaining times.
pub(super) const MAX_REAL_TIME: Duration = Duration::from_millis(250);

/// An unclaimed job is due after a millisecond, which has always passed on Redis at the next poll.
const UNCLAIM_DELAY: Duration = Duration::from_millis(2);

/// Number of slow runs of one case after which the machine is too busy.
pub(super) const MAX_RUNS: usize = 20;

/// Returns the sequence in a reply.
fn reply_sequence(reply: &StoreReply) -> Option<u64> {
    match reply {
        StoreReply::Acquired(AcquireReply::Busy { seq, .. })
        | StoreReply::ReleasedAndReacquired(_, AcquireReply::Busy { seq, .. }) => Some(*seq),
        _ => None,
    }
}

/// Replaces the sequence that a client resumes by the one that Redis returned for it.
fn with_redis_sequence(mut call: StoreCall, redis_sequences: &HashMap<u64, u64>) -> StoreCall {
    if let StoreCall::Acquire(acquire) | StoreCall::ReleaseAndReacquire(_, _, acquire) = &mut call {
        acquire.resume_seq = redis_sequences.get(&acquire.resume_seq).copied().unwrap_or(0);
    }
    call
}

/// Both stores, and clients that call both of them.
pub(super) struct StorePair {
    pub(super) memory: StoreHarness,
    pub(super) redis: StoreHarness,
    pub(super) clients: SimulatedClients,
    /// Redis sequences by sequence of the embedded store.
    redis_sequences: HashMap<u64, u64>,
    started: Instant,
}

/// A call and the replies of both stores.
pub(super) type CallWithReplies = (StoreCall, [StoreReply; 2]);

impl StorePair {
    async fn new(one_shard: bool, modes: &[LockMode]) -> Self {
        let (memory, redis) = (StoreHarness::memory(), StoreHarness::redis().await);
        let clients = SimulatedClients::new(one_shard, modes);
        redis.ping().await;
        Self { memory, redis, clients, redis_sequences: HashMap::new(), started: Instant::now() }
    }

    /// Returns true if the run took so long that it is inconclusive.
    pub(super) fn is_too_slow(&self) -> bool {
        self.started.elapsed() > MAX_REAL_TIME
    }

    /// Applies an operation; `None` if it has no target yet.
    pub(super) async fn apply(&mut self, operation: &ClientOperation) -> Option<CallWithReplies> {
        let result = self.apply_without_delay(operation).await?;
        if let StoreCall::Unclaim(..) = result.0 {
            self.memory.advance(UNCLAIM_DELAY).await;
            self.redis.advance(UNCLAIM_DELAY).await;
        }
        Some(result)
    }

    /// Like `apply`, without a delay after it.
    pub(super) async fn apply_without_delay(
        &mut self,
        operation: &ClientOperation,
    ) -> Option<CallWithReplies> {
        let call = self.clients.resolve_operation(&self.memory, operation).await?;
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

/// Repeats a case until a run is in time. Returns false if none of `runs` was.
pub(super) async fn retry_until_in_time(
    runs: usize,
    one_shard: bool,
    modes: &[LockMode],
    mut run: impl AsyncFnMut(&mut StorePair) -> bool,
) -> bool {
    for _ in 0..runs {
        let mut stores = StorePair::new(one_shard, modes).await;
        let is_in_time = run(&mut stores).await;
        // Time is advanced by listing all keys of the server; the keys of a thousand runs would
        // make that slow.
        stores.redis.server().delete_all_keys().await;
        if is_in_time {
            return true;
        }
    }
    false
}
