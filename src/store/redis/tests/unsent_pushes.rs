//! A call whose deadline passes before it is sent has not run, and is reported so.

use futures_util::future::join_all;

use super::{SECOND, server_process::ServerProcess, wait_until, wait_until_usable};
use crate::{
    error::ErrorKind,
    queue::{PushError, Queue},
    store::Store,
};

const PUSH_COUNT: u32 = 50_000;

/// Outcomes of pushes.
#[derive(Default)]
struct PushCounts {
    stored: usize,
    /// May have run.
    in_doubt: usize,
    unsent: usize,
}

async fn push_all(queue: &Queue<u32>) -> PushCounts {
    let push = |n| {
        let queue = queue.clone();
        crate::store::spawn(async move { queue.push(&n).await })
    };
    let pushes: Vec<_> = (0..PUSH_COUNT).map(push).collect();
    let mut counts = PushCounts::default();
    for push in join_all(pushes).await {
        match push.expect("no panic") {
            Ok(_) => counts.stored += 1,
            Err(PushError::Store(error)) if error.kind() == ErrorKind::Unavailable => {
                counts.unsent += 1;
            }
            Err(PushError::Store(error)) if error.kind() == ErrorKind::Timeout => {
                counts.in_doubt += 1;
            }
            Err(other) => panic!("{other:?}"),
        }
    }
    println!(
        "figure: of {PUSH_COUNT} pushes {} stored, {} unsent, {} in doubt",
        counts.stored, counts.unsent, counts.in_doubt
    );
    counts
}

/// With the default deadline, which is far too short for so many pushes. The number of pushes in
/// doubt depends on the load of the machine; `batcher::tests::deadlines` checks its bound under a
/// paused clock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pushes_reported_unsent_were_not_stored() {
    let server = ServerProcess::start().await;
    let store = Store::builder(&server.url()).connect().await.expect("the URL is right");
    let queue = store.queue("numbers");
    wait_until_usable(&store).await;
    let counts = push_all(&queue).await;
    // Earlier pushes are run before this one.
    wait_until("another push", async || queue.push(&0).await.is_ok()).await;
    let other = server.store_with_long_timeout().await;
    let stored = other.queue::<u32>("numbers").stats().await.expect("it is there").waiting;
    let stored = usize::try_from(stored).expect("a number") - 1;
    println!("figure: stored {stored}");
    assert!(stored >= counts.stored && stored <= counts.stored + counts.in_doubt, "{stored}");
    assert!(counts.unsent > counts.in_doubt, "most of those without an answer were not sent");
}

/// The server receives no more than its socket buffers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn most_pushes_to_frozen_server_stay_unsent() {
    let server = ServerProcess::start().await;
    let builder = Store::builder(&server.url()).call_timeout(SECOND);
    let store = builder.connect().await.expect("the URL is right");
    let queue = store.queue("numbers");
    wait_until_usable(&store).await;
    server.freeze();
    let counts = push_all(&queue).await;
    server.resume();
    assert_eq!(counts.stored, 0);
    assert_eq!(counts.unsent + counts.in_doubt, PUSH_COUNT as usize);
    assert!(counts.unsent > counts.in_doubt, "{} in doubt", counts.in_doubt);
    wait_until_usable(&store).await;
    let other = server.store_with_long_timeout().await;
    let stats = other.queue::<u32>("numbers").stats().await.expect("it is there");
    assert!(stats.waiting <= counts.in_doubt as u64, "{} stored", stats.waiting);
}
