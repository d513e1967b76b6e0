//! Servers that do not understand how a connection begins. What they say repeats what they were sent.

use std::sync::Arc;

use tokio::{
    io::{AsyncWriteExt as _, BufReader},
    net::{TcpListener, TcpStream},
};

use super::{SECOND, sentinel::fake::command};
use crate::{
    error::{Error, ErrorKind},
    store::{Log, Store},
};

const PASSWORD: &str = "sesame";

/// Of a server that answers this to `HELLO`.
async fn store(hello: String) -> Result<Store, Error> {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let at = listener.local_addr().expect("it is bound");
    let hello: Arc<str> = hello.into();
    crate::store::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            crate::store::spawn(serve(client, Arc::clone(&hello)));
        }
    });
    let url = format!("redis://:{PASSWORD}@{at}/?ns=test");
    Store::builder(&url).deadline(10 * SECOND).connect().await
}

async fn serve(client: TcpStream, hello: Arc<str>) -> Option<()> {
    let mut client = BufReader::new(client);
    loop {
        let words = command(&mut client).await?;
        let answer = if words.first()? == "HELLO" { &*hello } else { "+OK\r\n" };
        client.write_all(answer.as_bytes()).await.ok()?;
    }
}

/// As Redis 5 says it, one of 7 whose operator has renamed it, and one that knows no such protocol.
#[tokio::test]
async fn a_server_that_does_not_know_the_protocol_is_a_mistake() {
    let (log, _guard) = Log::begin();
    for hello in [
        format!(
            "-ERR unknown command `HELLO`, with args beginning with: `3`, `AUTH`, `default`, `{PASSWORD}`, \r\n"
        ),
        format!(
            "-ERR unknown command 'HELLO', with args beginning with: '3' 'AUTH' 'default' '{PASSWORD}' \r\n"
        ),
        "-NOPROTO unsupported protocol version\r\n".to_owned(),
    ] {
        let error = store(hello.clone()).await.expect_err(&hello);
        assert_eq!(error.kind(), ErrorKind::Config, "{hello}");
        let told = format!("{error} {error:?}");
        assert!(told.contains("6.2") && !told.contains(PASSWORD), "{told}");
    }
    assert!(!log.text().contains(PASSWORD), "{}", log.text());
}

#[tokio::test]
async fn what_a_server_repeats_of_a_login_is_not_in_the_log() {
    let (log, _guard) = Log::begin();
    let store = store(format!("-ERR not now: 'HELLO' '3' 'AUTH' 'default' '{PASSWORD}'\r\n")).await;
    let error = store.expect("an outage is no mistake").ping().await.expect_err("it is away");
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    let text = log.text();
    assert!(text.contains("no connection to the store") && text.contains("ERR"), "{text}");
    assert!(!text.contains(PASSWORD), "{text}");
}
