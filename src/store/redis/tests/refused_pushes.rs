//! Pushes to a server that answers and refuses writes. Each is an outage: alone, with a unique key,
//! and in a batch.

use std::time::Duration;

use futures_util::future::join_all;

use super::{
    UNUSED_PORT, lossy_proxy::RedirectProxy, server_process::ServerProcess,
    server_refusals::server_error_code, wait_until_usable,
};
use crate::{
    error::{Error, ErrorKind},
    queue::{PushError, PushedTask, Queue},
    store::Store,
};

fn numbers_queue(store: &Store) -> Queue<u32> {
    store.queue("numbers")
}

fn store_error(outcome: Result<PushedTask, PushError>) -> Error {
    match outcome {
        Err(PushError::Store(error)) => error,
        other => panic!("{other:?}"),
    }
}

async fn assert_pushes_refused(code: &str, begin_fault: &[&str], end_fault: &[&str]) {
    let server = ServerProcess::start().await;
    let store = server.store_with_long_timeout().await;
    let queue = numbers_queue(&store);
    queue.push(&0).await.expect("the store is there");
    server.command(begin_fault).await;
    let error = store_error(queue.push(&1).unique("u").await);
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(code == "READONLY" || server_error_code(&error).as_deref() == Some(code), "{error}");
    let window = Duration::from_secs(60);
    let error = store_error(queue.push(&1).unique_for("u", window).await);
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    // The first push alone, then the others in a batch.
    for outcome in join_all((0..8).map(|n| queue.push(&n).into_future())).await {
        let error = store_error(outcome);
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    }
    server.command(end_fault).await;
    wait_until_usable(&store).await;
    // `ping` is no write.
    while let Err(error) = queue.push(&1).unique("u").await {
        assert!(matches!(error, PushError::Store(_)), "{error}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let stats = queue.stats().await.expect("it is there");
    assert_eq!(stats.pushed, 2, "no refused push is stored");
}

#[tokio::test]
async fn refused_push_reports_outage() {
    if ServerProcess::start().await.applies_min_replicas_to_scripts().await {
        let set = |value| ["CONFIG", "SET", "min-replicas-to-write", value];
        assert_pushes_refused("NOREPLICAS", &set("1"), &set("0")).await;
    }
    let set = |value| ["CONFIG", "SET", "maxmemory", value];
    assert_pushes_refused("OOM", &set("1"), &set("0")).await;
    let begin = ["REPLICAOF", "127.0.0.1", UNUSED_PORT];
    assert_pushes_refused("READONLY", &begin, &["REPLICAOF", "NO", "ONE"]).await;
}

/// The process makes no other call that would detect the demotion.
#[tokio::test]
async fn push_only_process_leaves_demoted_master() {
    let (old, new) = (ServerProcess::start().await, ServerProcess::start().await);
    let proxy = RedirectProxy::to(old.port()).await;
    let builder = Store::builder(&format!("redis://127.0.0.1:{}/?ns=test", proxy.port()));
    let store =
        builder.call_timeout(Duration::from_secs(10)).connect().await.expect("the URL is right");
    numbers_queue(&store).push(&1).unique("a").await.expect("the first master is there");
    proxy.set_target(new.port());
    old.command(&["REPLICAOF", "127.0.0.1", UNUSED_PORT]).await;
    numbers_queue(&store).push(&2).unique("b").await.expect("the second master is there");
    let stats =
        numbers_queue(&new.store_with_long_timeout().await).stats().await.expect("it is there");
    assert_eq!(stats.pushed, 1);
}
