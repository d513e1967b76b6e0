//! Each fault of the proxy has an effect. A fault without effect would prove nothing.

use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use lockgate_tests::{RedisServer, proxy::FaultProxy, with_timeout};
use redis::aio::MultiplexedConnection;

async fn connect_through(proxy: &FaultProxy) -> MultiplexedConnection {
    let url = proxy.url();
    let client = redis::Client::open(url.split('?').next().unwrap()).expect("a URL");
    let config = redis::AsyncConnectionConfig::new();
    let config = config.set_response_timeout(None).set_connection_timeout(None);
    let connection = client.get_multiplexed_async_connection_with_config(&config).await;
    connection.expect("the proxy listens")
}

async fn replies_to_ping(connection: &mut MultiplexedConnection) -> bool {
    redis::cmd("PING").query_async::<String>(connection).await.is_ok()
}

/// Long enough for any reply that arrives at all.
const MAX_REPLY_TIME: Duration = Duration::from_millis(300);

#[tokio::test]
async fn stalled_connection_delivers_pending_call_when_resumed() {
    let server = RedisServer::start().await;
    let proxy = FaultProxy::start(&server, "x").await;
    let mut connection = connect_through(&proxy).await;
    proxy.set_stalled(true);
    let mut ping = Box::pin(replies_to_ping(&mut connection));
    assert!(tokio::time::timeout(MAX_REPLY_TIME, &mut ping).await.is_err(), "nothing passes");
    proxy.set_stalled(false);
    assert!(with_timeout("the delayed reply", ping).await);
}

/// Half-open connections are silent and report no error. Closing them ends those of subscribers
/// too, but [`wait_until_half_open_abandoned`](FaultProxy::wait_until_half_open_abandoned) ignores
/// subscribers.
#[tokio::test]
async fn half_open_connections_last_until_clients_close_them() {
    let server = RedisServer::start().await;
    let proxy = FaultProxy::start(&server, "x").await;
    let (first, mut second) = (connect_through(&proxy).await, connect_through(&proxy).await);
    let url = proxy.url();
    let client = redis::Client::open(url.split('?').next().unwrap()).expect("a URL");
    let mut subscriber = client.get_async_pubsub().await.expect("the proxy listens");
    subscriber.subscribe("x").await.expect("the subscription starts");
    proxy.half_open_connections();
    let mut new_connection = connect_through(&proxy).await;
    let mut all_abandoned = Box::pin(proxy.wait_until_half_open_abandoned());
    assert!(
        tokio::time::timeout(MAX_REPLY_TIME, replies_to_ping(&mut second)).await.is_err(),
        "it is silent"
    );
    assert!(
        tokio::time::timeout(MAX_REPLY_TIME, &mut all_abandoned).await.is_err(),
        "two are there"
    );
    drop(first);
    assert!(
        tokio::time::timeout(MAX_REPLY_TIME, &mut all_abandoned).await.is_err(),
        "one is there"
    );
    proxy.close_half_open();
    with_timeout("the end of the other", all_abandoned).await;
    assert!(!with_timeout("its end", replies_to_ping(&mut second)).await);
    assert!(with_timeout("the subscriber's end", subscriber.on_message().next()).await.is_none());
    assert!(replies_to_ping(&mut new_connection).await, "it came later");
    let later_connection = connect_through(&proxy).await;
    proxy.half_open_connections();
    drop((new_connection, later_connection));
    with_timeout("both to leave", proxy.wait_until_half_open_abandoned()).await;
}

#[tokio::test]
async fn delayed_calls_arrive_late() {
    let server = RedisServer::start().await;
    let proxy = FaultProxy::start(&server, "x").await;
    let mut connection = connect_through(&proxy).await;
    proxy.set_delay(Duration::from_millis(60));
    let sent = Instant::now();
    assert!(replies_to_ping(&mut connection).await);
    assert!(sent.elapsed() >= Duration::from_millis(120), "{:?}", sent.elapsed());
}
