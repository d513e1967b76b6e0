//! Futures that are dropped at each of their await points leave nothing behind, on a real server.

use std::time::{Duration, Instant};

use futures_util::future::join_all;

use super::{SECOND, server_process::ServerProcess};
use crate::lock::tests::cancellation::{
    DropScenario, FAST_SCENARIOS, REAL_CLOCK_UNDO_TIMEOUT, SLOW_SCENARIOS, assert_nothing_left,
    drop_after,
};

/// Between two polls: less than a round trip takes, about as long, and longer.
const POLL_PAUSES: [Duration; 3] =
    [Duration::ZERO, Duration::from_micros(200), Duration::from_millis(2)];

/// After how many polls something was dropped last, before it was done.
async fn drop_after_every_poll(
    server: &ServerProcess,
    way: DropScenario,
    pause: Duration,
    took: &mut Vec<Duration>,
) -> usize {
    // Far more than it takes: each poll is followed by a pause, and each wait ends.
    for polls in 0..200 {
        let store = server.store_with_long_timeout().await;
        let done = drop_after(polls, way, &store, pause).await;
        let context = format!("{way:?} after {polls} polls, {pause:?} apart");
        let dropped = Instant::now();
        assert_nothing_left(&store, REAL_CLOCK_UNDO_TIMEOUT, &context).await;
        took.push(dropped.elapsed());
        assert_eq!(server.remaining_keys().await, [""; 0], "{context}");
        if done {
            return polls;
        }
    }
    panic!("{way:?} is never done")
}

async fn assert_drops_leave_nothing(way: DropScenario) {
    let server = ServerProcess::start().await;
    let (mut most, mut took) = (0, Vec::new());
    for pause in POLL_PAUSES {
        most = most.max(drop_after_every_poll(&server, way, pause, &mut took).await);
    }
    // One that was done when it was polled for the first time would have been dropped nowhere.
    assert!(most >= 2, "{way:?} never waited");
    // Or its lease has ended, with nobody's help. On a slow machine some are in doubt for as long.
    took.sort_unstable();
    assert!(took[took.len() / 4] < SECOND, "{way:?} is given back late: {took:?}");
    println!("figure: fewest awaits at which {way:?} was dropped {most}");
}

#[tokio::test]
async fn dropped_at_any_await_leaves_nothing() {
    for way in FAST_SCENARIOS {
        assert_drops_leave_nothing(way).await;
    }
}

/// Those that take a while: they ask for several locks, again and again, for a record, or for one that readers share.
/// (Replicas need servers of their own: `replica_grants.rs`.)
#[tokio::test]
async fn dropped_at_any_await_of_long_operation_leaves_nothing() {
    let here = SLOW_SCENARIOS.into_iter().filter(|way| !matches!(way, DropScenario::AwaitReplicas));
    // Beside each other: what is in doubt is waited for.
    join_all(here.map(assert_drops_leave_nothing)).await;
}
