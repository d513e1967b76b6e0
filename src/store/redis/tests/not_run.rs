//! A server that would not run a call for as long as its deadline: the call has not run, unless a copy of it was lost
//! before.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use tokio::{
    io::{AsyncWriteExt as _, BufReader},
    net::{TcpListener, TcpStream},
};

use super::{
    SECOND,
    sentinel::fake::{bulk, command},
};
use crate::{error::ErrorKind, store::Store};

const BUSY: &str = "-BUSY Redis is busy running a script.\r\n";

/// It is busy whenever a script is called; if this is set, the next call ends its connection instead.
async fn serve(client: TcpStream, cuts: Arc<AtomicBool>) -> Option<()> {
    let mut client = BufReader::new(client);
    loop {
        let words = command(&mut client).await?;
        let answer = match words.first()?.as_str() {
            "HELLO" => "%1\r\n+proto\r\n:3\r\n".to_owned(),
            "INFO" => bulk("redis_version:7.0.15\r\nrun_id:a\r\nrole:master\r\n"),
            "HDEL" => ":0\r\n".to_owned(),
            "HMGET" => "*2\r\n$2\r\n64\r\n$-1\r\n".to_owned(),
            "PING" => "+PONG\r\n".to_owned(),
            "EVALSHA" if cuts.swap(false, Ordering::SeqCst) => return None,
            "EVALSHA" => BUSY.to_owned(),
            _ => "+OK\r\n".to_owned(),
        };
        client.write_all(answer.as_bytes()).await.ok()?;
    }
}

/// What becomes of calls of a script that goes by itself.
async fn kinds(cut: bool) -> [ErrorKind; 3] {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let at = listener.local_addr().expect("it is bound");
    let cuts = Arc::new(AtomicBool::new(false));
    let own = Arc::clone(&cuts);
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            tokio::spawn(serve(client, Arc::clone(&own)));
        }
    });
    let builder = Store::builder(&format!("redis://{at}/?ns=test")).deadline(SECOND / 2);
    let store = builder.connect().await.expect("the URL is right");
    let kind = async || {
        cuts.store(cut, Ordering::SeqCst);
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
