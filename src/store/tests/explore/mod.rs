//! Exhaustive model: every state that a few processes, jobs and runs of one lock can reach in a
//! number of operations.
//!
//! Each [`ModelScenario`] has some of them and the operations they may call. The exploration is
//! breadth first from the empty store, with the same operations, clients and reply model as the
//! random [model](super::store_model). `tests/model/lock_queue.py` explores the protocol of the
//! wait queue alone, with a clock per process. Here the store's own operations are explored, with
//! one clock and with everything that can happen to a job: offer, claim by a run token, settlement,
//! backoff, crash, end of a lease, a worker that returns too late, cancellation, requests that
//! overtake a job without a worker, and redriven dead letters.
//!
//! In each state:
//! - each reply follows from the earlier replies (truth)
//! - a store check has no findings: each job is in one index, is counted, and has a scheduled poll
//! - all live waiters are served and all jobs end by themselves (drain), whether the holders and
//!   waiters live or have crashed
//!
//! States that differ only in names are one state ([`MemoryBackend::model_snapshot`]). Each of the
//! faults in [`PlantedFault`] is detected.
//!
//! [Small](small_scenarios) scenarios are explored completely each time. They have two or three
//! processes at one lock, the few operations of the protocol, and times that either lie ahead or
//! have passed. The other scenarios are explored within a time limit.
//!
//! The scripts are covered by the same operations: paths through the graph are replayed on memory
//! and Redis, and must get the same replies ([equivalence](super::backend_equivalence)). For the
//! small scenarios these are all paths, so the scripts reach every state that memory can reach.
//! Operations that change nothing are on no path; they are checked [separately](idle_operations),
//! and must change nothing on the server. `EXPLORE_STATES` is the number of states explored per
//! scenario; the output says how many there are, and a sufficient number explores each scenario
//! completely.
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

/// Two live processes. Jobs of two kinds and a worker join them.
const FIRST_WAITER: usize = 0;
const SECOND_WAITER: usize = 2;

fn enqueue_operation(retry_after_crash: bool) -> ClientOperation {
    let (max_attempts, skip_on_failure) = if retry_after_crash { (2, true) } else { (1, false) };
    let plain = (None, None, None, None);
    let (record, delay, deadline, merge) = plain;
    let (lock, bytes, needs_worker) = (0, 7, false);
    ClientOperation::Enqueue(JobTemplate {
        lock,
        bytes,
        retry_after_crash,
        max_attempts,
        record,
        delay,
        deadline,
        skip_on_failure,
        needs_worker,
        merge,
    })
}

/// Processes and jobs at one lock: the operations before the exploration, the operations tried in
/// every state, and the largest number of jobs.
#[derive(Clone)]
struct ModelScenario {
    name: &'static str,
    setup: Vec<ClientOperation>,
    operations: Vec<ClientOperation>,
    max_jobs: usize,
    /// Mode of each token.
    modes: Vec<LockMode>,
}

fn scenario(
    name: &'static str,
    max_jobs: usize,
    operations: impl IntoIterator<Item = ClientOperation>,
) -> ModelScenario {
    // Every scenario advances time, by less than a lease and by more than one.
    let operations = operations
        .into_iter()
        .chain([
            ClientOperation::PollDue(0),
            ClientOperation::AdvanceTime(1),
            ClientOperation::AdvanceTime(3),
        ])
        .collect();
    // The worker's membership outlasts the exploration.
    let modes = vec![LockMode::Exclusive; TOKEN_COUNT];
    ModelScenario {
        name,
        setup: vec![ClientOperation::Heartbeat(0, 1_000_000)],
        operations,
        max_jobs,
        modes,
    }
}

fn settle_latest_run(settlement: Settlement, next: Option<u64>) -> ClientOperation {
    ClientOperation::Settle(0, settlement, next)
}

