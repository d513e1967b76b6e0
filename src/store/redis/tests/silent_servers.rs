//! Servers that accept connections and send nothing, or half of a reply. Connects and calls end
//! within their deadline.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpSocket, TcpStream},
};

use super::{SECOND, acquire_with_retries, server_process::ServerProcess, wait_until_usable};
use crate::{
    error::ErrorKind,
    lock::AcquireError,
    store::{Store, StoreBuilder},
};

/// A deadline of a quarter of a second, and an allowance for a loaded machine. Limits of client
/// libraries would be longer.
const MAX_CALL_TIME: Duration = Duration::from_secs(5);

/// Starts a server that sends `half` after the first read of each connection, and nothing more.
async fn start_half_answering_server(half: &'static [u8]) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let port = listener.local_addr().expect("it is bound").port();
    crate::store::spawn(async move {
        let mut clients = Vec::new();
        while let Ok((mut client, _)) = listener.accept().await {
            clients.push(crate::store::spawn(async move {
                let mut buffer = [0; 1024];
                let _ = client.read(&mut buffer).await;
                let _ = client.write_all(half).await;
                while client.read(&mut buffer).await.is_ok_and(|n| n > 0) {}
            }));
        }
    });
    port
}

async fn assert_ends_in_time<T>(what: &str, call: impl Future<Output = T>) -> T {
    let started = Instant::now();
    let output = tokio::time::timeout(30 * SECOND, call).await;
    let elapsed = started.elapsed();
    println!("figure: longest call to a silent server {} ms", elapsed.as_millis());
    assert!(elapsed < MAX_CALL_TIME, "{what} took {elapsed:?}");
    output.expect("it has ended")
}

/// Asserts that a connect, a ping and many concurrent acquires report an outage in time.
async fn assert_outage(what: &str, builder: StoreBuilder) {
    let store =
        assert_ends_in_time(what, builder.connect()).await.expect("an outage is no mistake");
    let error =
        assert_ends_in_time(what, store.ping()).await.expect_err("the server does not answer");
    let is_outage = |kind| matches!(kind, ErrorKind::Unavailable | ErrorKind::Timeout);
    assert!(is_outage(error.kind()), "{what}: {error}");
    let locks = (0..32).map(|n| store.lock(format!("{n}")).acquire());
    for lock in assert_ends_in_time(what, join_all(locks)).await {
        match lock {
            Err(AcquireError::Fault(error)) => assert!(is_outage(error.kind()), "{what}: {error}"),
            other => panic!("{what}: {other:?}"),
        }
    }
    assert_ends_in_time(what, store.shutdown(SECOND)).await;
}

/// As a single server, as each of three sentinels, and as a cluster node.
async fn assert_outage_for_each_url_kind(what: &str, port: u16) {
    let at = format!("127.0.0.1:{port}");
    for url in [
        format!("redis://{at}/?ns=test"),
        format!("redis+sentinel://{at},{at},{at}/mymaster?ns=test"),
        format!("redis+cluster://{at},{at}/?ns=test"),
    ] {
        assert_outage(&format!("{what}, {url}"), Store::builder(&url)).await;
    }
}

#[tokio::test]
async fn silent_or_half_answering_server_is_an_outage() {
    let texts: [(&str, &[u8]); 3] = [
        ("silence", b""),
        ("half a greeting", b"%7\r\n$6\r\nserver\r\n$5\r\nre"),
        // Replies to `HELLO` and to the identification of the client.
        ("a greeting alone", b"%1\r\n$5\r\nproto\r\n:3\r\n+OK\r\n+OK\r\n"),
    ];
    join_all(texts.map(async |(what, half)| {
        assert_outage_for_each_url_kind(what, start_half_answering_server(half).await).await;
    }))
    .await;
}

/// The backlog of the kernel is full, so attempts to connect are not answered.
#[tokio::test]
async fn server_that_accepts_no_connection_is_an_outage() {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.bind("127.0.0.1:0".parse().expect("an address")).expect("a free port");
    let listener = socket.listen(1).expect("it listens");
    let at = listener.local_addr().expect("it is bound");
    let mut connections = Vec::new();
    // Until a connection is not accepted.
    while let Ok(Ok(accepted)) =
        tokio::time::timeout(Duration::from_millis(300), TcpStream::connect(at)).await
    {
        connections.push(accepted);
    }
    assert_outage_for_each_url_kind("full accept queue", at.port()).await;
}

/// Four processes connect while the server is frozen, and use it when it resumes.
#[tokio::test]
async fn server_frozen_during_four_connects_is_used_later() {
    let server = ServerProcess::start().await;
    server.freeze();
    let stores = (0..4).map(|_| assert_ends_in_time("connect", server.connect_store()));
    let stores = join_all(stores).await;
    server.resume();
    for store in &stores {
        wait_until_usable(store).await;
        acquire_with_retries(&store.lock("x").wait(10 * SECOND)).await.release().await;
    }
}
