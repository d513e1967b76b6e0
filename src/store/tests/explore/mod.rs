//! The exhaustive model: every state that a few processes, jobs and runs of one lock can reach in
//! so many steps.
//!
//! Each [`ModelScenario`] is a few of them, with what they may do. They are explored breadth first,
//! from the empty store, by the same moves, clients and model of replies as the random
//! [model](super::store_model). `tests/model/lock_queue.py` explores the protocol of the line by
//! itself, with time that passes for each alone; here it is the store's own steps that are
//! explored, with one clock, and with all that a job can meet: an offer, a claim by a run token, a
//! verdict, backoff, a crash, a lease's end, a worker who comes back too late, cancelling, requests
//! that pass over jobs nobody takes, dead letters that are put back.
//!
//! In each state: what was answered follows from what was answered before (truth), a pass finds
//! nothing wrong (each job in one place, all of it counted, a look that is due), and from there
//! everybody who lives is served and each job ends by itself (drain), whether those who hold or
//! wait live on or have all crashed. States that differ in names alone are one
//! ([`MemoryBackend::model_snapshot`]). The faults in [`PlantedFault`] are each caught.
//!
//! Worlds that are [small](small_scenarios) are explored whole each time: of two or three who meet
//! at one lock, with the few moves that make the protocol, and times that are either to come or
//! over. The others go as far as they come in a bounded time.
//!
//! It is tied to the scripts by the same moves: paths through the graph are driven through memory
//! and Redis, and get the same replies ([equivalence](super::backend_equivalence)); of the small
//! worlds all paths, so that every state that memory can reach there was reached by the scripts.
//! What changes nothing there is on no such path, and is made [apart](idle_operations): it changes
//! nothing on the server either. `EXPLORE_STATES` says how many states of each world are looked at;
//! with enough of them (it tells how many there are), each world is explored whole.
//!
//! [`MemoryBackend::model_snapshot`]: crate::store::memory::MemoryBackend::model_snapshot

#[cfg(feature = "redis")]
mod idle_operations;
mod small_scenarios;
mod state_graph;

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::{
    client_operation::{ClientOperation, JobTemplate, seconds_and_half},
    model_drain::drain_model,
    simulated_clients::{SimulatedClients, TOKEN_COUNT},
    store_call::{StoreCall, StoreReply},
    store_harness::{StoreHarness, done_settlement},
    store_model::StoreModel,
};
use crate::store::{
    backend::{LockMode, Settlement},
    fsck::FsckPart,
    memory::PlantedFault,
};
use state_graph::{explore_and_check, explore_unchecked};

/// Two live processes, two kinds of jobs, and whoever comes to claim them.
const FIRST_WAITER: usize = 0;
const SECOND_WAITER: usize = 2;

fn enqueue_operation(again: bool) -> ClientOperation {
    let (max_attempts, skip) = if again { (2, true) } else { (1, false) };
    let plain = (None, None, None, None);
    let (record, delay, deadline, merge) = plain;
    let (lock, bytes, needs_worker) = (0, 7, false);
    ClientOperation::Enqueue(JobTemplate {
        lock,
        bytes,
        retry_after_crash: again,
        max_attempts,
        record,
        delay,
        deadline,
        skip_on_failure: skip,
        needs_worker,
        merge,
    })
}

/// A few who meet at one lock: what has happened, what may happen in every state, and how many jobs there are at most.
#[derive(Clone)]
struct ModelScenario {
    name: &'static str,
    setup: Vec<ClientOperation>,
    operations: Vec<ClientOperation>,
    max_jobs: usize,
    /// That of each token.
    modes: Vec<LockMode>,
}

fn scenario(
    name: &'static str,
    jobs: usize,
    own: impl IntoIterator<Item = ClientOperation>,
) -> ModelScenario {
    // Time passes in all of them, short of a lease and past it.
    let moves = own
        .into_iter()
        .chain([
            ClientOperation::PollDue(0),
            ClientOperation::AdvanceTime(1),
            ClientOperation::AdvanceTime(3),
        ])
        .collect();
    // The worker watches for as long as anybody looks.
    let modes = vec![LockMode::Exclusive; TOKEN_COUNT];
    ModelScenario {
        name,
        setup: vec![ClientOperation::Heartbeat(0, 1_000_000)],
        operations: moves,
        max_jobs: jobs,
        modes,
    }
}

