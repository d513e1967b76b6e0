//! The exhaustive model: every state that a few processes, jobs and runs of one lock can reach in so many steps.
//!
//! Breadth first, from the empty store, over the same moves, clients and model of replies as the random
//! [model](super::model). `tests/model/lock_line.py` explores the protocol of the line by itself, with time that
//! passes for each alone; here it is the store's own steps that are explored, with one clock, and with all that a job
//! can meet: an offer, a claim by a run token, a verdict, backoff, a crash, a lease's end, a worker who comes back too
//! late, cancelling, requests that pass over jobs nobody takes, dead letters that are put back.
//!
//! In each state: what was answered follows from what was answered before (truth), a pass finds nothing wrong (each
//! job in one place, all of it counted, a look that is due), and from there everybody who lives is served and each job
//! ends by itself (drain). States that differ in names alone are one ([`Memory::picture`]). The faults in [`Planted`]
//! are each caught.
//!
//! It is tied to the scripts by the same moves: paths through the graph are driven through memory and Redis, and get
//! the same replies ([alike](super::alike)). `EXPLORE_STATES` says how many states are looked at.
//!
//! [`Memory::picture`]: crate::store::Memory::picture

mod graph;

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
    backend::{Mode, Verdict},
    fsck::FsckPart,
    memory::Planted,
};
use graph::explore;

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

/// What may happen in a state. The worker watches from the beginning, and for as long as anybody looks.
fn alphabet() -> Vec<Move> {
    let retry = Verdict::Retry { delay: time(1), reason: "status 503" };
    let dead = Verdict::Dead { reason: "auth", retention: time(1000) };
    vec![
        Move::Wait(A, 2, 50),
        Move::Wait(B, 2, 50),
        Move::Release(0, 0),
        Move::Leave(A),
        job(false),
        job(true),
        Move::Claim(0, 2),
        Move::Claim(0, 4),
        Move::ClaimAgain(0, 2),
        Move::Settle(0, done(), None),
        Move::Settle(0, done(), Some(2)),
        Move::Settle(0, retry, None),
        Move::Settle(0, dead, None),
        // Of a run before the last one: its worker was paused.
        Move::Settle(1, done(), None),
        Move::Unclaim(0, true),
        Move::Cancel(0),
        Move::Redrive(0),
        Move::Due(0),
        Move::Pass(1),
        Move::Pass(3),
        Move::Beat(0, 0),
    ]
}

/// Before all of them.
fn preamble() -> Vec<Move> {
    vec![Move::Beat(0, 30)]
}

/// How many states a test looks at.
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
    let graph = block_on(explore(budget(1200), None));
    println!("{graph}");
    assert!(graph.states() >= 1000 || graph.whole(), "{graph}");
}

/// The checks above can fail: a store with a fault is found out.
#[test]
fn planted_faults_are_caught() {
    let all = [
        Planted::NotDue,
        Planted::ClaimedOut,
        Planted::CountedOn,
        Planted::FenceStands,
        Planted::LeaseLost,
        Planted::OutOfOrder,
        Planted::NoToken,
    ];
    for planted in all {
        let explored = AssertUnwindSafe(|| block_on(explore(600, Some(planted))));
        let found = catch_unwind(explored).err();
        let found = found.unwrap_or_else(|| panic!("{planted:?} is not caught"));
        let what = found
            .downcast_ref::<String>()
            .map(String::as_str)
            .or(found.downcast_ref::<&str>().copied());
        println!("{planted:?}: {}", what.unwrap_or_default());
    }
}

/// Paths from the beginning to states that lead to no new one: together they are the whole tree.
#[cfg(feature = "redis")]
#[test]
fn both_stores_go_the_same_ways() {
    let graph = block_on(explore(400, None));
    let paths = graph.leaves();
    let step = (paths.len() / 24).max(1);
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    // Keeps the server up between two cases.
    let _server = runtime.block_on(Rig::redis());
    let modes = vec![Mode::Exclusive; TOKENS];
    for path in paths.iter().step_by(step) {
        let moves: Vec<Move> = preamble().into_iter().chain(path.iter().cloned()).collect();
        runtime.block_on(super::alike::play_in_time(true, &modes, &moves));
    }
}

/// One way through the graph: a store of its own, and all who know of it.
struct Way {
    rig: Rig,
    clients: Clients,
    model: Model,
    planted: Option<Planted>,
}

impl Way {
    async fn along(path: &[Move], planted: Option<Planted>) -> Self {
        let clients = Clients::new(true, &[Mode::Exclusive; TOKENS]);
        let model = Model::new(&clients.keys);
        let mut way = Self { rig: Rig::memory(), clients, model, planted };
        for made in preamble().iter().chain(path) {
            way.go(made).await;
        }
        way
    }

    /// False if there is nothing yet that the move could be about.
    async fn go(&mut self, made: &Move) -> bool {
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
        if let (Call::Settle(call), Some(Planted::NoToken)) = (&mut call, self.planted)
            && let Some(holder) = store.holder(key)
        {
            call.me = holder;
        }
        let reply = call.clone().on(&self.rig).await;
        let strikes = match (self.planted, &call) {
            (Some(Planted::NotDue | Planted::OutOfOrder), Call::Enqueue(_))
            | (Some(Planted::ClaimedOut), Call::Claim(_))
            | (Some(Planted::CountedOn), Call::Settle(_))
            | (Some(Planted::LeaseLost), Call::Pass(_))
            | (Some(Planted::FenceStands), _) => self.planted,
            _ => None,
        };
        if let Some(planted) = strikes {
            store.plant(key, planted);
        }
        reply
    }

    /// What holds in every state.
    async fn is_sound(&mut self) {
        self.model.look(&self.rig).await;
        let part = FsckPart::Shard(self.clients.keys[0].shard(), Vec::new());
        let found = self.rig.backend().fsck(part, false).await.unwrap().findings;
        assert!(found.is_empty(), "{found:?}");
    }

    /// Everybody comes to an end from here; or all who hold or wait have crashed, and everything else does.
    async fn ends(mut self, crashed: bool) {
        drain(&self.rig, &mut self.clients, &mut self.model, &[crashed; TOKENS]).await;
    }

    fn picture(&self) -> String {
        let told = self.clients.told();
        let own = self.rig.embedded().picture(&self.clients.keys[0], &told, &self.clients);
        own + &self.clients.picture()
    }
}
