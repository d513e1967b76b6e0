//! Scenarios that are explored completely.
//!
//! A scenario is small because it has as few times as the protocol can tell apart: leases, waits
//! and backoffs have the same length. Time advances past all of them, or by a part, after which new
//! arrivals outlast the earlier ones. A process that does nothing more has crashed; all of them
//! may.

use super::{
    ClientOperation, FIRST_WAITER, ModelScenario, SECOND_WAITER, enqueue_operation,
    settle_latest_run, state_limit,
};
use crate::store::{
    backend::{LockMode, Settlement},
    tests::{
        client_operation::seconds_and_half, simulated_clients::TOKEN_COUNT,
        store_harness::done_settlement,
    },
};

/// A third process.
const THIRD_WAITER: usize = 4;

/// More states than any of these scenarios has.
pub(super) const MAX_STATES: usize = 20_000;

/// Length of every lease, wait and backoff.
const DURATION_SECONDS: u64 = 2;

fn wait_for_lock(waiter: usize) -> ClientOperation {
    ClientOperation::AcquireOrWait(waiter, DURATION_SECONDS, DURATION_SECONDS)
}

/// Advances time past every deadline.
fn expire_everything() -> ClientOperation {
    ClientOperation::AdvanceTime(DURATION_SECONDS + 1)
}

/// Advances time so that new arrivals outlast the earlier ones.
fn advance_one_second() -> ClientOperation {
    ClientOperation::AdvanceTime(1)
}

fn small_scenario(
    name: &'static str,
    max_jobs: usize,
    operations: impl IntoIterator<Item = ClientOperation>,
) -> ModelScenario {
    let setup =
        if max_jobs > 0 { vec![ClientOperation::Heartbeat(0, 1_000_000)] } else { Vec::new() };
    let due = (max_jobs > 0).then_some(ClientOperation::PollDue(0));
    let modes = vec![LockMode::Exclusive; TOKEN_COUNT];
    ModelScenario {
        name,
        setup,
        operations: operations.into_iter().chain(due).collect(),
        max_jobs,
        modes,
    }
}

/// Like `small_scenario`, with a mode for each of the three processes.
fn scenario_with_modes(
    name: &'static str,
    modes: [LockMode; 3],
    operations: impl IntoIterator<Item = ClientOperation>,
) -> ModelScenario {
    let mut scenario = small_scenario(name, 0, operations);
    for (waiter, mode) in [FIRST_WAITER, SECOND_WAITER, THIRD_WAITER].into_iter().zip(modes) {
        scenario.modes[waiter] = mode;
    }
    scenario
}

fn release_latest() -> ClientOperation {
    ClientOperation::Release(0, 0)
}

fn claim_head() -> ClientOperation {
    ClientOperation::ClaimHead(0, DURATION_SECONDS)
}

fn settle_done() -> ClientOperation {
    settle_latest_run(done_settlement(), None)
}

