//! A user of the server's access list, and a database, both of the URL: on one server, and behind sentinels.

use super::{
    SECOND, cluster::charge, eventually, sentinel::rig::Sentinels, server::Server, usable,
};
use crate::{error::ErrorKind, key::Key, lock::Released, store::Store};

/// Only what lockgate needs: its own keys and channels, and nothing that operators do.
const USER: [&str; 9] = [
    "ACL",
    "SETUSER",
    "app",
    "on",
    ">secret",
    "~lg:1:shop:*",
    "&lg:1:shop:*",
    "+@all",
    "-@dangerous",
];

/// Keys of each database, as `db3:keys=2,..`.
async fn databases(server: &Server) -> Vec<String> {
    let text: String = server.ask(&["INFO", "keyspace"]).await;
    let lines = text.lines().filter_map(|line| line.split_once(':'));
    lines.filter(|(name, _)| name.starts_with("db")).map(|(name, _)| name.to_owned()).collect()
}

async fn listeners(server: &Server) -> usize {
    let list: String = server.ask(&["CLIENT", "LIST", "TYPE", "pubsub"]).await;
    list.lines().filter(|line| line.contains("user=app")).count()
}

/// A lock that is waited for, and a quota. The fence of whoever waited.
async fn is_used(store: &Store, server: &Server) -> u64 {
    let held = store.lock("x").acquire().await.expect("it is free");
    let waiter = store.as_another_process().lock("x").wait(20 * SECOND).acquire();
    let waiter = tokio::spawn(waiter);
    eventually("a subscriber", async || listeners(server).await > 0).await;
    let fence = held.fence();
    assert_eq!(held.release().await, Released::Released);
    let next = waiter.await.expect("no panic").expect("it is served");
    assert!(next.fence() > fence);
    let last = next.fence();
    assert_eq!(next.release().await, Released::Released);
    let charged = store.backend().charge(charge(&Key::custom("x"), 9)).await;
    assert_eq!(charged.expect("it is there").admitted, 1);
    last
}

async fn refused(url: &str, why: &str) {
    let error = Store::connect(url).await.expect_err(why);
    assert_eq!(error.kind(), ErrorKind::Config, "{why}: {error}");
}

#[tokio::test]
async fn a_server_is_used_by_the_user_and_in_the_database_of_the_url() {
    let server = Server::start().await;
    server.command(&USER).await;
    let url = |login: &str, database: &str| {
        format!("redis://{login}@127.0.0.1:{}/{database}?ns=shop", server.port())
    };
    let store = Store::builder(&url("app:secret", "3")).deadline(10 * SECOND).connect().await;
    is_used(&store.expect("the URL is right"), &server).await;
    assert_eq!(databases(&server).await, ["db3"], "nothing is anywhere else");
    // By setters instead.
    let builder = Store::builder(&server.url()).namespace("shop").deadline(10 * SECOND);
    let store = builder.login("app", "secret").database(5).connect().await;
    is_used(&store.expect("they are right"), &server).await;
    assert_eq!(databases(&server).await, ["db3", "db5"]);
    refused(&url("app:wrong", "3"), "another password").await;
    refused(&url("nobody:secret", "3"), "another user").await;
    refused(&url("app:secret", "3").replace("ns=shop", "ns=other"), "not its keys").await;
    refused(&url("app:secret", "99"), "no such database").await;
}

#[tokio::test]
async fn a_failover_keeps_the_user_and_the_database() {
    let sentinels = Sentinels::start().await;
    sentinels.master.command(&USER).await;
    sentinels.replica.command(&USER).await;
    sentinels.tell_all(&["ACL", "SETUSER", "watcher", "on", ">word", "&*", "+@all"]).await;
    let url = |login: &str, word: &str| {
        let base = sentinels.url().replace("?ns=test", "/3?ns=shop");
        let base = base.replace("://", &format!("://{login}@"));
        format!("{base}&sentinel_user=watcher&sentinel_password={word}")
    };
    let store = Store::builder(&url("app:secret", "word")).deadline(10 * SECOND).connect().await;
    let store = store.expect("the URL is right");
    let before = is_used(&store, &sentinels.master).await;
    assert_eq!(databases(&sentinels.master).await, ["db3"]);
    refused(&url("app:wrong", "word"), "another password").await;
    refused(&url("app:secret", "wrong"), "another password of the sentinels").await;
    sentinels.fail_over().await;
    sentinels.failed_over().await;
    usable(&store).await;
    let after = is_used(&store, &sentinels.replica).await;
    assert!(after > before, "{after} after {before}");
    assert_eq!(databases(&sentinels.replica).await, ["db3"]);
}
