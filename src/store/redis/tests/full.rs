//! A server that has as many clients as it may have.

use std::error::Error as _;

use redis::aio::MultiplexedConnection;

use super::{
    SECOND, eventually,
    server::{Server, patient},
    usable,
};
use crate::{
    error::{Error, ErrorKind},
    store::Store,
};

/// As many as there are connections, whoever has them.
async fn limit(connection: &mut MultiplexedConnection, clients: usize) {
    let mut set = redis::cmd("CONFIG");
    set.arg("SET").arg("maxclients").arg(clients);
    set.query_async::<()>(connection).await.expect("it takes it");
}

fn says_why(error: &Error) -> bool {
    let sentence = "ERR max number of clients reached";
    let source = error.source().map(ToString::to_string);
    error.to_string().contains(sentence) && source.as_deref() == Some(sentence)
}

#[tokio::test]
async fn a_server_that_is_full_is_quoted() {
    let server = Server::start().await;
    let client = redis::Client::open(("127.0.0.1", server.port())).expect("an address");
    let mut own = patient(&client).await.expect("there is room");
    limit(&mut own, 1).await;
    let builder = Store::builder(&server.url()).call_timeout(5 * SECOND);
    let store = builder.connect().await.expect("an outage is no mistake");
    // Also while the breaker is open. A connection may break before the sentence of it is read.
    for _ in 0..10 {
        let error = store.ping().await.expect_err("there is no room");
        assert_eq!(error.kind(), ErrorKind::Unavailable);
    }
    let ping = async || store.ping().await.is_err_and(|error| says_why(&error));
    eventually("a ping says why", ping).await;
    let stats = async || store.queue::<u32>("x").stats().await.is_err_and(|why| says_why(&why));
    eventually("a look at a queue says why", stats).await;
    limit(&mut own, 1_000).await;
    usable(&store).await;
}
