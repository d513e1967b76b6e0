//! Worlds that are explored whole: there is no state of theirs that was not looked at.
//!
//! What makes a world small is that its times are as few as the protocol tells apart: a lease, a wait in line and a
//! backoff are as long as each other, and time passes by all of it at once, or by a part after which those who come
//! later outlast the others. Whoever does nothing from a state on has crashed there; all of them may.

use super::{A, B, Move, World, budget, job, settle};
use crate::store::{
    backend::{LockMode, Settlement},
    tests::{clients::TOKENS, moves::time, rig::done},
};

/// A third process.
const C: usize = 4;

/// More than any of these worlds has.
pub(super) const MOST: usize = 20_000;

/// So long everything is that ends.
const SPAN: u64 = 2;

fn waits(who: usize) -> Move {
    Move::Wait(who, SPAN, SPAN)
}

/// Everything that is there ends.
fn all_ends() -> Move {
    Move::Pass(SPAN + 1)
}

/// Whoever comes now outlasts those who are there.
fn some_time() -> Move {
    Move::Pass(1)
}

fn small(name: &'static str, jobs: usize, own: impl IntoIterator<Item = Move>) -> World {
    let begins = if jobs > 0 { vec![Move::Beat(0, 1_000_000)] } else { Vec::new() };
    let due = (jobs > 0).then_some(Move::Due(0));
    let modes = vec![LockMode::Exclusive; TOKENS];
    World { name, begins, moves: own.into_iter().chain(due).collect(), jobs, modes }
}

/// The same, with a mode for each of the three.
fn shared(name: &'static str, modes: [LockMode; 3], own: impl IntoIterator<Item = Move>) -> World {
    let mut world = small(name, 0, own);
    for (who, mode) in [A, B, C].into_iter().zip(modes) {
        world.modes[who] = mode;
    }
    world
}

fn release() -> Move {
    Move::Release(0, 0)
}

fn claim() -> Move {
    Move::Claim(0, SPAN)
}

fn well() -> Move {
    settle(done(), None)
}

pub(super) fn worlds() -> Vec<World> {
    // By one that was told it has the lock before the last one was.
    let late = || Move::Release(0, 1);
    let retry = || settle(Settlement::Retry { delay: time(SPAN), reason: "status 503" }, None);
    let back = || settle(Settlement::Postpone { delay: time(0), reason: "busy" }, None);
    vec![
        small(
            "two processes",
            0,
            [waits(A), waits(B), release(), late(), Move::Leave(A), some_time(), all_ends()],
        ),
        small("three processes", 0, [waits(A), waits(B), waits(C), release(), all_ends()]),
        small(
            "two processes that try and one that waits",
            0,
            [Move::Try(A, SPAN), Move::Try(B, SPAN), waits(C), release(), some_time(), all_ends()],
        ),
        small(
            "a process that passes on and asks, and another",
            0,
            [
                Move::HandOn(A, SPAN, SPAN),
                Move::Still(A),
                waits(A),
                waits(B),
                release(),
                all_ends(),
            ],
        ),
        shared(
            "two readers and a writer",
            [LockMode::Shared, LockMode::Shared, LockMode::Exclusive],
            [waits(A), waits(B), waits(C), release(), all_ends()],
        ),
        shared(
            "two permits for three",
            [LockMode::Permits(2); 3],
            [waits(A), waits(B), waits(C), release(), all_ends()],
        ),
        small(
            "a request that may run again",
            1,
            [
                job(true),
                claim(),
                well(),
                retry(),
                back(),
                Move::Unclaim(0, true),
                some_time(),
                all_ends(),
            ],
        ),
        small(
            "a request that may not",
            1,
            [
                job(false),
                claim(),
                well(),
                retry(),
                Move::Cancel(0),
                Move::Redrive(0),
                some_time(),
                all_ends(),
            ],
        ),
        small(
            "two requests in order",
            2,
            [job(true), claim(), well(), settle(done(), Some(SPAN)), all_ends()],
        ),
        small(
            "a process and a request",
            1,
            [waits(A), release(), job(true), claim(), well(), retry(), all_ends()],
        ),
        small(
            "a process, and a request that nobody takes",
            1,
            [
                waits(A),
                release(),
                job(true),
                Move::Beat(0, 0),
                Move::Beat(0, 1_000_000),
                claim(),
                well(),
                all_ends(),
            ],
        ),
    ]
}

/// Three who meet, in any order.
pub(super) fn larger() -> World {
    small(
        "two processes and a request",
        1,
        [waits(A), waits(B), release(), job(true), claim(), well(), all_ends()],
    )
}

fn explored_whole(worlds: &[World]) {
    let mut whole = true;
    for world in worlds {
        let began = std::time::Instant::now();
        let graph = super::block_on(super::explore(world, budget(MOST), None));
        println!("{}: {graph} in {:?}", world.name, began.elapsed());
        whole &= graph.whole();
    }
    assert!(whole, "one of them goes on");
}

#[test]
fn small_worlds_are_explored_whole() {
    explored_whole(&worlds());
}

/// 1,398 states, half a minute on a core: the others of its program run beside it.
#[test]
fn a_larger_world_is_explored_whole() {
    explored_whole(&[larger()]);
}

/// All ways through them, each with the replies of both stores; `EXPLORE_PATHS` says of how many of each world, if
/// there are more.
#[cfg(feature = "redis")]
fn gone(worlds: &[World]) {
    let named = std::env::var("EXPLORE_PATHS").ok().and_then(|text| text.parse().ok());
    super::go_both_ways(worlds, MOST, named.unwrap_or(MOST));
}

#[cfg(feature = "redis")]
#[test]
fn both_stores_go_the_ways_of_small_worlds() {
    gone(&worlds());
}

#[cfg(feature = "redis")]
#[test]
fn both_stores_go_the_ways_of_a_larger_world() {
    gone(&[larger()]);
}
