//! Cost of outages for the server and for callers: an unavailable store or a corrupt key causes no
//! storm of calls.

use std::time::Instant;

use super::{
    RELEASE_LIMIT, SECOND, UNUSED_PORT, acquire_with_retries,
    lossy_proxy::LossyProxy,
    server_process::{ServerProcess, free_port},
    wait_until_usable,
};
use crate::{
    error::ErrorKind,
    key::Key,
    lock::AcquireError,
    store::{Store, key_names::KeyNames},
};

async fn acquire_fault_kind(store: &Store, name: &str) -> ErrorKind {
    match store.lock(name).acquire().await {
        Err(AcquireError::Fault(error)) => error.kind(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn lost_reply_without_reconnect_reports_timeout() {
    let server = ServerProcess::start().await;
    let proxy = LossyProxy::to(server.port()).await;
    let store = proxy.store_with_long_timeout().await;
    drop(store.lock("x").acquire().await.unwrap());
    assert!(store.shutdown(RELEASE_LIMIT).await);
    proxy.lose_reply_and_refuse_connections();
    assert_eq!(acquire_fault_kind(&store, "x").await, ErrorKind::Timeout);
    assert_eq!(proxy.pending_cuts(), 0);
}

#[tokio::test]
async fn key_of_wrong_type_fails_only_its_own_lock() {
    let server = ServerProcess::start().await;
    // A call that is repeated is repeated until the deadline, which is far away.
    let store = server.store_with_long_timeout().await;
    let holders = KeyNames::new("test").holders(&Key::custom("odd"));
    server.command(&["SET", &holders, "by hand"]).await;
    // Connects each lane, so that scripts of handshakes are not counted below.
    for n in 0..16 {
        store.lock(format!("other{n}").as_str()).acquire().await.unwrap().release().await;
    }
    let before = server.info_number("stats", "total_connections_received").await;
    for n in 0..20 {
        let before = server.count_script_calls().await;
        assert_eq!(acquire_fault_kind(&store, "odd").await, ErrorKind::Protocol);
        let calls = server.count_script_calls().await - before;
        // The acquire and its undos. Undos of earlier acquires are repeated now and then.
        assert!(calls <= 4 * (n + 1), "sent again: {calls} calls");
        // Neither the breaker nor the connection is affected.
        let guard = store.lock("other").acquire().await.unwrap();
        guard.release().await;
    }
    // Two connections of each round are the test's own.
    let new_connections =
        server.info_number("stats", "total_connections_received").await - before - 2 * 2 * 20;
    assert!(new_connections <= 3, "{new_connections} connections");
}

#[tokio::test]
async fn calls_rejected_by_open_breaker_are_not_undone_later() {
    let mut server = ServerProcess::start().await;
    let store = server.connect_store().await;
    server.kill();
    // Pings take nothing, so no call of this outage is in doubt.
    for _ in 0..10 {
        store.ping().await.unwrap_err();
    }
    for _ in 0..500 {
        assert_eq!(acquire_fault_kind(&store, "x").await, ErrorKind::Unavailable);
    }
    server.restart().await;
    wait_until_usable(&store).await;
    assert!(store.shutdown(RELEASE_LIMIT).await);
    let calls = server.info_number("commandstats", "cmdstat_evalsha:calls").await
        + server.info_number("commandstats", "cmdstat_eval:calls").await;
    assert!(calls < 10, "{calls} calls of dropped callers");
}

/// The same holds at an address that never had a listener.
#[tokio::test]
async fn calls_without_connection_are_not_undone_later() {
    let store =
        Store::connect(&format!("redis://127.0.0.1:{}/?ns=test", free_port())).await.unwrap();
    for _ in 0..500 {
        assert_eq!(acquire_fault_kind(&store, "x").await, ErrorKind::Unavailable);
    }
    assert!(store.shutdown(RELEASE_LIMIT).await);
}

#[tokio::test]
async fn connection_silent_during_handshake_is_replaced() {
    let server = ServerProcess::start().await;
    let proxy = LossyProxy::to(server.port()).await;
    // The first connection attempts of both lanes.
    proxy.mute_next_connections(3);
    let store = Store::connect(&proxy.url()).await.unwrap();
    let started = Instant::now();
    let mut held = Vec::new();
    for i in 0..8 {
        let name = format!("{i}");
        loop {
            assert!(started.elapsed() < 10 * SECOND, "a lane is dead");
            match store.lock(name.as_str()).acquire().await {
                Ok(guard) => break held.push(guard),
                Err(AcquireError::Busy(_)) => {}
                Err(AcquireError::Fault(_)) => wait_until_usable(&store).await,
                Err(other) => panic!("{other}"),
            }
        }
    }
    assert!(proxy.has_muted_all());
}

/// A replica answers pings and refuses writes. It counts as unavailable.
#[tokio::test]
async fn replica_keeps_breaker_open() {
    let server = ServerProcess::start().await;
    let store = server.connect_store().await;
    drop(acquire_with_retries(&store.lock("x")).await);
    server.command(&["REPLICAOF", "127.0.0.1", UNUSED_PORT]).await;
    while acquire_fault_kind(&store, "x").await != ErrorKind::Unavailable {}
    for _ in 0..10 {
        acquire_fault_kind(&store, "x").await;
    }
    let before = server.info_number("stats", "total_connections_received").await;
    let started = Instant::now();
    while started.elapsed() < SECOND {
        assert_eq!(acquire_fault_kind(&store, "x").await, ErrorKind::Unavailable);
        tokio::task::yield_now().await;
    }
    let new_connections = server.info_number("stats", "total_connections_received").await - before;
    let elapsed = started.elapsed();
    println!("figure: connections made in a second to a replica {new_connections}");
    // Ten probes a second, and no other connections.
    assert!(
        u128::from(new_connections) <= 5 + elapsed.as_millis() / 100,
        "{new_connections} connections in {elapsed:?}"
    );
    server.command(&["REPLICAOF", "NO", "ONE"]).await;
    wait_until_usable(&store).await;
    drop(acquire_with_retries(&store.lock("y")).await);
}