fn settle_latest_run(verdict: Settlement, next: Option<u64>) -> ClientOperation {
    ClientOperation::Settle(0, verdict, next)
}

fn scenarios() -> Vec<ModelScenario> {
    let retry = || Settlement::Retry { delay: seconds_and_half(1), reason: "status 503" };
    let dead = || Settlement::Dead { reason: "auth", retention: seconds_and_half(1000) };
    let back = || Settlement::Postpone { delay: seconds_and_half(0), reason: "busy" };
    // Of a run before the last one: its worker was paused.
    let late = || ClientOperation::Settle(1, done_settlement(), None);
    let (claim, again) =
        (|| ClientOperation::ClaimHead(0, 2), || ClientOperation::RepeatClaim(0, 2));
    let runs = [
        enqueue_operation(true),
        claim(),
        again(),
        settle_latest_run(done_settlement(), None),
        settle_latest_run(retry(), None),
        late(),
    ];
    let (live, leave) = (
        || ClientOperation::AcquireOrWait(FIRST_WAITER, 2, 5),
        ClientOperation::Withdraw(FIRST_WAITER),
    );
    let release = || ClientOperation::Release(0, 0);
    let block = || enqueue_operation(false);
    vec![
        scenario("a run, its crash, and a worker who comes back", 1, runs),
        scenario(
            "two jobs in order",
            2,
            [
                block(),
                enqueue_operation(true),
                claim(),
                settle_latest_run(done_settlement(), Some(2)),
                settle_latest_run(back(), None),
                ClientOperation::Cancel(0),
            ],
        ),
        scenario(
            "a live request and jobs",
            2,
            [
                live(),
                release(),
                leave,
                block(),
                claim(),
                settle_latest_run(done_settlement(), None),
                ClientOperation::Unclaim(0, true),
            ],
        ),
        scenario(
            "two live requests and a job nobody takes",
            1,
            [
                live(),
                ClientOperation::AcquireOrWait(SECOND_WAITER, 2, 5),
                release(),
                enqueue_operation(true),
                claim(),
                settle_latest_run(retry(), None),
                ClientOperation::Heartbeat(0, 0),
                ClientOperation::Heartbeat(0, 1_000_000),
            ],
        ),
        scenario(
            "dead letters",
            2,
            [
                block(),
                claim(),
                settle_latest_run(dead(), None),
                late(),
                ClientOperation::Redrive(0),
                ClientOperation::Cancel(0),
                live(),
                release(),
            ],
        ),
    ]
}

/// How many states of each world a test looks at.
fn state_limit(usual: usize) -> usize {
    let named = std::env::var("EXPLORE_STATES").ok().and_then(|text| text.parse().ok());
    named.unwrap_or(usual)
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(future)
}

#[test]
fn every_reachable_state_is_valid_and_drains() {
    for world in scenarios() {
        let graph = block_on(explore_and_check(&world, state_limit(300), None));
        println!("{}: {graph}", world.name);
        assert!(graph.state_count() >= 200 || graph.is_complete(), "{graph}");
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
        let caught = scenarios().iter().any(|world| {
            let explored =
                AssertUnwindSafe(|| block_on(explore_and_check(world, 300, Some(planted))));
            catch_unwind(explored).is_err()
        });
        assert!(caught, "{planted:?} is not caught");
    }
}

#[cfg(feature = "redis")]
#[test]
fn memory_and_redis_agree_on_explored_paths() {
    replay_paths_on_both_stores(&scenarios(), 150, 6);
}

