//! Processes of two layouts on one store: one of them is refused when it connects.

use futures_util::future::join;
use redis::aio::MultiplexedConnection;

use super::{
    SECOND,
    cluster::{ask, insist, keys},
    server::{Server, patient},
};
use crate::{
    error::{Error, ErrorKind},
    store::{
        Store,
        backend::LockToken,
        tests::cluster::{Cluster, signal},
    },
};

/// The handshake of layout 1, command for command: the number of shards that it finds if it goes on with 64.
async fn old_handshake(connection: &mut MultiplexedConnection, meta: &str) -> Result<u16, u16> {
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

async fn connected(server: &Server) -> MultiplexedConnection {
    let client = redis::Client::open(("127.0.0.1", server.port())).expect("an address");
    patient(&client).await.expect("it runs")
}

async fn connect(server: &Server, namespace: &str) -> Result<Store, Error> {
    let url = format!("redis://127.0.0.1:{}/?ns={namespace}", server.port());
    Store::builder(&url).call_timeout(10 * SECOND).connect().await
}

fn is_refused(connected: Result<Store, Error>) {
    let error = connected.expect_err("it is of another layout");
    assert_eq!(error.kind(), ErrorKind::Config);
    let text = error.to_string();
    assert!(text.contains("older version") && text.contains("another ?ns="), "{text}");
}

#[tokio::test]
async fn an_old_process_and_this_one_refuse_each_other() {
    let server = Server::start().await;
    let mut old = connected(&server).await;
    assert_eq!(old_handshake(&mut old, "lg:1:a:{0}:meta").await, Ok(64));
    is_refused(connect(&server, "a").await);
    let store = connect(&server, "b").await.expect("its own namespace");
    // "this namespace was made with 2064 shards and this version has 64; use another ?ns="
    assert_eq!(old_handshake(&mut old, "lg:1:b:{0}:meta").await, Err(2064));
    drop(store.lock("x").acquire().await.expect("it is free"));
}

/// Which of them comes first is the server's to say; never both.
#[tokio::test]
async fn an_empty_store_gets_one_layout() {
    let server = Server::start().await;
    let mut old = connected(&server).await;
    let mut won = [0, 0];
    for round in 0..100 {
        let (namespace, meta) = (format!("n{round}"), format!("lg:1:n{round}:{{0}}:meta"));
        let (ours, theirs) =
            join(connect(&server, &namespace), old_handshake(&mut old, &meta)).await;
        assert_ne!(ours.is_ok(), theirs.is_ok(), "{ours:?} {theirs:?}");
        won[usize::from(ours.is_ok())] += 1;
        if theirs.is_ok() {
            is_refused(ours);
        }
    }
    println!("figure: the old one came first {} times, this one {}", won[0], won[1]);
}

#[cfg(feature = "bb8-redis")]
#[tokio::test]
async fn a_store_on_a_pool_is_refused_too() {
    let server = Server::start().await;
    let mut old = connected(&server).await;
    assert_eq!(old_handshake(&mut old, "lg:1:a:{0}:meta").await, Ok(64));
    let url = format!("redis://127.0.0.1:{}/", server.port());
    let manager = bb8_redis::RedisConnectionManager::new(url).expect("an address");
    let pool = bb8::Pool::builder().max_size(4).build(manager).await.expect("it runs");
    is_refused(Store::from_pool(pool).namespace("a").call_timeout(10 * SECOND).connect().await);
}

/// Of the nodes of a cluster one alone knows the layout: the others are not used until it is known.
#[tokio::test]
async fn a_cluster_is_not_used_before_its_layout_is_known() {
    let cluster = Cluster::start(3, false, 30 * SECOND).await;
    let knows = cluster.owner(cluster.slot(0).await).await;
    cluster.command(knows, &["HSET", "lg:1:old:{0}:meta", "shards", "64"]).await;
    is_refused(cluster.builder("old").call_timeout(10 * SECOND).connect().await);
    let mut elsewhere = None;
    for key in keys(16) {
        if cluster.owner(cluster.slot(key.shard()).await).await != knows {
            elsewhere = Some(key);
        }
    }
    let elsewhere = elsewhere.expect("the others have some");
    let process = cluster.process(knows).await;
    signal(&process, "-STOP");
    let store = cluster.builder("old").call_timeout(SECOND).connect().await;
    let store = store.expect("a node that is away is no mistake");
    let me = LockToken::new(store.node());
    let met = store.backend().acquire(ask(&elsewhere, &me)).await;
    let error = met.expect_err("its layout is not known");
    assert!(matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Timeout), "{error}");
    signal(&process, "-CONT");
    let told = async || match store.backend().acquire(ask(&elsewhere, &me)).await {
        Err(error) if error.kind() == ErrorKind::Config => Ok(()),
        Err(error) => Err(error),
        Ok(_) => panic!("it is of another layout"),
    };
    insist(told).await;
}
