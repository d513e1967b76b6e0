//! The exhaustive model: every state that a few processes, jobs and runs of one lock can reach in so many steps.
//!
//! Each [`World`] is a few of them, with what they may do. They are explored breadth first, from the empty store, by
//! the same moves, clients and model of replies as the random [model](super::model). `tests/model/lock_line.py`
//! explores the protocol of the line by itself, with time that passes for each alone; here it is the store's own steps
//! that are explored, with one clock, and with all that a job can meet: an offer, a claim by a run token, a verdict,
//! backoff, a crash, a lease's end, a worker who comes back too late, cancelling, requests that pass over jobs nobody
//! takes, dead letters that are put back.
//!
//! In each state: what was answered follows from what was answered before (truth), a pass finds nothing wrong (each
//! job in one place, all of it counted, a look that is due), and from there everybody who lives is served and each job
//! ends by itself (drain), whether those who hold or wait live on or have all crashed. States that differ in names
//! alone are one ([`MemoryBackend::model_snapshot`]). The faults in [`PlantedFault`] are each caught.
//!
//! Worlds that are [`small`] are explored whole each time: of two or three who meet at one lock, with the few moves that
//! make the protocol, and times that are either to come or over. The others go as far as they come in a bounded time.
//!
//! It is tied to the scripts by the same moves: paths through the graph are driven through memory and Redis, and get
//! the same replies ([alike](super::alike)); of the small worlds all paths, so that every state that memory can reach
//! there was reached by the scripts. What changes nothing there is on no such path, and is made [apart](still): it changes
//! nothing on the server either. `EXPLORE_STATES` says how many states of each world are looked at; with
//! enough of them (it tells how many there are), each world is explored whole.
//!
//! [`MemoryBackend::model_snapshot`]: crate::store::Memory::picture

mod graph;
mod small;
#[cfg(feature = "redis")]
mod still;

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::{
    calls::{Call, Reply},
    clients::{Clients, TOKENS},
    drain::drain,
    model::Model,
    moves::{Job, Move, time},
    rig::{Rig, done},
};
use crate::store::{
    backend::{LockMode, Settlement},
    fsck::FsckPart,
    memory::PlantedFault,
};
use graph::{explore, map};

/// Two live processes, two kinds of jobs, and whoever comes to claim them.
const A: usize = 0;
const B: usize = 2;

fn job(again: bool) -> Move {
    let (max_attempts, skip) = if again { (2, true) } else { (1, false) };
    let plain = (None, None, None, None);
    let (record, delay, deadline, merge) = plain;
    let (lock, bytes, needs_worker) = (0, 7, false);
    Move::Enqueue(Job {
        lock,
        bytes,
        again,
        max_attempts,
        record,
        delay,
        deadline,
        skip,
        needs_worker,
        merge,
    })
}

/// A few who meet at one lock: what has happened, what may happen in every state, and how many jobs there are at most.
#[derive(Clone)]
struct World {
    name: &'static str,
    begins: Vec<Move>,
    moves: Vec<Move>,
    jobs: usize,
    /// That of each token.
    modes: Vec<LockMode>,
}

fn world(name: &'static str, jobs: usize, own: impl IntoIterator<Item = Move>) -> World {
    // Time passes in all of them, short of a lease and past it.
    let moves = own.into_iter().chain([Move::Due(0), Move::Pass(1), Move::Pass(3)]).collect();
    // The worker watches for as long as anybody looks.
    let modes = vec![LockMode::Exclusive; TOKENS];
    World { name, begins: vec![Move::Beat(0, 1_000_000)], moves, jobs, modes }
}

fn settle(verdict: Settlement, next: Option<u64>) -> Move {
    Move::Settle(0, verdict, next)
}

fn worlds() -> Vec<World> {
    let retry = || Settlement::Retry { delay: time(1), reason: "status 503" };
    let dead = || Settlement::Dead { reason: "auth", retention: time(1000) };
    let back = || Settlement::Postpone { delay: time(0), reason: "busy" };
    // Of a run before the last one: its worker was paused.
    let late = || Move::Settle(1, done(), None);
    let (claim, again) = (|| Move::Claim(0, 2), || Move::ClaimAgain(0, 2));
    let runs = [job(true), claim(), again(), settle(done(), None), settle(retry(), None), late()];
    let (live, leave) = (|| Move::Wait(A, 2, 5), Move::Leave(A));
    let release = || Move::Release(0, 0);
    let block = || job(false);
    vec![
        world("a run, its crash, and a worker who comes back", 1, runs),
        world(
            "two jobs in order",
            2,
            [
                block(),
                job(true),
                claim(),
                settle(done(), Some(2)),
                settle(back(), None),
                Move::Cancel(0),
            ],
        ),
        world(
            "a live request and jobs",
            2,
            [
                live(),
                release(),
                leave,
                block(),
                claim(),
                settle(done(), None),
                Move::Unclaim(0, true),
            ],
        ),
        world(
            "two live requests and a job nobody takes",
            1,
            [
                live(),
                Move::Wait(B, 2, 5),
                release(),
                job(true),
                claim(),
                settle(retry(), None),
                Move::Beat(0, 0),
                Move::Beat(0, 1_000_000),
            ],
        ),
        world(
            "dead letters",
            2,
            [
                block(),
                claim(),
                settle(dead(), None),
                late(),
                Move::Redrive(0),
                Move::Cancel(0),
                live(),
                release(),
            ],
        ),
    ]
}

