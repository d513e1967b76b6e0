//! Servers that take connections and say nothing, or half of something: nobody waits for them longer than a call may
//! take, not at the start either.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpSocket, TcpStream},
};

use super::{SECOND, granted, server::Server, usable};
use crate::{
    error::ErrorKind,
    lock::AcquireError,
    store::{Store, StoreBuilder},
};

/// A call may take a quarter of a second; the rest is a loaded machine. Libraries' own limits would be longer.
const SOON: Duration = Duration::from_secs(5);

/// Takes connections, says this after the first word of each, and nothing more.
async fn says(half: &'static [u8]) -> u16 {
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

async fn in_time<T>(what: &str, done: impl Future<Output = T>) -> T {
    let started = Instant::now();
    let done = tokio::time::timeout(30 * SECOND, done).await;
    let took = started.elapsed();
    println!("figure: longest call to a silent server {} ms", took.as_millis());
    assert!(took < SOON, "{what} took {took:?}");
    done.expect("it has ended")
}

/// Connecting, asking and a lock are an outage, each in time, and those of many at once too.
async fn is_an_outage(what: &str, builder: StoreBuilder) {
    let store = in_time(what, builder.connect()).await.expect("an outage is no mistake");
    let error = in_time(what, store.ping()).await.expect_err("nobody answers");
    let outage = |kind| matches!(kind, ErrorKind::Unavailable | ErrorKind::Timeout);
    assert!(outage(error.kind()), "{what}: {error}");
    let locks = (0..32).map(|n| store.lock(format!("{n}")).acquire());
    for lock in in_time(what, join_all(locks)).await {
        match lock {
            Err(AcquireError::Fault(error)) => assert!(outage(error.kind()), "{what}: {error}"),
            other => panic!("{what}: {other:?}"),
        }
    }
    in_time(what, store.shutdown(SECOND)).await;
}

/// As one server, as each of three sentinels, and as a node of a cluster.
async fn however_it_is_named(what: &str, port: u16) {
    let at = format!("127.0.0.1:{port}");
    for url in [
        format!("redis://{at}/?ns=test"),
        format!("redis+sentinel://{at},{at},{at}/mymaster?ns=test"),
        format!("redis+cluster://{at},{at}/?ns=test"),
    ] {
        is_an_outage(&format!("{what}, {url}"), Store::builder(&url)).await;
    }
}

#[tokio::test]
async fn a_server_that_says_nothing_or_not_all() {
    let texts: [(&str, &[u8]); 3] = [
        ("silence", b""),
        ("half a greeting", b"%7\r\n$6\r\nserver\r\n$5\r\nre"),
        // To the greeting, and to who the client is.
        ("a greeting alone", b"%1\r\n$5\r\nproto\r\n:3\r\n+OK\r\n+OK\r\n"),
    ];
    join_all(texts.map(async |(what, text)| however_it_is_named(what, says(text).await).await))
        .await;
}

/// Its kernel has no room for another connection: what is sent to open one is not answered.
#[tokio::test]
async fn a_server_that_takes_no_connection() {
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
    however_it_is_named("no room", at.port()).await;
}

/// Four processes begin at once while it does something else, and go on when it is there.
#[tokio::test]
async fn a_busy_server_at_the_start_of_four_processes() {
    let server = Server::start().await;
    server.freeze();
    let stores = (0..4).map(|_| in_time("connect", server.store()));
    let stores = join_all(stores).await;
    server.thaw();
    for store in &stores {
        usable(store).await;
        granted(&store.lock("x").wait(10 * SECOND)).await.release().await;
    }
}
