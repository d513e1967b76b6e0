//! Remote runs without an answer.

use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
    task::JoinHandle,
    time::{Instant, timeout},
};

use super::{
    super::HttpReplayer, LEASE, enqueue_job, request_head, secret, start_run, start_run_with_lease,
};
use crate::{
    defer::{ReplayOutcome, Replayer as _},
    store::Store,
};

/// Spawns a server that accepts every connection and never answers.
async fn spawn_silent_server(store: &Store) -> (HttpReplayer, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let addr = listener.local_addr().expect("it is bound");
    let server = crate::store::spawn(async move {
        let mut accepted = Vec::new();
        while let Ok(connection) = listener.accept().await {
            accepted.push(connection);
        }
    });
    (HttpReplayer::new(store, &format!("http://{addr}"), &secret(7)), server)
}

#[tokio::test(start_paused = true)]
async fn unanswered_run_fails_when_its_lease_ends() {
    let store = Store::memory();
    let (_hold, marker) = start_run(&store).await;
    let (replayer, server) = spawn_silent_server(&store).await;
    let replayer = replayer.timeout(Duration::from_millis(100));
    let began = Instant::now();
    let ran = replayer.replay(request_head("/a"), Bytes::new(), marker.clone(), 100).await;
    assert_eq!(ran, ReplayOutcome::Failed);
    // The validity time that is sent with the run is a little less than the lease.
    assert!(began.elapsed() > LEASE * 9 / 10, "{:?}", began.elapsed());
    assert!(!marker.is_in_flight());
    server.abort();
}

#[tokio::test(start_paused = true)]
async fn abandoned_remote_run_stays_in_flight() {
    let store = Store::memory();
    let (_hold, marker) = start_run(&store).await;
    let (replayer, server) = spawn_silent_server(&store).await;
    let run = replayer.replay(request_head("/a"), Bytes::new(), marker.clone(), 100);
    assert!(timeout(Duration::from_secs(1), run).await.is_err());
    assert!(!marker.try_abandon() && marker.is_in_flight());
    server.abort();
}

/// Spawns a server that answers the first request of a connection and closes it at the next one,
/// like a keep-alive timeout that races with a request.
async fn spawn_closing_server() -> String {
    const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let addr = listener.local_addr().expect("it is bound");
    crate::store::spawn(async move {
        while let Ok((mut connection, _)) = listener.accept().await {
            crate::store::spawn(async move {
                let mut buf = [0; 4096];
                // The request has no body and fits into one packet.
                let _ = connection.read(&mut buf).await?;
                connection.write_all(ANSWER).await?;
                connection.read(&mut buf).await
            });
        }
    });
    format!("http://{addr}")
}

#[tokio::test]
async fn run_avoids_a_connection_that_its_server_may_close() {
    let store = Store::memory();
    let replayer = HttpReplayer::new(&store, &spawn_closing_server().await, &secret(7));
    let (_hold, marker) = start_run(&store).await;
    for _ in 0..2 {
        let ran = replayer.replay(request_head("/a"), Bytes::new(), marker.clone(), 100).await;
        assert!(matches!(ran, ReplayOutcome::Answered(_)), "{ran:?}");
        // Lets the connection return to its pool, if it does.
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        tokio::time::pause();
        tokio::time::advance(Duration::from_secs(2)).await;
        tokio::time::resume();
    }
}

/// Uses the real clock because of the sockets; hence the short lease.
#[tokio::test]
async fn gateway_status_does_not_end_a_run_but_handler_status_does() {
    let answers = [
        ("504 Gateway Timeout", false),
        ("502 Bad Gateway", false),
        ("504 Gateway Timeout\r\nlockgate-replay: 1", true),
        ("503 Service Unavailable", false),
        ("520 Unknown Error", false),
        ("503 Service Unavailable\r\nlockgate-replay: 1", true),
        ("500 Internal Server Error", true),
        ("429 Too Many Requests", true),
    ];
    let answered = answers.map(async |(answer, is_over)| {
        let (store, lease) = (Store::memory(), Duration::from_secs(2));
        let id = enqueue_job(&store).await;
        let (_hold, marker) = start_run_with_lease(&store, &id, lease).await;
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let addr = listener.local_addr().expect("it is bound");
        let server = crate::store::spawn(async move {
            let (mut connection, _) = listener.accept().await.expect("it comes");
            let _ = connection.read(&mut [0; 4096]).await;
            let answer = format!("HTTP/1.1 {answer}\r\ncontent-length: 0\r\n\r\n");
            connection.write_all(answer.as_bytes()).await.expect("it is read");
            connection
        });
        let replayer = HttpReplayer::new(&store, &format!("http://{addr}"), &secret(7));
        let until = marker.hold().valid_until();
        let run = replayer.replay(request_head("/a"), Bytes::new(), marker.clone(), 100);
        let ran = run.await;
        assert!(matches!(ran, ReplayOutcome::Answered(_)), "{answer}: {ran:?}");
        assert!(!marker.is_in_flight());
        // How early an ended run returns depends on the machine and is not checked.
        assert!(is_over || Instant::now() >= until, "{answer}");
        drop(server);
    });
    join_all(answered).await;
}