/// How many states of each world a test looks at.
fn budget(usual: usize) -> usize {
    let named = std::env::var("EXPLORE_STATES").ok().and_then(|text| text.parse().ok());
    named.unwrap_or(usual)
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(future)
}

#[test]
fn every_state_is_sound_and_comes_to_an_end() {
    for world in worlds() {
        let graph = block_on(explore(&world, budget(300), None));
        println!("{}: {graph}", world.name);
        assert!(graph.states() >= 200 || graph.whole(), "{graph}");
    }
}

/// The checks above can fail: a store with a fault is found out, in one of the worlds.
#[test]
fn planted_faults_are_caught() {
    let all = [
        PlantedFault::DueEntryMissing,
        PlantedFault::ClaimedJobDequeued,
        PlantedFault::EndedJobCounted,
        PlantedFault::FenceNotAdvanced,
        PlantedFault::LeaseEndsEarly,
        PlantedFault::QueueOutOfOrder,
        PlantedFault::RunTokenIgnored,
    ];
    for planted in all {
        let caught = worlds().iter().any(|world| {
            let explored = AssertUnwindSafe(|| block_on(explore(world, 300, Some(planted))));
            catch_unwind(explored).is_err()
        });
        assert!(caught, "{planted:?} is not caught");
    }
}

#[cfg(feature = "redis")]
#[test]
fn both_stores_go_the_same_ways() {
    go_both_ways(&worlds(), 150, 6);
}

/// Paths from the beginning to states that lead to no new one, about so many of each world, short ones and long
/// ones: together they are the whole tree. Each state is looked at once.
#[cfg(feature = "redis")]
fn go_both_ways(worlds: &[World], states: usize, most: usize) {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    // Keeps the server up between two cases.
    let _server = runtime.block_on(Rig::redis());
    for world in worlds {
        let graph = block_on(map(world, states));
        let paths = graph.leaves(most);
        println!("{}: {} ways", world.name, paths.len());
        for (path, known) in paths {
            let moves = Vec::from_iter(
                world.begins.iter().chain(&path).chain([&Move::Beat(0, 0)]).cloned(),
            );
            let known = world.begins.len() + known;
            runtime.block_on(super::alike::play_whole(true, &world.modes, &moves, known));
        }
    }
}

/// One way through the graph: a store of its own, and all who know of it.
struct Way {
    rig: Rig,
    clients: Clients,
    model: Model,
    planted: Option<PlantedFault>,
    /// Most jobs.
    jobs: usize,
}

impl Way {
    async fn along(world: &World, path: &[Move], planted: Option<PlantedFault>) -> Self {
        let clients = Clients::new(true, &world.modes);
        let model = Model::new(&clients.keys);
        let mut way = Self { rig: Rig::memory(), clients, model, planted, jobs: world.jobs };
        for made in world.begins.iter().chain(path) {
            way.go(made).await;
        }
        way
    }

    /// False if there is nothing yet that the move could be about.
    async fn go(&mut self, made: &Move) -> bool {
        if matches!(made, Move::Enqueue(_)) && self.clients.jobs.len() >= self.jobs {
            return false;
        }
        let Some(call) = self.clients.call(&self.rig, made).await else {
            return false;
        };
        let reply = self.step(call.clone()).await;
        self.model.check(&call, &reply);
        self.clients.hear(&call, &reply);
        true
    }

    /// As the store does it, or as one with a fault would.
    async fn step(&self, mut call: Call) -> Reply {
        let (key, store) = (&self.clients.keys[0], self.rig.embedded());
        if let (Call::Settle(call), Some(PlantedFault::RunTokenIgnored)) = (&mut call, self.planted)
            && let Some(holder) = store.exclusive_holder(key)
        {
            call.token = holder;
        }
        let reply = call.clone().on(&self.rig).await;
        let strikes = match (self.planted, &call) {
            (
                Some(PlantedFault::DueEntryMissing | PlantedFault::QueueOutOfOrder),
                Call::Enqueue(_),
            )
            | (Some(PlantedFault::ClaimedJobDequeued), Call::Claim(_))
            | (Some(PlantedFault::EndedJobCounted), Call::Settle(_))
            | (Some(PlantedFault::LeaseEndsEarly), Call::Pass(_))
            | (Some(PlantedFault::FenceNotAdvanced), _) => self.planted,
            _ => None,
        };
        if let Some(planted) = strikes {
            store.plant_fault(key, planted);
        }
        reply
    }

    /// What holds in every state.
    async fn is_sound(&mut self) {
        self.model.look(&self.rig).await;
        let shard = self.clients.keys[0].shard();
        let part = FsckPart::Shard { shard, locks: Vec::new(), are_all_locks: true };
        let found = self.rig.backend().fsck(part, false).await.unwrap().findings;
        assert!(found.is_empty(), "{found:?}");
    }

    /// Everybody comes to an end from here; or all who hold or wait have crashed, and everything else does.
    async fn ends(mut self, crashed: bool) {
        // Or one would have to wait for the end of its watch.
        self.go(&Move::Beat(0, 0)).await;
        drain(&self.rig, &mut self.clients, &mut self.model, &[crashed; TOKENS]).await;
    }

    fn picture(&self) -> String {
        let told = self.clients.told();
        let own = self.rig.embedded().model_snapshot(&self.clients.keys[0], &told, &self.clients);
        own + &self.clients.picture()
    }
}
