//! Servers that take connections and say nothing, or half of something: nobody waits for them longer than a call may
//! take, not at the start either.

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

/// A call may take a quarter of a second; the rest is a loaded machine. Libraries' own limits would be longer.
const MAX_CALL_TIME: Duration = Duration::from_secs(5);

/// Takes connections, says this after the first word of each, and nothing more.
async fn start_half_answering_server(half: &'static [u8]) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let port = listener.local_addr().expect("it is bound").port();
    crate::store::spawn(async move {
        let mut clients = Vec::new();
        while let Ok((mut client, _)) = listener.accept().await {
            clients.push(crate::store::spawn(async move {
                let mut heard = [0; 1024];
                let _ = client.read(&mut heard).await;
                let _ = client.write_all(half).await;
                while client.read(&mut heard).await.is_ok_and(|n| n > 0) {}
            }));
        }
    });
    port
}

async fn assert_ends_in_time<T>(what: &str, done: impl Future<Output = T>) -> T {
    let started = Instant::now();
    let done = tokio::time::timeout(30 * SECOND, done).await;
    let took = started.elapsed();
    println!("figure: longest call to a silent server {} ms", took.as_millis());
    assert!(took < MAX_CALL_TIME, "{what} took {took:?}");
    done.expect("it has ended")
}

/// Connecting, asking and a lock are an outage, each in time, and those of many at once too.
async fn assert_outage(what: &str, builder: StoreBuilder) {
    let store =
        assert_ends_in_time(what, builder.connect()).await.expect("an outage is no mistake");
    let error = assert_ends_in_time(what, store.ping()).await.expect_err("nobody answers");
    let outage = |kind| matches!(kind, ErrorKind::Unavailable | ErrorKind::Timeout);
    assert!(outage(error.kind()), "{what}: {error}");
    let locks = (0..32).map(|n| store.lock(format!("{n}")).acquire());
    for lock in assert_ends_in_time(what, join_all(locks)).await {
        match lock {
            Err(AcquireError::Fault(error)) => assert!(outage(error.kind()), "{what}: {error}"),
            other => panic!("{what}: {other:?}"),
        }
    }
    assert_ends_in_time(what, store.shutdown(SECOND)).await;
}

/// As one server, as each of three sentinels, and as a node of a cluster.
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
        // To the greeting, and to who the client is.
        ("a greeting alone", b"%1\r\n$5\r\nproto\r\n:3\r\n+OK\r\n+OK\r\n"),
    ];
    join_all(texts.map(async |(what, text)| {
        assert_outage_for_each_url_kind(what, start_half_answering_server(text).await).await;
    }))
    .await;
}

/// Its kernel has no room for another connection: what is sent to open one is not answered.
#[tokio::test]
async fn server_that_accepts_no_connection_is_an_outage() {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.bind("127.0.0.1:0".parse().expect("an address")).expect("a free port");
    let listener = socket.listen(1).expect("it listens");
    let at = listener.local_addr().expect("it is bound");
    let mut filling = Vec::new();
    // Until one is not taken.
    while let Ok(Ok(taken)) =
        tokio::time::timeout(Duration::from_millis(300), TcpStream::connect(at)).await
    {
        filling.push(taken);
    }
    assert_outage_for_each_url_kind("no room", at.port()).await;
}

/// Four processes begin at once while it does something else, and go on when it is there.
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
