//! Server that has reached `maxclients`.

use std::error::Error as _;

use redis::aio::MultiplexedConnection;

use super::{
    SECOND,
    server_process::{ServerProcess, connect_with_long_timeout},
    wait_until, wait_until_usable,
};
use crate::{
    error::{Error, ErrorKind},
    store::Store,
};

/// Sets the largest number of connections of all clients.
async fn set_max_clients(connection: &mut MultiplexedConnection, clients: usize) {
    let mut set = redis::cmd("CONFIG");
    set.arg("SET").arg("maxclients").arg(clients);
    set.query_async::<()>(connection).await.expect("the server accepts the setting");
}

fn names_client_limit(error: &Error) -> bool {
    let message = "ERR max number of clients reached";
    let source = error.source().map(ToString::to_string);
    // The address comes first.
    error.to_string().contains(message) && source.is_some_and(|text| text.ends_with(message))
}

#[tokio::test]
async fn client_limit_error_of_server_is_quoted() {
    let server = ServerProcess::start().await;
    let client = redis::Client::open(("127.0.0.1", server.port())).expect("an address");
    let mut own =
        connect_with_long_timeout(&client).await.expect("the client limit is not reached");
    set_max_clients(&mut own, 1).await;
    let builder = Store::builder(&server.url()).call_timeout(5 * SECOND);
    let store = builder.connect().await.expect("an outage is no mistake");
    // Holds also while the breaker is open. A connection may end before its error is read.
    for _ in 0..10 {
        let error = store.ping().await.expect_err("the client limit is reached");
        assert_eq!(error.kind(), ErrorKind::Unavailable);
    }
    let ping = async || store.ping().await.is_err_and(|error| names_client_limit(&error));
    wait_until("a ping to name the limit", ping).await;
    let stats =
        async || store.queue::<u32>("x").stats().await.is_err_and(|why| names_client_limit(&why));
    wait_until("the stats of a queue to name the limit", stats).await;
    set_max_clients(&mut own, 1_000).await;
    wait_until_usable(&store).await;
}
