//! A run over there of which nobody hears.

use std::time::Duration;

use bytes::Bytes;
use tokio::{
    net::TcpListener,
    task::JoinHandle,
    time::{Instant, timeout},
};

use super::{super::HttpReplayer, LEASE, head, running, secret};
use crate::{
    defer::{Ran, Replayer as _},
    store::Store,
};

/// Takes every connection, and never says anything.
async fn silent(store: &Store) -> (HttpReplayer, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let addr = listener.local_addr().expect("it is bound");
    let server = tokio::spawn(async move {
        let mut taken = Vec::new();
        while let Ok(connection) = listener.accept().await {
            taken.push(connection);
        }
    });
    (HttpReplayer::new(store, &format!("http://{addr}"), &secret(7)), server)
}

#[tokio::test(start_paused = true)]
async fn a_run_without_an_answer_has_failed_when_its_lock_is_not_said_to_be_held_any_more() {
    let store = Store::memory();
    let (_hold, marker) = running(&store).await;
    let (replayer, server) = silent(&store).await;
    let replayer = replayer.timeout(Duration::from_millis(100));
    let began = Instant::now();
    let ran = replayer.replay(head("/a"), Bytes::new(), marker.clone(), 100).await;
    assert_eq!(ran, Ran::Failed);
    // What it was told of its lock is a little less than the lease.
    assert!(began.elapsed() > LEASE * 9 / 10, "{:?}", began.elapsed());
    assert!(!marker.is_under_way());
    server.abort();
}

#[tokio::test(start_paused = true)]
async fn a_run_that_is_given_up_over_there_is_under_way_still() {
    let store = Store::memory();
    let (_hold, marker) = running(&store).await;
    let (replayer, server) = silent(&store).await;
    let run = replayer.replay(head("/a"), Bytes::new(), marker.clone(), 100);
    assert!(timeout(Duration::from_secs(1), run).await.is_err());
    assert!(!marker.give_up() && marker.is_under_way());
    server.abort();
}
