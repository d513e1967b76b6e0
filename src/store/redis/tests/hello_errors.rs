//! Servers that do not understand the handshake. Their errors repeat its arguments.

use super::{SECOND, sentinel::fake_sentinel::start_scripted_server};
use crate::{
    error::{Error, ErrorKind},
    store::{CapturedLog, Store},
};

const PASSWORD: &str = "sesame";

/// Connects to a server that sends this reply to `HELLO`.
async fn connect_with_hello_reply(hello: String) -> Result<Store, Error> {
    let reply_to = move |args: &[&str]| {
        Some(if args.first()? == &"HELLO" { hello.clone() } else { "+OK\r\n".to_owned() })
    };
    let url =
        format!("redis://:{PASSWORD}@127.0.0.1:{}/?ns=test", start_scripted_server(reply_to).await);
    Store::builder(&url).call_timeout(10 * SECOND).connect().await
}

/// Replies of Redis 5, of Redis 7 with a renamed command, and of a server without the protocol.
#[tokio::test]
async fn server_without_resp3_is_config_error() {
    let (log, _guard) = CapturedLog::start_capture();
    for hello in [
        format!(
            "-ERR unknown command `HELLO`, with args beginning with: `3`, `AUTH`, `default`, `{PASSWORD}`, \r\n"
        ),
        format!(
            "-ERR unknown command 'HELLO', with args beginning with: '3' 'AUTH' 'default' '{PASSWORD}' \r\n"
        ),
        "-NOPROTO unsupported protocol version\r\n".to_owned(),
    ] {
        let error = connect_with_hello_reply(hello.clone()).await.expect_err(&hello);
        assert_eq!(error.kind(), ErrorKind::Config, "{hello}");
        let message = format!("{error} {error:?}");
        assert!(message.contains("6.2") && !message.contains(PASSWORD), "{message}");
    }
    assert!(!log.text().contains(PASSWORD), "{}", log.text());
}

#[tokio::test]
async fn password_quoted_by_server_is_not_logged() {
    let (log, _guard) = CapturedLog::start_capture();
    let store = connect_with_hello_reply(format!(
        "-ERR not now: 'HELLO' '3' 'AUTH' 'default' '{PASSWORD}'\r\n"
    ))
    .await;
    let error = store
        .expect("an outage is no mistake")
        .ping()
        .await
        .expect_err("the server is unavailable");
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    let text = log.text();
    assert!(text.contains("connection to the store failed") && text.contains("ERR"), "{text}");
    assert!(!text.contains(PASSWORD), "{text}");
}
