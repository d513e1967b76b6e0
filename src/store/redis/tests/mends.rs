//! Outages without storms: what a store that is away, or odd, costs the server and those who ask.

use std::time::Instant;

use super::{
    GIVEN_BACK, NOBODY, SECOND, granted,
    proxy::Proxy,
    server::{Server, free_port},
    usable,
};
use crate::{
    error::ErrorKind,
    key::Key,
    lock::AcquireError,
    store::{Store, key_names::KeyNames},
};

async fn kind(store: &Store, name: &str) -> ErrorKind {
    match store.lock(name).acquire().await {
        Err(AcquireError::Fault(error)) => error.kind(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_call_that_may_have_run_says_so_although_no_connection_can_be_made() {
    let server = Server::start().await;
    let proxy = Proxy::to(server.port()).await;
    let store = proxy.patient_store().await;
    drop(store.lock("x").acquire().await.unwrap());
    assert!(store.shutdown(GIVEN_BACK).await);
    proxy.cut_for_good();
    assert_eq!(kind(&store, "x").await, ErrorKind::Timeout);
    assert_eq!(proxy.cuts_left(), 0);
}

#[tokio::test]
async fn a_key_of_another_type_is_one_locks_fault() {
    let server = Server::start().await;
    // What is sent again and again is sent until the deadline, which is far away.
    let store = server.patient_store().await;
    let holders = KeyNames::new("test").holders(&Key::custom("odd"));
    server.command(&["SET", &holders, "by hand"]).await;
    // Each lane has its connection: the scripts of a handshake are not counted below.
    for n in 0..16 {
        store.lock(format!("other{n}").as_str()).acquire().await.unwrap().release().await;
    }
    let before = server.info("stats", "total_connections_received").await;
    for n in 0..20 {
        let before = server.calls().await;
        assert_eq!(kind(&store, "odd").await, ErrorKind::Protocol);
        let calls = server.calls().await - before;
        // The one that asks, and those that give back what it may have taken; and what earlier ones may have taken is
        // tried to be given back once more now and then.
        assert!(calls <= 4 * (n + 1), "sent again: {calls} calls");
        // Neither the breaker nor the connection suffers.
        let guard = store.lock("other").acquire().await.unwrap();
        guard.release().await;
    }
    // Two of each round are the test's own.
    let made = server.info("stats", "total_connections_received").await - before - 2 * 2 * 20;
    assert!(made <= 3, "{made} connections");
}

#[tokio::test]
async fn what_was_refused_at_once_is_not_given_back_later() {
    let mut server = Server::start().await;
    let store = server.store().await;
    server.kill();
    // By calls that take nothing, so that nothing of this outage is in doubt.
    for _ in 0..10 {
        store.ping().await.unwrap_err();
    }
    for _ in 0..500 {
        assert_eq!(kind(&store, "x").await, ErrorKind::Unavailable);
    }
    server.restart().await;
    usable(&store).await;
    assert!(store.shutdown(GIVEN_BACK).await);
    let calls = server.info("commandstats", "cmdstat_evalsha:calls").await
        + server.info("commandstats", "cmdstat_eval:calls").await;
    assert!(calls < 10, "{calls} calls nobody waits for");
}

/// A place to connect to at which nobody ever listened is the same.
#[tokio::test]
async fn what_never_had_a_connection_is_not_given_back_later() {
    let store =
        Store::connect(&format!("redis://127.0.0.1:{}/?ns=test", free_port())).await.unwrap();
    for _ in 0..500 {
        assert_eq!(kind(&store, "x").await, ErrorKind::Unavailable);
    }
    assert!(store.shutdown(GIVEN_BACK).await);
}

#[tokio::test]
async fn a_connection_that_falls_silent_while_it_is_made_is_replaced() {
    let server = Server::start().await;
    let proxy = Proxy::to(server.port()).await;
    // The first attempts of both lanes.
    proxy.mute(3);
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
                Err(AcquireError::Fault(_)) => usable(&store).await,
                Err(other) => panic!("{other}"),
            }
        }
    }
    assert!(proxy.muted_all());
}

/// Answers pings and refuses to write: for as long as it does, it is away.
#[tokio::test]
async fn a_replica_does_not_make_the_breaker_flap() {
    let server = Server::start().await;
    let store = server.store().await;
    drop(granted(&store.lock("x")).await);
    server.command(&["REPLICAOF", "127.0.0.1", NOBODY]).await;
    while kind(&store, "x").await != ErrorKind::Unavailable {}
    for _ in 0..10 {
        kind(&store, "x").await;
    }
    let before = server.info("stats", "total_connections_received").await;
    let started = Instant::now();
    while started.elapsed() < SECOND {
        assert_eq!(kind(&store, "x").await, ErrorKind::Unavailable);
        tokio::task::yield_now().await;
    }
    let made = server.info("stats", "total_connections_received").await - before;
    let took = started.elapsed();
    println!("figure: connections made in a second to a replica {made}");
    // Ten probes a second and nothing else.
    assert!(u128::from(made) <= 5 + took.as_millis() / 100, "{made} connections in {took:?}");
    server.command(&["REPLICAOF", "NO", "ONE"]).await;
    usable(&store).await;
    drop(granted(&store.lock("y")).await);
}