fn scenarios() -> Vec<ModelScenario> {
    let retry = || Settlement::Retry { delay: seconds_and_half(1), reason: "status 503" };
    let dead = || Settlement::Dead { reason: "auth", retention: seconds_and_half(1000) };
    let postpone = || Settlement::Postpone { delay: seconds_and_half(0), reason: "busy" };
    // Settles the run before the last one: its worker was paused.
    let late_settle = || ClientOperation::Settle(1, done_settlement(), None);
    let (claim, repeat_claim) =
        (|| ClientOperation::ClaimHead(0, 2), || ClientOperation::RepeatClaim(0, 2));
    let runs = [
        enqueue_operation(true),
        claim(),
        repeat_claim(),
        settle_latest_run(done_settlement(), None),
        settle_latest_run(retry(), None),
        late_settle(),
    ];
    let (acquire_or_wait, withdraw) = (
        || ClientOperation::AcquireOrWait(FIRST_WAITER, 2, 5),
        ClientOperation::Withdraw(FIRST_WAITER),
    );
    let release = || ClientOperation::Release(0, 0);
    let enqueue_blocking = || enqueue_operation(false);
    vec![
        scenario("a run, its crash, and its worker's return", 1, runs),
        scenario(
            "two jobs in order",
            2,
            [
                enqueue_blocking(),
                enqueue_operation(true),
                claim(),
                settle_latest_run(done_settlement(), Some(2)),
                settle_latest_run(postpone(), None),
                ClientOperation::Cancel(0),
            ],
        ),
        scenario(
            "a live request and jobs",
            2,
            [
                acquire_or_wait(),
                release(),
                withdraw,
                enqueue_blocking(),
                claim(),
                settle_latest_run(done_settlement(), None),
                ClientOperation::Unclaim(0, true),
            ],
        ),
        scenario(
            "two live requests and a job without a worker",
            1,
            [
                acquire_or_wait(),
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
                enqueue_blocking(),
                claim(),
                settle_latest_run(dead(), None),
                late_settle(),
                ClientOperation::Redrive(0),
                ClientOperation::Cancel(0),
                acquire_or_wait(),
                release(),
            ],
        ),
    ]
}

/// Number of states that a test explores per scenario.
fn state_limit(default_limit: usize) -> usize {
    let configured = std::env::var("EXPLORE_STATES").ok().and_then(|text| text.parse().ok());
    configured.unwrap_or(default_limit)
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(future)
}

#[test]
fn every_reachable_state_is_valid_and_drains() {
    for scenario in scenarios() {
        let graph = block_on(explore_and_check(&scenario, state_limit(300), None));
        println!("{}: {graph}", scenario.name);
        assert!(graph.state_count() >= 200 || graph.is_complete(), "{graph}");
    }
}

/// Shows that the checks above can fail: each fault is detected in one of the scenarios.
#[test]
fn planted_faults_are_caught() {
    let faults = [
        PlantedFault::DueEntryMissing,
        PlantedFault::ClaimedJobDequeued,
        PlantedFault::EndedJobCounted,
        PlantedFault::FenceNotAdvanced,
        PlantedFault::LeaseEndsEarly,
        PlantedFault::QueueOutOfOrder,
        PlantedFault::RunTokenIgnored,
    ];
    for fault in faults {
        let is_caught = scenarios().iter().any(|scenario| {
            let explored =
                AssertUnwindSafe(|| block_on(explore_and_check(scenario, 300, Some(fault))));
            catch_unwind(explored).is_err()
        });
        assert!(is_caught, "{fault:?} is not caught");
    }
}

#[cfg(feature = "redis")]
#[test]
fn memory_and_redis_agree_on_explored_paths() {
    replay_paths_on_both_stores(&scenarios(), 150, 6);
}

