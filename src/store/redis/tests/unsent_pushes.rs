//! Calls whose deadline passes before they are on the wire have not run, and are told so.

use futures_util::future::join_all;

use super::{SECOND, server_process::ServerProcess, wait_until, wait_until_usable};
use crate::{
    error::ErrorKind,
    queue::{PushError, Queue},
    store::Store,
};

const PUSH_COUNT: u32 = 50_000;

/// What pushes came to.
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
    let mut told = PushCounts::default();
    for push in join_all(pushes).await {
        match push.expect("no panic") {
            Ok(_) => told.stored += 1,
            Err(PushError::Store(error)) if error.kind() == ErrorKind::Unavailable => {
                told.unsent += 1;
            }
            Err(PushError::Store(error)) if error.kind() == ErrorKind::Timeout => {
                told.in_doubt += 1;
            }
            Err(other) => panic!("{other:?}"),
        }
    }
    println!(
        "figure: of {PUSH_COUNT} pushes {} stored, {} unsent, {} in doubt",
        told.stored, told.unsent, told.in_doubt
    );
    told
}

/// With the deadline that stores have by default, which is far too short for so many. How many are in doubt depends on how
/// busy the machine is; `combine::tests::deadlines` has the bound under a stopped clock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pushes_reported_unsent_were_not_stored() {
    let server = ServerProcess::start().await;
    let store = Store::builder(&server.url()).connect().await.expect("the URL is right");
    let queue = store.queue("numbers");
    wait_until_usable(&store).await;
    let told = push_all(&queue).await;
    // What is on its way goes before this.
    wait_until("another push", async || queue.push(&0).await.is_ok()).await;
    let other = server.store_with_long_timeout().await;
    let stored = other.queue::<u32>("numbers").stats().await.expect("it is there").waiting;
    let stored = usize::try_from(stored).expect("a number") - 1;
    println!("figure: {stored} are stored");
    assert!(stored >= told.stored && stored <= told.stored + told.in_doubt, "{stored}");
    assert!(told.unsent > told.in_doubt, "most of those without an answer were not sent");
}

/// The server takes no more than its socket does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn most_pushes_to_frozen_server_stay_unsent() {
    let server = ServerProcess::start().await;
    let builder = Store::builder(&server.url()).call_timeout(SECOND);
    let store = builder.connect().await.expect("the URL is right");
    let queue = store.queue("numbers");
    wait_until_usable(&store).await;
    server.freeze();
    let told = push_all(&queue).await;
    server.resume();
    assert_eq!(told.stored, 0);
    assert_eq!(told.unsent + told.in_doubt, PUSH_COUNT as usize);
    assert!(told.unsent > told.in_doubt, "{} in doubt", told.in_doubt);
    wait_until_usable(&store).await;
    let other = server.store_with_long_timeout().await;
    let page = other.queue::<u32>("numbers").stats().await.expect("it is there");
    assert!(page.waiting <= told.in_doubt as u64, "{} stored", page.waiting);
}
