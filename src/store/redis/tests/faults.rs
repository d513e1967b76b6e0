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
    SECOND, granted,
    server::Server,
    usable,
};
use crate::{
    error::ErrorKind,
    lock::{AcquireError, ReleaseStatus},
    store::{Store, key_names::KeyNames},
};

/// Far above the deadline of 250 ms, far below any library's own retries.
const SOON: Duration = Duration::from_secs(4);

/// Counts who connects, and tells them nothing.
struct Silent {
    came: Arc<AtomicUsize>,
    task: tokio::task::JoinHandle<()>,
}

impl Silent {
    async fn on(port: u16) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", port)).await.expect("its server is away");
        let came = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&came);
        let task = crate::store::spawn(async move {
            let mut open = Vec::new();
            while let Ok((connection, _)) = listener.accept().await {
                count.fetch_add(1, Ordering::SeqCst);
                open.push(connection);
            }
        });
        Self { came, task }
    }

    fn connections(&self) -> usize {
        self.came.load(Ordering::SeqCst)
    }

    /// The port is free when this returns.
    async fn close(self) {
        self.task.abort();
        let _ = self.task.await;
    }
}

async fn fault(store: &Store) -> ErrorKind {
    let started = Instant::now();
    let outcome = store.lock("x").acquire().await;
    let took = started.elapsed();
    println!("figure: longest refused call {} ms", took.as_millis());
    assert!(took < SOON, "{took:?}");
    match outcome {
        Err(AcquireError::Fault(error)) => error.kind(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_killed_server_is_noticed_and_an_empty_one_is_taken_back() {
    let mut server = Server::start().await;
    let store = server.store().await;
    usable(&store).await;
    let before = granted(&store.lock("x")).await;
    server.kill();
    for _ in 0..10 {
        fault(&store).await;
    }
    // The breaker is open: calls touch no socket any more. What comes are its probes, ten a second.
    let silent = Silent::on(server.port()).await;
    let started = Instant::now();
    for _ in 0..500 {
        assert_eq!(fault(&store).await, ErrorKind::Unavailable);
    }
    let (came, took) = (silent.connections(), started.elapsed());
    assert!(came as u128 <= 2 + took.as_millis() / 100, "{came} connections in {took:?}");
    silent.close().await;
    server.restart().await;
    usable(&store).await;
    let after = granted(&store.lock("x")).await;
    assert!(after.fence() > before.fence(), "fences grow over a loss of data");
    assert_eq!(before.release().await, ReleaseStatus::AlreadyLost);
    assert_eq!(after.release().await, ReleaseStatus::Released);
}

#[tokio::test]
async fn a_frozen_server_costs_a_deadline_and_not_more() {
    let server = Server::start().await;
    let store = server.store().await;
    drop(granted(&store.lock("x")).await);
    server.freeze();
    let mut kinds = Vec::new();
    for _ in 0..8 {
        kinds.push(fault(&store).await);
    }
    server.thaw();
    assert_eq!(kinds[0], ErrorKind::Timeout);
    assert_eq!(kinds[7], ErrorKind::Unavailable, "{kinds:?}");
    usable(&store).await;
    // What the lost calls may have taken is given back, well before a lease is over.
    let started = Instant::now();
    let guard = store.lock("x").wait(9 * SECOND).acquire().await.unwrap();
    let took = started.elapsed();
    println!("figure: free again after the freeze {} ms", took.as_millis());
    assert!(took < 8 * SECOND, "{took:?}");
    guard.release().await;
}

#[tokio::test]
async fn killed_connections_are_replaced_without_an_error() {
    let server = Server::start().await;
    let store = server.patient_store().await;
    for _ in 0..10 {
        let guard = store.lock("x").acquire().await.unwrap();
        server.command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]).await;
        assert_eq!(guard.release().await, ReleaseStatus::Released);
    }
}

#[tokio::test]
async fn bad_urls_are_refused_with_a_sentence_that_keeps_the_password() {
    for url in ["", "nonsense", "redis://:sesame@", "http://x:sesame@h/", "redis://h/?ns=a b"] {
        let error = Store::connect(url).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config, "{url}");
        assert!(!format!("{error} {error:?}").contains("sesame"), "{error:?}");
    }
}

fn lanes(server: &Server, deadline: Duration) -> ConnectionLanes {
    let address = StoreUrl::parse(&server.url()).unwrap();
    let target = ConnectionTarget::new(&address, &RedisTlsSettings::default(), deadline).unwrap();
    ConnectionLanes::new(&target, &KeyNames::new("test"), 1, deadline)
}

/// It may be half open: whatever limit ends a call, nobody has answered.
#[tokio::test]
async fn a_timeout_of_the_library_is_no_answer() {
    let server = Server::start().await;
    let socket = lanes(&server, 10 * SECOND).connection(0).await.unwrap();
    for _ in 0..3 {
        assert!(!socket.is_dead());
        let late = std::io::Error::from(std::io::ErrorKind::TimedOut);
        assert!(classify_outcome::<()>(&socket, Err(late.into())).is_err());
    }
    assert!(socket.is_dead());
}

#[tokio::test]
async fn what_was_wrong_once_is_not_the_reason_of_a_later_outage() {
    let server = Server::start().await;
    let shards = async |n| server.command(&["HSET", "lg:1:test:{0}:meta", "shards", n]).await;
    let lanes = lanes(&server, SECOND);
    shards("32").await;
    let kind = async || lanes.connection(0).await.err().map(|error| error.kind());
    super::eventually("it is told", async || kind().await == Some(ErrorKind::Config)).await;
    shards("2064").await;
    super::eventually("it is well", async || kind().await.is_none()).await;
    lanes.connection(0).await.unwrap().mark_dead();
    server.freeze();
    let told = kind().await;
    server.thaw();
    assert_eq!(told, Some(ErrorKind::Unavailable));
}

/// What makes room is let through, also on a connection that is made when there is none.
#[tokio::test]
async fn a_server_without_room_takes_what_makes_room() {
    let server = Server::start().await;
    let builder = Store::builder(&server.url()).call_timeout(5 * SECOND).connections_per_node(1);
    let store = builder.connect().await.expect("the URL is right");
    let held = store.lock("x").lease(60 * SECOND).acquire().await.expect("it is free");
    server.command(&["CONFIG", "SET", "maxmemory", "1"]).await;
    for _ in 0..10 {
        store.lock("y").acquire().await.expect_err("there is no room");
    }
    // Its connection is lost.
    server.command(&["CLIENT", "KILL", "TYPE", "normal"]).await;
    assert_eq!(held.release().await, ReleaseStatus::Released);
}
