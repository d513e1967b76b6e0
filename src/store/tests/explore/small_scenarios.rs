//! Worlds that are explored whole: there is no state of theirs that was not looked at.
//!
//! What makes a world small is that its times are as few as the protocol tells apart: a lease, a wait in line and a
//! backoff are as long as each other, and time passes by all of it at once, or by a part after which those who come
//! later outlast the others. Whoever does nothing from a state on has crashed there; all of them may.

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

/// More than any of these worlds has.
pub(super) const MAX_STATES: usize = 20_000;

/// So long everything is that ends.
const DURATION_SECONDS: u64 = 2;

fn wait_for_lock(who: usize) -> ClientOperation {
    ClientOperation::AcquireOrWait(who, DURATION_SECONDS, DURATION_SECONDS)
}

/// Everything that is there ends.
fn expire_everything() -> ClientOperation {
    ClientOperation::AdvanceTime(DURATION_SECONDS + 1)
}

/// Whoever comes now outlasts those who are there.
fn advance_one_second() -> ClientOperation {
    ClientOperation::AdvanceTime(1)
}

fn small_scenario(
    name: &'static str,
    jobs: usize,
    own: impl IntoIterator<Item = ClientOperation>,
) -> ModelScenario {
    let begins = if jobs > 0 { vec![ClientOperation::Heartbeat(0, 1_000_000)] } else { Vec::new() };
    let due = (jobs > 0).then_some(ClientOperation::PollDue(0));
    let modes = vec![LockMode::Exclusive; TOKEN_COUNT];
    ModelScenario {
        name,
        setup: begins,
        operations: own.into_iter().chain(due).collect(),
        max_jobs: jobs,
        modes,
    }
}

/// The same, with a mode for each of the three.
fn scenario_with_modes(
    name: &'static str,
    modes: [LockMode; 3],
    own: impl IntoIterator<Item = ClientOperation>,
) -> ModelScenario {
    let mut world = small_scenario(name, 0, own);
    for (who, mode) in [FIRST_WAITER, SECOND_WAITER, THIRD_WAITER].into_iter().zip(modes) {
        world.modes[who] = mode;
    }
    world
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
    // By one that was told it has the lock before the last one was.
    let late = || ClientOperation::Release(0, 1);
    let retry = || {
        settle_latest_run(
            Settlement::Retry { delay: seconds_and_half(DURATION_SECONDS), reason: "status 503" },
            None,
        )
    };
    let back = || {
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
                late(),
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
        small_scenario(
            "a request that may run again",
            1,
            [
                enqueue_operation(true),
                claim_head(),
                settle_done(),
                retry(),
                back(),
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
            "a process, and a request that nobody takes",
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

/// Three who meet, in any order.
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

fn assert_fully_explored(worlds: &[ModelScenario]) {
    let mut whole = true;
    for world in worlds {
        let began = std::time::Instant::now();
        let graph = super::block_on(super::explore_and_check(world, state_limit(MAX_STATES), None));
        println!("{}: {graph} in {:?}", world.name, began.elapsed());
        whole &= graph.is_complete();
    }
    assert!(whole, "one of them goes on");
}

#[test]
fn small_scenarios_are_fully_explored() {
    assert_fully_explored(&small_scenarios());
}

/// 1,398 states, half a minute on a core: the others of its program run beside it.
#[test]
fn larger_scenario_is_fully_explored() {
    assert_fully_explored(&[larger_scenario()]);
}

/// All ways through them, each with the replies of both stores; `EXPLORE_PATHS` says of how many of each world, if
/// there are more.
#[cfg(feature = "redis")]
fn replay_all_paths(worlds: &[ModelScenario]) {
    let named = std::env::var("EXPLORE_PATHS").ok().and_then(|text| text.parse().ok());
    super::replay_paths_on_both_stores(worlds, MAX_STATES, named.unwrap_or(MAX_STATES));
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
