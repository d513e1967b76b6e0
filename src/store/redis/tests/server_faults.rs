//! Servers that are killed, frozen or full, and connections that break.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use tokio::net::TcpListener;

use super::{
    super::{
        call_fault::classify_outcome,
        connection_lanes::ConnectionLanes,
        target::{ConnectionTarget, RedisTlsSettings, StoreUrl},
    },
    SECOND, acquire_with_retries,
    server_process::ServerProcess,
    wait_until_usable,
};
use crate::{
    error::ErrorKind,
    lock::{AcquireError, ReleaseStatus},
    store::{Store, key_names::KeyNames},
};

/// Far above the deadline of a call, far below the retries of client libraries.
const MAX_CALL_TIME: Duration = Duration::from_secs(4);

/// Listener that counts connections and never answers.
struct SilentListener {
    connection_count: Arc<AtomicUsize>,
    task: tokio::task::JoinHandle<()>,
}

impl SilentListener {
    async fn listen_on(port: u16) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", port)).await.expect("the port is free");
        let connection_count = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&connection_count);
        let task = crate::store::spawn(async move {
            let mut open = Vec::new();
            while let Ok((connection, _)) = listener.accept().await {
                count.fetch_add(1, Ordering::SeqCst);
                open.push(connection);
            }
        });
        Self { connection_count, task }
    }

    fn connection_count(&self) -> usize {
        self.connection_count.load(Ordering::SeqCst)
    }

    /// The port is free when this returns.
    async fn close(self) {
        self.task.abort();
        let _ = self.task.await;
    }
}

async fn acquire_fault_kind(store: &Store) -> ErrorKind {
    let started = Instant::now();
    let outcome = store.lock("x").acquire().await;
    let elapsed = started.elapsed();
    println!("figure: longest refused call {} ms", elapsed.as_millis());
    assert!(elapsed < MAX_CALL_TIME, "{elapsed:?}");
    match outcome {
        Err(AcquireError::Fault(error)) => error.kind(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn killed_server_opens_breaker_and_empty_restart_is_used() {
    let mut server = ServerProcess::start().await;
    let store = server.connect_store().await;
    wait_until_usable(&store).await;
    let before = acquire_with_retries(&store.lock("x")).await;
    server.kill();
    for _ in 0..10 {
        acquire_fault_kind(&store).await;
    }
    // The breaker is open: calls use no connection. The only connections are its probes, ten a
    // second.
    let listener = SilentListener::listen_on(server.port()).await;
    let started = Instant::now();
    for _ in 0..500 {
        assert_eq!(acquire_fault_kind(&store).await, ErrorKind::Unavailable);
    }
    let (connections, elapsed) = (listener.connection_count(), started.elapsed());
    assert!(
        connections as u128 <= 2 + elapsed.as_millis() / 100,
        "{connections} connections in {elapsed:?}"
    );
    listener.close().await;
    server.restart().await;
    wait_until_usable(&store).await;
    let after = acquire_with_retries(&store.lock("x")).await;
    assert!(after.fence() > before.fence(), "fences grow over a loss of data");
    assert_eq!(before.release().await, ReleaseStatus::AlreadyLost);
    assert_eq!(after.release().await, ReleaseStatus::Released);
}

#[tokio::test]
async fn frozen_server_costs_calls_one_deadline_at_most() {
    let server = ServerProcess::start().await;
    let store = server.connect_store().await;
    drop(acquire_with_retries(&store.lock("x")).await);
    server.freeze();
    let mut kinds = Vec::new();
    for _ in 0..8 {
        kinds.push(acquire_fault_kind(&store).await);
    }
    server.resume();
    assert_eq!(kinds[0], ErrorKind::Timeout);
    assert_eq!(kinds[7], ErrorKind::Unavailable, "{kinds:?}");
    wait_until_usable(&store).await;
    // Locks that the lost calls may have acquired are released, well before their leases end.
    let started = Instant::now();
    let guard = store.lock("x").wait(9 * SECOND).acquire().await.unwrap();
    let elapsed = started.elapsed();
    println!("figure: free again after the freeze {} ms", elapsed.as_millis());
    assert!(elapsed < 8 * SECOND, "{elapsed:?}");
    guard.release().await;
}

#[tokio::test]
async fn killed_connections_are_replaced_without_errors() {
    let server = ServerProcess::start().await;
    let store = server.store_with_long_timeout().await;
    for _ in 0..10 {
        let guard = store.lock("x").acquire().await.unwrap();
        server.command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]).await;
        assert_eq!(guard.release().await, ReleaseStatus::Released);
    }
}

#[tokio::test]
async fn invalid_urls_are_rejected_without_showing_the_password() {
    for url in ["", "nonsense", "redis://:sesame@", "http://x:sesame@h/", "redis://h/?ns=a b"] {
        let error = Store::connect(url).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config, "{url}");
        assert!(!format!("{error} {error:?}").contains("sesame"), "{error:?}");
    }
}

fn connection_lanes(server: &ServerProcess, deadline: Duration) -> ConnectionLanes {
    let address = StoreUrl::parse(&server.url()).unwrap();
    let target = ConnectionTarget::new(&address, &RedisTlsSettings::default(), deadline).unwrap();
    ConnectionLanes::new(&target, &KeyNames::new("test"), 1, deadline, true)
}

/// The connection may be half open: whatever limit ends a call, there was no answer.
#[tokio::test]
async fn client_library_timeout_does_not_count_as_answer() {
    let server = ServerProcess::start().await;
    let socket = connection_lanes(&server, 10 * SECOND).connection(0).await.unwrap();
    for _ in 0..3 {
        assert!(!socket.is_dead());
        let timeout = std::io::Error::from(std::io::ErrorKind::TimedOut);
        assert!(classify_outcome::<()>(&socket, Err(timeout.into())).is_err());
    }
    assert!(socket.is_dead());
}

#[tokio::test]
async fn past_config_error_is_not_reported_for_later_outage() {
    let server = ServerProcess::start().await;
    let set_shards = async |n| server.command(&["HSET", "lg:1:test:{0}:meta", "shards", n]).await;
    let lanes = connection_lanes(&server, SECOND);
    set_shards("32").await;
    let kind = async || lanes.connection(0).await.err().map(|error| error.kind());
    super::wait_until("the error to be reported", async || kind().await == Some(ErrorKind::Config))
        .await;
    set_shards("2064").await;
    super::wait_until("it is well", async || kind().await.is_none()).await;
    lanes.connection(0).await.unwrap().mark_dead();
    server.freeze();
    let outage_kind = kind().await;
    server.resume();
    assert_eq!(outage_kind, Some(ErrorKind::Unavailable));
}

/// Calls that free memory are accepted, also on a connection that is made while memory is full.
#[tokio::test]
async fn full_server_accepts_release_over_new_connection() {
    let server = ServerProcess::start().await;
    let builder = Store::builder(&server.url()).call_timeout(5 * SECOND).connections_per_node(1);
    let store = builder.connect().await.expect("the URL is right");
    let held = store.lock("x").lease(60 * SECOND).acquire().await.expect("it is free");
    server.command(&["CONFIG", "SET", "maxmemory", "1"]).await;
    for _ in 0..10 {
        store.lock("y").acquire().await.expect_err("the memory is full");
    }
    // The connection of the store is lost.
    server.command(&["CLIENT", "KILL", "TYPE", "normal"]).await;
    assert_eq!(held.release().await, ReleaseStatus::Released);
}
