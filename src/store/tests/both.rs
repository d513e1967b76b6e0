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
    calls::{Call, Reply},
    clients::Clients,
    moves::Move,
    rig::Rig,
};
use crate::store::backend::{AcquireReply, LockMode};

/// Most real time of one run, and by how much what is left of a time may differ.
pub(super) const SLOW: Duration = Duration::from_millis(250);

/// What was not started waits for one millisecond, which has passed on Redis whenever somebody looks.
const UNDONE: Duration = Duration::from_millis(2);

/// Runs of one case that were too slow, after which the machine is to blame.
pub(super) const RUNS: usize = 20;

/// The sequence a reply tells.
fn seq_of(reply: &Reply) -> Option<u64> {
    match reply {
        Reply::Acquired(AcquireReply::Busy { seq, .. })
        | Reply::HandedOn(_, AcquireReply::Busy { seq, .. }) => Some(*seq),
        _ => None,
    }
}

/// A client that comes back gives the sequence it was told by that store.
fn with_own_seq(mut call: Call, seqs: &HashMap<u64, u64>) -> Call {
    if let Call::Acquire(acquire) | Call::HandOn(_, _, acquire) = &mut call {
        acquire.resume_seq = seqs.get(&acquire.resume_seq).copied().unwrap_or(0);
    }
    call
}

/// Both stores, and clients who make the same moves on them.
pub(super) struct Both {
    pub(super) memory: Rig,
    pub(super) redis: Rig,
    pub(super) clients: Clients,
    /// The sequences that the one store told, and those of the other for them.
    seqs: HashMap<u64, u64>,
    started: Instant,
}

/// A call, and what each of them said.
pub(super) type Made = (Call, [Reply; 2]);

impl Both {
    async fn new(one_shard: bool, modes: &[LockMode]) -> Self {
        let (memory, redis) = (Rig::memory(), Rig::redis().await);
        let clients = Clients::new(one_shard, modes);
        redis.ping().await;
        Self { memory, redis, clients, seqs: HashMap::new(), started: Instant::now() }
    }

    /// Whether so much real time has passed that it says nothing.
    pub(super) fn is_late(&self) -> bool {
        self.started.elapsed() > SLOW
    }

    /// `None` if there is nothing yet that the move could be about.
    pub(super) async fn step(&mut self, made: &Move) -> Option<Made> {
        let made = self.make(made).await?;
        if let Call::Unclaim(..) = made.0 {
            self.memory.advance(UNDONE).await;
            self.redis.advance(UNDONE).await;
        }
        Some(made)
    }

    /// The same, and no time passes.
    pub(super) async fn make(&mut self, made: &Move) -> Option<Made> {
        let call = self.clients.call(&self.memory, made).await?;
        let reply = call.clone().on(&self.memory).await;
        let other = with_own_seq(call.clone(), &self.seqs).on(&self.redis).await;
        if let (Some(one), Some(other)) = (seq_of(&reply), seq_of(&other)) {
            self.seqs.insert(one, other);
        }
        self.clients.hear(&call, &reply);
        Some((call, [reply, other]))
    }
}

/// Until a run was not too slow; false if all of so many were.
pub(super) async fn in_time(
    runs: usize,
    one_shard: bool,
    modes: &[LockMode],
    mut run: impl AsyncFnMut(&mut Both) -> bool,
) -> bool {
    for _ in 0..runs {
        let mut both = Both::new(one_shard, modes).await;
        let well = run(&mut both).await;
        // Time passes by naming all keys of the server: those of a thousand runs would make each one slow.
        both.redis.server().clear().await;
        if well {
            return true;
        }
    }
    false
}
