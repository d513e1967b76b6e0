//! Servers that do not understand how a connection begins. What they say repeats what they were sent.

use super::{SECOND, sentinel::fake::scripted};
use crate::{
    error::{Error, ErrorKind},
    store::{Log, Store},
};

const PASSWORD: &str = "sesame";

/// Of a server that answers this to `HELLO`.
async fn store(hello: String) -> Result<Store, Error> {
    let answer = move |words: &[&str]| {
        Some(if words.first()? == &"HELLO" { hello.clone() } else { "+OK\r\n".to_owned() })
    };
    let url = format!("redis://:{PASSWORD}@127.0.0.1:{}/?ns=test", scripted(answer).await);
    Store::builder(&url).call_timeout(10 * SECOND).connect().await
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
