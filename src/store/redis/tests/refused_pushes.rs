//! Pushes to a server that answers, and will not do it: whether they go alone, under a key, or with others, each is an
//! outage, as any other call's.

use std::time::Duration;

use futures_util::future::join_all;

use super::{NOBODY, proxy::Redirect, refusals::said, server::Server, usable};
use crate::{
    error::{Error, ErrorKind},
    queue::{PushError, PushedTask, Queue},
    store::Store,
};

fn queue(store: &Store) -> Queue<u32> {
    store.queue("numbers")
}

fn fault(outcome: Result<PushedTask, PushError>) -> Error {
    match outcome {
        Err(PushError::Store(error)) => error,
        other => panic!("{other:?}"),
    }
}

async fn refused(code: &str, begin: &[&str], end: &[&str]) {
    let server = Server::start().await;
    let store = server.patient_store().await;
    let queue = queue(&store);
    queue.push(&0).await.expect("the store is there");
    server.command(begin).await;
    let error = fault(queue.push(&1).unique("u").await);
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(code == "READONLY" || said(&error).as_deref() == Some(code), "{error}");
    let window = Duration::from_secs(60);
    let error = fault(queue.push(&1).unique_for("u", window).await);
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    // The first one alone, then the others together.
    for outcome in join_all((0..8).map(|n| queue.push(&n).into_future())).await {
        let error = fault(outcome);
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    }
    server.command(end).await;
    usable(&store).await;
    // `ping` is no write.
    while let Err(error) = queue.push(&1).unique("u").await {
        assert!(matches!(error, PushError::Store(_)), "{error}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let stats = queue.stats().await.expect("it is there");
    assert_eq!(stats.pushed, 2, "nothing of what was refused has been stored");
}

#[tokio::test]
async fn a_push_that_is_refused_is_an_outage() {
    if Server::start().await.min_replicas_bind_scripts().await {
        let set = |value| ["CONFIG", "SET", "min-replicas-to-write", value];
        refused("NOREPLICAS", &set("1"), &set("0")).await;
    }
    let set = |value| ["CONFIG", "SET", "maxmemory", value];
    refused("OOM", &set("1"), &set("0")).await;
    let begin = ["REPLICAOF", "127.0.0.1", NOBODY];
    refused("READONLY", &begin, &["REPLICAOF", "NO", "ONE"]).await;
}

/// It does nothing else, so nobody else finds out for it that its connection leads to what is no master any more.
#[tokio::test]
async fn who_only_pushes_leaves_a_master_that_became_a_replica() {
    let (old, new) = (Server::start().await, Server::start().await);
    let way = Redirect::to(old.port()).await;
    let builder = Store::builder(&format!("redis://127.0.0.1:{}/?ns=test", way.port()));
    let store =
        builder.call_timeout(Duration::from_secs(10)).connect().await.expect("the URL is right");
    queue(&store).push(&1).unique("a").await.expect("the first master is there");
    way.leads_to(new.port());
    old.command(&["REPLICAOF", "127.0.0.1", NOBODY]).await;
    queue(&store).push(&2).unique("b").await.expect("the second master is there");
    let stats = queue(&new.patient_store().await).stats().await.expect("it is there");
    assert_eq!(stats.pushed, 1);
}
