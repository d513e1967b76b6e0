//! What is sent again, and what is known of it then: a call that the server would not run for as long as its deadline
//! has not run, unless a copy of it was lost before; what must not run twice is sent once.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};

use tokio::{
    io::{AsyncWriteExt as _, BufReader},
    net::{TcpListener, TcpStream},
};

use super::{
    SECOND,
    sentinel::fake::{bulk, command},
};
use crate::{error::ErrorKind, key::Key, store::Store};

const BUSY: &str = "-BUSY Redis is busy running a script.\r\n";

/// What it does, and has seen.
#[derive(Default)]
struct Server {
    /// The next call of a script ends its connection.
    cuts: AtomicBool,
    adds: AtomicUsize,
}

/// It is busy whenever a script is called, and ends each connection by which something is added to a set.
async fn serve(client: TcpStream, server: Arc<Server>) -> Option<()> {
    let mut client = BufReader::new(client);
    loop {
        let words = command(&mut client).await?;
        let answer = match words.first()?.as_str() {
            "HELLO" => "%1\r\n+proto\r\n:3\r\n".to_owned(),
            "INFO" => bulk("redis_version:7.0.15\r\nrun_id:a\r\nrole:master\r\n"),
            "HDEL" => ":0\r\n".to_owned(),
            "HMGET" => "*2\r\n$4\r\n2064\r\n$-1\r\n".to_owned(),
            "PING" => "+PONG\r\n".to_owned(),
            "EVALSHA" if server.cuts.swap(false, Ordering::SeqCst) => return None,
            "EVALSHA" => BUSY.to_owned(),
            "EXISTS" => ":0\r\n".to_owned(),
            "ZADD" => {
                server.adds.fetch_add(1, Ordering::SeqCst);
                return None;
            }
            _ => "+OK\r\n".to_owned(),
        };
        client.write_all(answer.as_bytes()).await.ok()?;
    }
}

async fn store() -> (Store, Arc<Server>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let at = listener.local_addr().expect("it is bound");
    let server = Arc::<Server>::default();
    let own = Arc::clone(&server);
    crate::store::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            crate::store::spawn(serve(client, Arc::clone(&own)));
        }
    });
    let builder = Store::builder(&format!("redis://{at}/?ns=test")).deadline(SECOND / 2);
    (builder.connect().await.expect("the URL is right"), server)
}

/// What becomes of calls of a script that goes by itself.
async fn kinds(cut: bool) -> [ErrorKind; 3] {
    let (store, server) = store().await;
    let kind = async || {
        server.cuts.store(cut, Ordering::SeqCst);
        let called = store.backend().limiters(store.node().clone(), SECOND).await;
        called.expect_err("it is busy").kind()
    };
    [kind().await, kind().await, kind().await]
}

#[tokio::test]
async fn what_was_only_ever_refused_is_not_in_doubt() {
    let kinds = kinds(false).await;
    // One that is asked at the end of a deadline may have no answer by then.
    assert!(kinds.contains(&ErrorKind::Unavailable), "{kinds:?}");
}

#[tokio::test]
async fn what_is_refused_after_a_copy_was_lost_is_in_doubt() {
    assert_eq!(kinds(true).await, [ErrorKind::Timeout; 3]);
}

/// A worker's place among the idle would be prolonged twice.
#[tokio::test]
async fn what_must_not_run_twice_is_sent_once() {
    let (store, server) = store().await;
    let (node, worker) = (store.node().clone(), Arc::from("w"));
    let still = store.backend().still_idle(Key::custom("x"), node, worker, SECOND).await;
    assert_eq!(still.expect_err("its connection has ended").kind(), ErrorKind::Timeout);
    assert_eq!(server.adds.load(Ordering::SeqCst), 1);
}