/// Paths from the beginning to states that lead to no new one, about so many of each world, short ones and long
/// ones: together they are the whole tree. Each state is looked at once.
#[cfg(feature = "redis")]
fn replay_paths_on_both_stores(worlds: &[ModelScenario], states: usize, most: usize) {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    // Keeps the server up between two cases.
    let _server = runtime.block_on(StoreHarness::redis());
    for world in worlds {
        let graph = block_on(explore_unchecked(world, states));
        let paths = graph.leaf_paths(most);
        println!("{}: {} ways", world.name, paths.len());
        for (path, known) in paths {
            let moves = Vec::from_iter(
                world.setup.iter().chain(&path).chain([&ClientOperation::Heartbeat(0, 0)]).cloned(),
            );
            let known = world.setup.len() + known;
            runtime.block_on(super::backend_equivalence::run_all_operations(
                true,
                &world.modes,
                &moves,
                known,
            ));
        }
    }
}

/// One way through the graph: a store of its own, and all who know of it.
struct ScenarioRun {
    harness: StoreHarness,
    clients: SimulatedClients,
    model: StoreModel,
    planted_fault: Option<PlantedFault>,
    /// Most jobs.
    max_jobs: usize,
}

impl ScenarioRun {
    async fn replay(
        world: &ModelScenario,
        path: &[ClientOperation],
        planted: Option<PlantedFault>,
    ) -> Self {
        let clients = SimulatedClients::new(true, &world.modes);
        let model = StoreModel::new(&clients.keys);
        let mut way = Self {
            harness: StoreHarness::memory(),
            clients,
            model,
            planted_fault: planted,
            max_jobs: world.max_jobs,
        };
        for made in world.setup.iter().chain(path) {
            way.apply(made).await;
        }
        way
    }

    /// False if there is nothing yet that the move could be about.
    async fn apply(&mut self, made: &ClientOperation) -> bool {
        if matches!(made, ClientOperation::Enqueue(_)) && self.clients.jobs.len() >= self.max_jobs {
            return false;
        }
        let Some(call) = self.clients.resolve_operation(&self.harness, made).await else {
            return false;
        };
        let reply = self.call_with_fault(call.clone()).await;
        self.model.check_reply(&call, &reply);
        self.clients.observe_call(&call, &reply);
        true
    }

    /// As the store does it, or as one with a fault would.
    async fn call_with_fault(&self, mut call: StoreCall) -> StoreReply {
        let (key, store) = (&self.clients.keys[0], self.harness.memory_backend());
        if let (StoreCall::Settle(call), Some(PlantedFault::RunTokenIgnored)) =
            (&mut call, self.planted_fault)
            && let Some(holder) = store.exclusive_holder(key)
        {
            call.token = holder;
        }
        let reply = call.clone().run_on(&self.harness).await;
        let strikes = match (self.planted_fault, &call) {
            (
                Some(PlantedFault::DueEntryMissing | PlantedFault::QueueOutOfOrder),
                StoreCall::Enqueue(_),
            )
            | (Some(PlantedFault::ClaimedJobDequeued), StoreCall::Claim(_))
            | (Some(PlantedFault::EndedJobCounted), StoreCall::Settle(_))
            | (Some(PlantedFault::LeaseEndsEarly), StoreCall::AdvanceTime(_))
            | (Some(PlantedFault::FenceNotAdvanced), _) => self.planted_fault,
            _ => None,
        };
        if let Some(planted) = strikes {
            store.plant_fault(key, planted);
        }
        reply
    }

    /// What holds in every state.
    async fn check_state(&mut self) {
        self.model.check_store_state(&self.harness).await;
        let shard = self.clients.keys[0].shard();
        let part = FsckPart::Shard { shard, locks: Vec::new(), are_all_locks: true };
        let found = self.harness.backend().fsck(part, false).await.unwrap().findings;
        assert!(found.is_empty(), "{found:?}");
    }

    /// Everybody comes to an end from here; or all who hold or wait have crashed, and everything else does.
    async fn drain_to_end(mut self, crashed: bool) {
        // Or one would have to wait for the end of its watch.
        self.apply(&ClientOperation::Heartbeat(0, 0)).await;
        drain_model(&self.harness, &mut self.clients, &mut self.model, &[crashed; TOKEN_COUNT])
            .await;
    }

    fn state_snapshot(&self) -> String {
        let told = self.clients.resume_sequences();
        let own = self.harness.memory_backend().model_snapshot(
            &self.clients.keys[0],
            &told,
            &self.clients,
        );
        own + &self.clients.state_summary()
    }
}
