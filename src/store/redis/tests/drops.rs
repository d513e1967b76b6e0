//! Futures that are dropped at each of their await points leave nothing behind, on a real server.

use std::time::{Duration, Instant};

use futures_util::future::join_all;

use super::{SECOND, server::Server};
use crate::lock::tests::cancel::{LATE, MORE, WAYS, Way, drop_after, nothing_is_left};

/// Between two polls: less than a round trip takes, about as long, and longer.
const PAUSES: [Duration; 3] =
    [Duration::ZERO, Duration::from_micros(200), Duration::from_millis(2)];

/// After how many polls something was dropped last, before it was done.
async fn dropped_everywhere(
    server: &Server,
    way: Way,
    pause: Duration,
    took: &mut Vec<Duration>,
) -> usize {
    // Far more than it takes: each poll is followed by a pause, and each wait ends.
    for polls in 0..200 {
        let store = server.patient_store().await;
        let done = drop_after(polls, way, &store, pause).await;
        let context = format!("{way:?} after {polls} polls, {pause:?} apart");
        let dropped = Instant::now();
        nothing_is_left(&store, LATE, &context).await;
        took.push(dropped.elapsed());
        assert_eq!(server.left().await, [""; 0], "{context}");
        if done {
            return polls;
        }
    }
    panic!("{way:?} is never done")
}

async fn nothing_is_left_of(way: Way) {
    let server = Server::start().await;
    let (mut most, mut took) = (0, Vec::new());
    for pause in PAUSES {
        most = most.max(dropped_everywhere(&server, way, pause, &mut took).await);
    }
    // One that was done when it was polled for the first time would have been dropped nowhere.
    assert!(most >= 2, "{way:?} never waited");
    // Or its lease has ended, with nobody's help. On a slow machine some are in doubt for as long.
    took.sort_unstable();
    assert!(took[took.len() / 4] < SECOND, "{way:?} is given back late: {took:?}");
    println!("figure: fewest awaits at which {way:?} was dropped {most}");
}

#[tokio::test]
async fn dropped_at_any_await_nothing_is_left() {
    for way in WAYS {
        nothing_is_left_of(way).await;
    }
}

/// Those that take a while: they ask for several locks, again and again, for a record, or for one that readers share.
/// (Replicas need servers of their own: `replicas.rs`.)
#[tokio::test]
async fn dropped_at_any_await_of_what_takes_longer_nothing_is_left() {
    let here = MORE.into_iter().filter(|way| !matches!(way, Way::Replicas));
    // Beside each other: what is in doubt is waited for.
    join_all(here.map(nothing_is_left_of)).await;
}
