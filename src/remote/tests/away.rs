//! A run over there of which nobody hears.

use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
    task::JoinHandle,
    time::{Instant, timeout},
};

use super::{super::HttpReplayer, LEASE, deferred, head, run_for, running, secret};
use crate::{
    defer::{ReplayOutcome, Replayer as _},
    store::Store,
};

/// Takes every connection, and never says anything.
async fn silent(store: &Store) -> (HttpReplayer, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let addr = listener.local_addr().expect("it is bound");
    let server = crate::store::spawn(async move {
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
    assert_eq!(ran, ReplayOutcome::Failed);
    // What it was told of its lock is a little less than the lease.
    assert!(began.elapsed() > LEASE * 9 / 10, "{:?}", began.elapsed());
    assert!(!marker.is_in_flight());
    server.abort();
}

#[tokio::test(start_paused = true)]
async fn a_run_that_is_given_up_over_there_is_under_way_still() {
    let store = Store::memory();
    let (_hold, marker) = running(&store).await;
    let (replayer, server) = silent(&store).await;
    let run = replayer.replay(head("/a"), Bytes::new(), marker.clone(), 100);
    assert!(timeout(Duration::from_secs(1), run).await.is_err());
    assert!(!marker.try_abandon() && marker.is_in_flight());
    server.abort();
}

/// Answers the first request of each connection, and closes it when there is another one, as if they had met on their way.
async fn closing() -> String {
    const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let addr = listener.local_addr().expect("it is bound");
    crate::store::spawn(async move {
        while let Ok((mut connection, _)) = listener.accept().await {
            crate::store::spawn(async move {
                let mut buf = [0; 4096];
                // It has no body: it is one packet.
                let _ = connection.read(&mut buf).await?;
                connection.write_all(ANSWER).await?;
                connection.read(&mut buf).await
            });
        }
    });
    format!("http://{addr}")
}

#[tokio::test]
async fn a_run_does_not_go_by_a_connection_that_its_server_may_close() {
    let store = Store::memory();
    let replayer = HttpReplayer::new(&store, &closing().await, &secret(7));
    let (_hold, marker) = running(&store).await;
    for _ in 0..2 {
        let ran = replayer.replay(head("/a"), Bytes::new(), marker.clone(), 100).await;
        assert!(matches!(ran, ReplayOutcome::Answered(_)), "{ran:?}");
        // Until the connection is back in its pool, if it gets there.
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        tokio::time::pause();
        tokio::time::advance(Duration::from_secs(2)).await;
        tokio::time::resume();
    }
}

/// By the clock on the wall: sockets are asked. The lease is short for that.
#[tokio::test]
async fn a_gateways_answer_is_not_the_end_of_a_run_and_a_handlers_is() {
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
        let id = deferred(&store).await;
        let (_hold, marker) = run_for(&store, &id, lease).await;
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
        let run = replayer.replay(head("/a"), Bytes::new(), marker.clone(), 100);
        let ran = run.await;
        assert!(matches!(ran, ReplayOutcome::Answered(_)), "{answer}: {ran:?}");
        assert!(!marker.is_in_flight());
        // That it is over before the end of its lock is a matter of this machine's time, and is not asked.
        assert!(is_over || Instant::now() >= until, "{answer}");
        drop(server);
    });
    join_all(answered).await;
}