pub(super) fn small_scenarios() -> Vec<ModelScenario> {
    // A release by the holder before the last one.
    let late_release = || ClientOperation::Release(0, 1);
    let retry = || {
        settle_latest_run(
            Settlement::Retry { delay: seconds_and_half(DURATION_SECONDS), reason: "status 503" },
            None,
        )
    };
    let postpone = || {
        settle_latest_run(Settlement::Postpone { delay: seconds_and_half(0), reason: "busy" }, None)
    };
    vec![
        small_scenario(
            "two processes",
            0,
            [
                wait_for_lock(FIRST_WAITER),
                wait_for_lock(SECOND_WAITER),
                release_latest(),
                late_release(),
                ClientOperation::Withdraw(FIRST_WAITER),
                advance_one_second(),
                expire_everything(),
            ],
        ),
        small_scenario(
            "three processes",
            0,
            [
                wait_for_lock(FIRST_WAITER),
                wait_for_lock(SECOND_WAITER),
                wait_for_lock(THIRD_WAITER),
                release_latest(),
                expire_everything(),
            ],
        ),
        small_scenario(
            "two processes that try and one that waits",
            0,
            [
                ClientOperation::TryAcquire(FIRST_WAITER, DURATION_SECONDS),
                ClientOperation::TryAcquire(SECOND_WAITER, DURATION_SECONDS),
                wait_for_lock(THIRD_WAITER),
                release_latest(),
                advance_one_second(),
                expire_everything(),
            ],
        ),
        small_scenario(
            "a process that passes on and asks, and another",
            0,
            [
                ClientOperation::ReleaseAndReacquire(
                    FIRST_WAITER,
                    DURATION_SECONDS,
                    DURATION_SECONDS,
                ),
                ClientOperation::RefreshGrant(FIRST_WAITER),
                wait_for_lock(FIRST_WAITER),
                wait_for_lock(SECOND_WAITER),
                release_latest(),
                expire_everything(),
            ],
        ),
        scenario_with_modes(
            "two readers and a writer",
            [LockMode::Shared, LockMode::Shared, LockMode::Exclusive],
            [
                wait_for_lock(FIRST_WAITER),
                wait_for_lock(SECOND_WAITER),
                wait_for_lock(THIRD_WAITER),
                release_latest(),
                expire_everything(),
            ],
        ),
        scenario_with_modes(
            "two permits for three",
            [LockMode::Permits(2); 3],
            [
                wait_for_lock(FIRST_WAITER),
                wait_for_lock(SECOND_WAITER),
                wait_for_lock(THIRD_WAITER),
                release_latest(),
                expire_everything(),
            ],
        ),
        scenario_with_modes(
            "two readers and a writer whose lock an operator takes",
            [LockMode::Shared, LockMode::Shared, LockMode::Exclusive],
            [
                wait_for_lock(FIRST_WAITER),
                wait_for_lock(SECOND_WAITER),
                wait_for_lock(THIRD_WAITER),
                ClientOperation::ForceRelease(0),
                expire_everything(),
            ],
        ),
        small_scenario(
            "a process and a request whose lock an operator takes",
            1,
            [
                wait_for_lock(FIRST_WAITER),
                enqueue_operation(true),
                claim_head(),
                settle_done(),
                ClientOperation::ForceRelease(0),
                expire_everything(),
            ],
        ),
        small_scenario(
            "a request that may run again",
            1,
            [
                enqueue_operation(true),
                claim_head(),
                settle_done(),
                retry(),
                postpone(),
                ClientOperation::Unclaim(0, true),
                advance_one_second(),
                expire_everything(),
            ],
        ),
        small_scenario(
            "a request that may not",
            1,
            [
                enqueue_operation(false),
                claim_head(),
                settle_done(),
                retry(),
                ClientOperation::Cancel(0),
                ClientOperation::Redrive(0),
                advance_one_second(),
                expire_everything(),
            ],
        ),
        small_scenario(
            "two requests in order",
            2,
            [
                enqueue_operation(true),
                claim_head(),
                settle_done(),
                settle_latest_run(done_settlement(), Some(DURATION_SECONDS)),
                expire_everything(),
            ],
        ),
        small_scenario(
            "a process and a request",
            1,
            [
                wait_for_lock(FIRST_WAITER),
                release_latest(),
                enqueue_operation(true),
                claim_head(),
                settle_done(),
                retry(),
                expire_everything(),
            ],
        ),
        small_scenario(
            "a process, and a job without a worker",
            1,
            [
                wait_for_lock(FIRST_WAITER),
                release_latest(),
                enqueue_operation(true),
                ClientOperation::Heartbeat(0, 0),
                ClientOperation::Heartbeat(0, 1_000_000),
                claim_head(),
                settle_done(),
                expire_everything(),
            ],
        ),
    ]
}

/// Two processes and a job, in any order.
pub(super) fn larger_scenario() -> ModelScenario {
    small_scenario(
        "two processes and a request",
        1,
        [
            wait_for_lock(FIRST_WAITER),
            wait_for_lock(SECOND_WAITER),
            release_latest(),
            enqueue_operation(true),
            claim_head(),
            settle_done(),
            expire_everything(),
        ],
    )
}

fn assert_fully_explored(scenarios: &[ModelScenario]) {
    let mut is_complete = true;
    for scenario in scenarios {
        let started_at = std::time::Instant::now();
        let graph =
            super::block_on(super::explore_and_check(scenario, state_limit(MAX_STATES), None));
        println!("{}: {graph} in {:?}", scenario.name, started_at.elapsed());
        is_complete &= graph.is_complete();
    }
    assert!(is_complete, "one of them goes on");
}

#[test]
fn small_scenarios_are_fully_explored() {
    assert_fully_explored(&small_scenarios());
}

/// 1,398 states, half a minute on one core, in parallel with the other tests.
#[test]
fn larger_scenario_is_fully_explored() {
    assert_fully_explored(&[larger_scenario()]);
}

/// Replays all paths and compares the replies of both stores; `EXPLORE_PATHS` limits the number of
/// paths per scenario.
#[cfg(feature = "redis")]
fn replay_all_paths(scenarios: &[ModelScenario]) {
    let configured = std::env::var("EXPLORE_PATHS").ok().and_then(|text| text.parse().ok());
    super::replay_paths_on_both_stores(scenarios, MAX_STATES, configured.unwrap_or(MAX_STATES));
}

#[cfg(feature = "redis")]
#[test]
fn memory_and_redis_agree_on_small_scenarios() {
    replay_all_paths(&small_scenarios());
}

#[cfg(feature = "redis")]
#[test]
fn memory_and_redis_agree_on_larger_scenario() {
    replay_all_paths(&[larger_scenario()]);
}
