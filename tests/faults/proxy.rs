//! What the proxy is told to do is felt: otherwise a fault that nobody feels would show nothing.

use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use lockgate_tests::{Server, proxy::Proxy, within};
use redis::aio::MultiplexedConnection;

async fn connect(proxy: &Proxy) -> MultiplexedConnection {
    let url = proxy.url();
    let client = redis::Client::open(url.split('?').next().unwrap()).expect("a URL");
    let config = redis::AsyncConnectionConfig::new();
    let config = config.set_response_timeout(None).set_connection_timeout(None);
    let connection = client.get_multiplexed_async_connection_with_config(&config).await;
    connection.expect("the proxy listens")
}

async fn answers(connection: &mut MultiplexedConnection) -> bool {
    redis::cmd("PING").query_async::<String>(connection).await.is_ok()
}

/// Long enough for any answer that comes at all.
const SILENCE: Duration = Duration::from_millis(300);

#[tokio::test]
async fn a_stalled_connection_goes_on_where_it_was() {
    let server = Server::start().await;
    let proxy = Proxy::to(&server, "x").await;
    let mut connection = connect(&proxy).await;
    proxy.stall(true);
    let mut ping = Box::pin(answers(&mut connection));
    assert!(tokio::time::timeout(SILENCE, &mut ping).await.is_err(), "nothing passes");
    proxy.stall(false);
    assert!(within("what was on its way", ping).await);
}

/// They are silent, and nobody is told. They may be ended, too, those of subscribers with them; but nobody waits for these.
#[tokio::test]
async fn half_open_connections_are_there_until_their_clients_leave_them() {
    let server = Server::start().await;
    let proxy = Proxy::to(&server, "x").await;
    let (one, mut other) = (connect(&proxy).await, connect(&proxy).await);
    let url = proxy.url();
    let client = redis::Client::open(url.split('?').next().unwrap()).expect("a URL");
    let mut subscriber = client.get_async_pubsub().await.expect("the proxy listens");
    subscriber.subscribe("x").await.expect("it hears");
    proxy.half_open();
    let mut new = connect(&proxy).await;
    let mut left = Box::pin(proxy.left());
    assert!(tokio::time::timeout(SILENCE, answers(&mut other)).await.is_err(), "it is silent");
    assert!(tokio::time::timeout(SILENCE, &mut left).await.is_err(), "two are there");
    drop(one);
    assert!(tokio::time::timeout(SILENCE, &mut left).await.is_err(), "one is there");
    proxy.end_half_open();
    within("the end of the other", left).await;
    assert!(!within("its end", answers(&mut other)).await);
    assert!(within("the subscriber's end", subscriber.on_message().next()).await.is_none());
    assert!(answers(&mut new).await, "it came later");
    let later = connect(&proxy).await;
    proxy.half_open();
    drop((new, later));
    within("both to leave", proxy.left()).await;
}

#[tokio::test]
async fn what_is_delayed_comes_late() {
    let server = Server::start().await;
    let proxy = Proxy::to(&server, "x").await;
    let mut connection = connect(&proxy).await;
    proxy.delay(Duration::from_millis(60));
    let sent = Instant::now();
    assert!(answers(&mut connection).await);
    assert!(sent.elapsed() >= Duration::from_millis(120), "{:?}", sent.elapsed());
}
