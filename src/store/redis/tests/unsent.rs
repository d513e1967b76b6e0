//! Calls whose deadline passes before they are on the wire have not run, and are told so.

use futures_util::future::join_all;

use super::{SECOND, eventually, server::Server, usable};
use crate::{
    error::ErrorKind,
    queue::{PushError, Queue},
    store::Store,
};

const PUSHES: u32 = 50_000;

/// What pushes came to.
#[derive(Default)]
struct Told {
    stored: usize,
    /// May have run.
    doubtful: usize,
    unsent: usize,
}

async fn push_all(queue: &Queue<u32>) -> Told {
    let push = |n| {
        let queue = queue.clone();
        crate::store::spawn(async move { queue.push(&n).await })
    };
    let pushes: Vec<_> = (0..PUSHES).map(push).collect();
    let mut told = Told::default();
    for push in join_all(pushes).await {
        match push.expect("no panic") {
            Ok(_) => told.stored += 1,
            Err(PushError::Store(error)) if error.kind() == ErrorKind::Unavailable => {
                told.unsent += 1;
            }
            Err(PushError::Store(error)) if error.kind() == ErrorKind::Timeout => {
                told.doubtful += 1;
            }
            Err(other) => panic!("{other:?}"),
        }
    }
    println!(
        "figure: of {PUSHES} pushes {} stored, {} unsent, {} in doubt",
        told.stored, told.unsent, told.doubtful
    );
    told
}

/// With the deadline that stores have by default, which is far too short for so many. How many are in doubt depends on how
/// busy the machine is; `combine::tests::deadlines` has the bound under a stopped clock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_pushes_that_are_made_at_once_none_has_run_that_says_it_was_not_sent() {
    let server = Server::start().await;
    let store = Store::builder(&server.url()).connect().await.expect("the URL is right");
    let queue = store.queue("numbers");
    usable(&store).await;
    let told = push_all(&queue).await;
    // What is on its way goes before this.
    eventually("another push", async || queue.push(&0).await.is_ok()).await;
    let other = server.patient_store().await;
    let stored = other.queue::<u32>("numbers").stats().await.expect("it is there").waiting;
    let stored = usize::try_from(stored).expect("a number") - 1;
    println!("figure: {stored} are stored");
    assert!(stored >= told.stored && stored <= told.stored + told.doubtful, "{stored}");
    assert!(told.unsent > told.doubtful, "most of those without an answer were not sent");
}

/// The server takes no more than its socket does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn behind_a_server_that_stands_still_calls_wait_unsent() {
    let server = Server::start().await;
    let builder = Store::builder(&server.url()).call_timeout(SECOND);
    let store = builder.connect().await.expect("the URL is right");
    let queue = store.queue("numbers");
    usable(&store).await;
    server.freeze();
    let told = push_all(&queue).await;
    server.thaw();
    assert_eq!(told.stored, 0);
    assert_eq!(told.unsent + told.doubtful, PUSHES as usize);
    assert!(told.unsent > told.doubtful, "{} in doubt", told.doubtful);
    usable(&store).await;
    let other = server.patient_store().await;
    let page = other.queue::<u32>("numbers").stats().await.expect("it is there");
    assert!(page.waiting <= told.doubtful as u64, "{} stored", page.waiting);
}
