//! Redis or Valkey as the store: what a step of an engine goes through on its way to the server.
//!
//! [`steps`] turns a typed step into one script call; [`call`] sends it, within the deadline, past the
//! breaker, again where that is safe. Steps about one lock ([`ask`]) go together with others that wait
//! ([`combine`]) over a lane's [`wire`], and so do those of quotas ([`charges`]), of requests that are
//! deferred ([`enqueues`]) and of their runs ([`runs`]). [`target`] knows where the servers are, [`connect`] keeps the
//! connections; [`listen`] has a connection of its own for messages. In a cluster every shard has a lane, to
//! whichever of the [`nodes`] has it, and steps about several shards are several calls (`steps::apart`).

mod ask;
mod breaker;
mod builder;
mod call;
mod charges;
mod combine;
mod connect;
mod counted;
mod enqueues;
mod fault;
mod fences;
mod health;
mod home;
mod incarnation;
mod listen;
mod nodes;
mod origin;
mod packed;
mod read;
mod replicas;
mod rights;
mod runs;
mod script;
mod server;
mod spread;
mod steps;
mod target;
mod tasks;
#[cfg(test)]
mod tests;
mod watch;
mod wire;

use std::{
    fmt,
    sync::{Arc, atomic::AtomicU64},
    time::Duration,
};

use tokio::time::Instant;

use self::{
    ask::Ask,
    charges::Charges,
    combine::Combiner,
    connect::Lanes,
    enqueues::Enqueues,
    health::Health,
    replicas::Replicas,
    runs::{RunAsk, Runs},
    target::Target,
    tasks::Pushes,
    watch::Watch,
    wire::Wire,
};
use super::key_names::KeyNames;
use crate::error::{Error, ErrorKind};

pub use self::builder::StoreBuilder;
pub(crate) use self::steps::Together;

/// What a [`Target`] leads to, as a store.
pub(super) struct Redis {
    target: Target,
    lanes: Arc<Lanes>,
    /// One for each lane, as the others are.
    combiners: Vec<Combiner<Wire>>,
    /// Charges go with charges: of one server all of them, by its first lane. Nothing undoes them that would have to go
    /// the same way, and who is alone in half of the flights pays for a whole one. In a cluster one for each lane.
    charges: Vec<Combiner<Charges>>,
    runs: Vec<Combiner<Runs>>,
    enqueues: Vec<Combiner<Enqueues>>,
    pushes: Vec<Combiner<Pushes>>,
    /// Number of the next push.
    pushed: AtomicU64,
    health: Vec<Arc<Health>>,
    replicas: Arc<Replicas>,
    keys: KeyNames,
    deadline: Duration,
    _watch: Option<Watch>,
}

impl Redis {
    /// Where a step waits for others. All about one shard go the same way.
    #[expect(clippy::indexing_slicing, reason = "there are as many as lanes")]
    fn combiner(&self, ask: &Ask) -> &Combiner<Wire> {
        // Lanes and combiners are as many.
        &self.combiners[self.lanes.of(ask.key().shard())]
    }

    /// Where a charge under a tag of this shard waits for others.
    #[expect(clippy::indexing_slicing, reason = "there is one, or as many as lanes")]
    fn charges_of(&self, shard: u16) -> &Combiner<Charges> {
        &self.charges[self.lanes.of(shard) % self.charges.len()]
    }

    /// Sends a claim or a settlement, with others that go the same way.
    #[expect(clippy::indexing_slicing, reason = "there are as many as lanes")]
    async fn ask_run(&self, ask: RunAsk) -> Result<redis::Value, Error> {
        let shard = ask.key().shard();
        self.pass(shard, script::RUNS.name)?;
        let until = Instant::now() + self.deadline;
        let lane = &self.runs[self.lanes.of(shard)];
        let outcome = if ask.makes_room() {
            // What begins in the room that its run leaves comes at once, and goes with it.
            match lane.put(ask, until) {
                Some(outcome) => outcome.await,
                None => Err(Error::new(ErrorKind::Unavailable, script::RUNS.name)),
            }
        } else {
            lane.call(ask, until).await
        };
        self.note(shard, &outcome);
        outcome.map(|answer| answer.first)
    }
}

impl fmt::Debug for Redis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Neither address nor user: this ends in other people's logs.
        f.debug_struct("Redis").field("keys", &self.keys).finish_non_exhaustive()
    }
}
