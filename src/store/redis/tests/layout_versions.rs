//! Processes of two layouts on one store: one of them is refused at connect.

use futures_util::future::join;
use redis::aio::MultiplexedConnection;

use super::{
    SECOND,
    cluster::{acquire_command, keys_in_distinct_shards, retry_while_unavailable},
    server_process::{ServerProcess, connect_with_long_timeout},
};
use crate::{
    error::{Error, ErrorKind},
    store::{
        Store,
        backend::LockToken,
        tests::test_cluster::{TestCluster, send_signal},
    },
};

/// Sends the handshake of layout 1, command for command. Returns the number of shards that it
/// finds, as `Ok` if it would continue with 64.
async fn layout_1_handshake(
    connection: &mut MultiplexedConnection,
    meta: &str,
) -> Result<u16, u16> {
    let mut read = redis::pipe();
    read.cmd("HDEL").arg(meta).arg("never").ignore();
    read.cmd("HMGET").arg(meta).arg("shards").arg("data");
    let ((mut shards, _),): ((Option<u16>, Option<String>),) =
        read.query_async(connection).await.expect("as the old one reads it");
    if shards.is_none() {
        let mut write = redis::pipe();
        write.cmd("HSETNX").arg(meta).arg("data").arg("0123456789abcdef").ignore();
        write.cmd("HSETNX").arg(meta).arg("shards").arg(64).ignore();
        write.cmd("HMGET").arg(meta).arg("shards").arg("data");
        let ((written, _),): ((Option<u16>, Option<String>),) =
            write.query_async(connection).await.expect("as the old one reads it");
        shards = written;
    }
    match shards {
        Some(64) => Ok(64),
        other => Err(other.expect("it was written")),
    }
}

async fn plain_connection(server: &ServerProcess) -> MultiplexedConnection {
    let client = redis::Client::open(("127.0.0.1", server.port())).expect("an address");
    connect_with_long_timeout(&client).await.expect("it runs")
}

async fn connect_store(server: &ServerProcess, namespace: &str) -> Result<Store, Error> {
    let url = format!("redis://127.0.0.1:{}/?ns={namespace}", server.port());
    Store::builder(&url).call_timeout(10 * SECOND).connect().await
}

fn assert_layout_refused(connected: Result<Store, Error>) {
    let error = connected.expect_err("it is of another layout");
    assert_eq!(error.kind(), ErrorKind::Config);
    let text = error.to_string();
    assert!(text.contains("older version") && text.contains("another ?ns="), "{text}");
}

#[tokio::test]
async fn processes_of_layouts_1_and_2_refuse_each_other() {
    let server = ServerProcess::start().await;
    let mut old = plain_connection(&server).await;
    assert_eq!(layout_1_handshake(&mut old, "lg:1:a:{0}:meta").await, Ok(64));
    assert_layout_refused(connect_store(&server, "a").await);
    let store = connect_store(&server, "b").await.expect("its own namespace");
    // "this namespace was made with 2064 shards and this version has 64; use another ?ns="
    assert_eq!(layout_1_handshake(&mut old, "lg:1:b:{0}:meta").await, Err(2064));
    drop(store.lock("x").acquire().await.expect("it is free"));
}

/// The server decides which of them is first. Never do both succeed.
#[tokio::test]
async fn concurrent_first_connections_choose_one_layout() {
    let server = ServerProcess::start().await;
    let mut old = plain_connection(&server).await;
    let mut wins = [0, 0];
    for round in 0..100 {
        let (namespace, meta) = (format!("n{round}"), format!("lg:1:n{round}:{{0}}:meta"));
        let (new_result, old_result) =
            join(connect_store(&server, &namespace), layout_1_handshake(&mut old, &meta)).await;
        assert_ne!(new_result.is_ok(), old_result.is_ok(), "{new_result:?} {old_result:?}");
        wins[usize::from(new_result.is_ok())] += 1;
        if old_result.is_ok() {
            assert_layout_refused(new_result);
        }
    }
    println!("figure: the old one came first {} times, this one {}", wins[0], wins[1]);
}

#[cfg(feature = "bb8-redis")]
#[tokio::test]
async fn pool_store_on_older_layout_is_refused() {
    let server = ServerProcess::start().await;
    let mut old = plain_connection(&server).await;
    assert_eq!(layout_1_handshake(&mut old, "lg:1:a:{0}:meta").await, Ok(64));
    let url = format!("redis://127.0.0.1:{}/", server.port());
    let manager = bb8_redis::RedisConnectionManager::new(url).expect("an address");
    let pool = bb8::Pool::builder().max_size(4).build(manager).await.expect("it runs");
    assert_layout_refused(
        Store::from_pool(pool).namespace("a").call_timeout(10 * SECOND).connect().await,
    );
}

/// Only one node of the cluster knows the layout. The others are not used until it is known.
#[tokio::test]
async fn cluster_is_not_used_before_its_layout_is_read() {
    let cluster = TestCluster::start(3, false, 30 * SECOND).await;
    let layout_node = cluster.slot_owner(cluster.slot_of_shard(0).await).await;
    cluster.send_command(layout_node, &["HSET", "lg:1:old:{0}:meta", "shards", "64"]).await;
    assert_layout_refused(cluster.store_builder("old").call_timeout(10 * SECOND).connect().await);
    let mut other_key = None;
    for key in keys_in_distinct_shards(16) {
        if cluster.slot_owner(cluster.slot_of_shard(key.shard()).await).await != layout_node {
            other_key = Some(key);
        }
    }
    let other_key = other_key.expect("the others have some");
    let process = cluster.process_id(layout_node).await;
    send_signal(&process, "-STOP");
    let store = cluster.store_builder("old").call_timeout(SECOND).connect().await;
    let store = store.expect("an unavailable cluster node is no config error");
    let token = LockToken::new(store.node());
    let acquired = store.backend().acquire(acquire_command(&other_key, &token)).await;
    let error = acquired.expect_err("the layout of its node is unverified");
    assert!(matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Timeout), "{error}");
    send_signal(&process, "-CONT");
    let is_refused =
        async || match store.backend().acquire(acquire_command(&other_key, &token)).await {
            Err(error) if error.kind() == ErrorKind::Config => Ok(()),
            Err(error) => Err(error),
            Ok(_) => panic!("it is of another layout"),
        };
    retry_while_unavailable(is_refused).await;
}
