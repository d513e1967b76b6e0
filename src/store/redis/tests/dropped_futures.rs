//! Futures that are dropped at each of their await points leave nothing behind, on a real server.

use std::time::{Duration, Instant};

use futures_util::future::join_all;

use super::{SECOND, server_process::ServerProcess};
use crate::lock::tests::cancellation::{
    DropScenario, FAST_SCENARIOS, REAL_CLOCK_UNDO_TIMEOUT, SLOW_SCENARIOS, assert_nothing_left,
    drop_after,
};

/// Pauses between two polls: shorter than a round trip, about as long, and longer.
const POLL_PAUSES: [Duration; 3] =
    [Duration::ZERO, Duration::from_micros(200), Duration::from_millis(2)];

/// Drops the future after 0, 1, 2 and more polls, until it completes. Returns the number of polls
/// that it takes.
async fn drop_after_every_poll(
    server: &ServerProcess,
    scenario: DropScenario,
    pause: Duration,
    undo_times: &mut Vec<Duration>,
) -> usize {
    // Far more polls than needed: each is followed by a pause, and each wait ends.
    for polls in 0..200 {
        let store = server.store_with_long_timeout().await;
        let done = drop_after(polls, scenario, &store, pause).await;
        let context = format!("{scenario:?} after {polls} polls, {pause:?} apart");
        let dropped = Instant::now();
        assert_nothing_left(&store, REAL_CLOCK_UNDO_TIMEOUT, &context).await;
        undo_times.push(dropped.elapsed());
        assert_eq!(server.remaining_keys().await, [""; 0], "{context}");
        if done {
            return polls;
        }
    }
    panic!("{scenario:?} is never done")
}

async fn assert_drops_leave_nothing(scenario: DropScenario) {
    let server = ServerProcess::start().await;
    let (mut max_polls, mut undo_times) = (0, Vec::new());
    for pause in POLL_PAUSES {
        max_polls =
            max_polls.max(drop_after_every_poll(&server, scenario, pause, &mut undo_times).await);
    }
    // A future that is ready at its first poll would have no await point to test.
    assert!(max_polls >= 2, "{scenario:?} never waited");
    // Otherwise, leases have expired instead of being released. On a slow machine, some calls are
    // in doubt for that long.
    undo_times.sort_unstable();
    assert!(
        undo_times[undo_times.len() / 4] < SECOND,
        "{scenario:?} is undone late: {undo_times:?}"
    );
    println!("figure: fewest awaits at which {scenario:?} was dropped {max_polls}");
}

#[tokio::test]
async fn dropped_at_any_await_leaves_nothing() {
    for scenario in FAST_SCENARIOS {
        assert_drops_leave_nothing(scenario).await;
    }
}

/// Scenarios that take a while: lock sets, retries, idempotency records and shared locks. Replicas
/// need servers of their own, see `replica_grants.rs`.
#[tokio::test]
async fn dropped_at_any_await_of_long_operation_leaves_nothing() {
    let scenarios = SLOW_SCENARIOS
        .into_iter()
        .filter(|scenario| !matches!(scenario, DropScenario::AwaitReplicas));
    // Concurrently, since each waits for calls in doubt.
    join_all(scenarios.map(assert_drops_leave_nothing)).await;
}