/// Replays the paths to the leaves of the graph, about `max_paths` per scenario, short and long.
/// All of them together cover the tree. Each state is compared once.
#[cfg(feature = "redis")]
fn replay_paths_on_both_stores(scenarios: &[ModelScenario], max_states: usize, max_paths: usize) {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    // Keeps the server running between two cases.
    let _server = runtime.block_on(StoreHarness::redis());
    for scenario in scenarios {
        let graph = block_on(explore_unchecked(scenario, max_states));
        let paths = graph.leaf_paths(max_paths);
        println!("{}: {} ways", scenario.name, paths.len());
        for (path, known_count) in paths {
            let operations = Vec::from_iter(
                scenario
                    .setup
                    .iter()
                    .chain(&path)
                    .chain([&ClientOperation::Heartbeat(0, 0)])
                    .cloned(),
            );
            let known_count = scenario.setup.len() + known_count;
            runtime.block_on(super::backend_equivalence::run_all_operations(
                true,
                &scenario.modes,
                &operations,
                known_count,
            ));
        }
    }
}

/// One path through the graph, with its own store, clients and model.
struct ScenarioRun {
    harness: StoreHarness,
    clients: SimulatedClients,
    model: StoreModel,
    planted_fault: Option<PlantedFault>,
    /// Largest number of jobs.
    max_jobs: usize,
}

impl ScenarioRun {
    async fn replay(
        scenario: &ModelScenario,
        path: &[ClientOperation],
        fault: Option<PlantedFault>,
    ) -> Self {
        let clients = SimulatedClients::new(true, &scenario.modes);
        let model = StoreModel::new(&clients.keys);
        let mut run = Self {
            harness: StoreHarness::memory(),
            clients,
            model,
            planted_fault: fault,
            max_jobs: scenario.max_jobs,
        };
        for operation in scenario.setup.iter().chain(path) {
            run.apply(operation).await;
        }
        run
    }

    /// Applies an operation. Returns false if it has no target yet.
    async fn apply(&mut self, operation: &ClientOperation) -> bool {
        if matches!(operation, ClientOperation::Enqueue(_))
            && self.clients.jobs.len() >= self.max_jobs
        {
            return false;
        }
        let Some(call) = self.clients.resolve_operation(&self.harness, operation).await else {
            return false;
        };
        let reply = self.call_with_fault(call.clone()).await;
        self.model.check_reply(&call, &reply);
        self.clients.observe_call(&call, &reply);
        true
    }

    /// Calls the store, with the planted fault if there is one.
    async fn call_with_fault(&self, mut call: StoreCall) -> StoreReply {
        let (key, store) = (&self.clients.keys[0], self.harness.memory_backend());
        if let (StoreCall::Settle(call), Some(PlantedFault::RunTokenIgnored)) =
            (&mut call, self.planted_fault)
            && let Some(holder) = store.exclusive_holder(key)
        {
            call.token = holder;
        }
        let reply = call.clone().run_on(&self.harness).await;
        let active_fault = match (self.planted_fault, &call) {
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
        if let Some(fault) = active_fault {
            store.plant_fault(key, fault);
        }
        reply
    }

    /// Checks the invariants of every state.
    async fn check_state(&mut self) {
        self.model.check_store_state(&self.harness).await;
        let shard = self.clients.keys[0].shard();
        let part = FsckPart::Shard { shard, locks: Vec::new(), are_all_locks: true };
        let findings = self.harness.backend().fsck(part, false).await.unwrap().findings;
        assert!(findings.is_empty(), "{findings:?}");
    }

    /// Checks that all waiters are served and all jobs end from here; with `crashed`, all holders
    /// and waiters have crashed.
    async fn drain_to_end(mut self, crashed: bool) {
        // Otherwise the jobs would have to wait for the end of the worker's watch.
        self.apply(&ClientOperation::Heartbeat(0, 0)).await;
        drain_model(&self.harness, &mut self.clients, &mut self.model, &[crashed; TOKEN_COUNT])
            .await;
    }

    fn state_snapshot(&self) -> String {
        let sequences = self.clients.resume_sequences();
        let store_snapshot = self.harness.memory_backend().model_snapshot(
            &self.clients.keys[0],
            &sequences,
            &self.clients,
        );
        store_snapshot + &self.clients.state_summary()
    }
}
