//! A user of the server's access list, and a database, both of the URL: on one server, and behind sentinels.

use tokio::time::{Instant, timeout};

use super::{
    SECOND,
    cluster::{Ear, ask, charge, insist, keys},
    eventually,
    sentinel::rig::Sentinels,
    server::Server,
    usable,
};
use crate::{
    error::ErrorKind,
    key::Key,
    lock::ReleaseStatus,
    store::{
        Store,
        backend::{AcquireReply, LockMode, LockToken, ReleaseOutcome},
        key_names::KeyNames,
        tests::cluster::Cluster,
    },
};

/// Only what lockgate needs: its own keys and channels, and nothing that operators do.
const USER: [&str; 10] = [
    "ACL",
    "SETUSER",
    "app",
    "on",
    ">secret",
    "~lg:1:shop:*",
    // Before 7.0 all channels are theirs from the start.
    "resetchannels",
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
    let waiter = crate::store::spawn(waiter);
    eventually("a subscriber", async || listeners(server).await > 0).await;
    let fence = held.fence();
    assert_eq!(held.release().await, ReleaseStatus::Released);
    let next = waiter.await.expect("no panic").expect("it is served");
    assert!(next.fence() > fence);
    let last = next.fence();
    assert_eq!(next.release().await, ReleaseStatus::Released);
    let charged = store.backend().charge(charge(&Key::custom("x"), 9)).await;
    assert_eq!(charged.expect("it is there").admitted, 1);
    last
}

async fn refused(url: &str, why: &str) {
    let store = Store::builder(url).call_timeout(10 * SECOND);
    let error = store.connect().await.expect_err(why);
    assert_eq!(error.kind(), ErrorKind::Config, "{why}: {error}");
    assert!(!format!("{error} {error:?}").contains("sesame"), "{why}: it is told");
}

#[tokio::test]
async fn a_server_is_used_by_the_user_and_in_the_database_of_the_url() {
    let server = Server::start().await;
    server.command(&USER).await;
    let url = |login: &str, database: &str| {
        format!("redis://{login}@127.0.0.1:{}/{database}?ns=shop", server.port())
    };
    let store = Store::builder(&url("app:secret", "3")).call_timeout(10 * SECOND).connect().await;
    is_used(&store.expect("the URL is right"), &server).await;
    assert_eq!(databases(&server).await, ["db3"], "nothing is anywhere else");
    // By setters instead.
    let builder = Store::builder(&server.url()).namespace("shop").call_timeout(10 * SECOND);
    let store = builder.login("app", "secret").database(5).connect().await;
    is_used(&store.expect("they are right"), &server).await;
    assert_eq!(databases(&server).await, ["db3", "db5"]);
    refused(&url("app:sesame", "3"), "another password").await;
    refused(&url("nobody:secret", "3"), "another user").await;
    refused(&url("app:secret", "3").replace("ns=shop", "ns=other"), "not its keys").await;
    refused(&url("app:secret", "99"), "no such database").await;
    // The user that is there without being made.
    server.command(&["CONFIG", "SET", "requirepass", "right"]).await;
    let url = |login: &str| format!("redis://{login}127.0.0.1:{}/?ns=shop", server.port());
    refused(&url(":sesame@"), "another password").await;
    refused(&url(""), "no password").await;
    let store = Store::builder(&url(":right@")).call_timeout(10 * SECOND).connect().await;
    store.expect("the URL is right").ping().await.expect("it is there");
}

/// Whether an error names a command. Valkey quotes names in lower case, as it knows the command.
fn names(error: &crate::error::Error, command: &str) -> bool {
    error.to_string().to_lowercase().contains(&command.to_lowercase())
}

/// Of what only some calls need, contended locks and deferred requests, the first call would tell nothing.
#[tokio::test]
async fn a_user_who_may_not_do_what_scripts_do_is_told_at_the_start() {
    let server = Server::start().await;
    let may = async |rule: &str| {
        server.command(&["ACL", "DELUSER", "app"]).await;
        let user = ["ACL", "SETUSER", "app", "on", ">secret", "~lg:1:shop:*", "resetchannels"];
        server.command(&user.into_iter().chain(rule.split(' ')).collect::<Vec<_>>()).await;
        let url = format!("redis://app:secret@127.0.0.1:{}/?ns=shop", server.port());
        Store::builder(&url).call_timeout(10 * SECOND).connect().await
    };
    let narrow = "&lg:1:shop:* +@read +@write +@scripting +@pubsub +@connection";
    for (rule, missing) in [
        ("+@all -@dangerous", "`&lg:1:NAMESPACE:*`"),
        (narrow, "TIME"),
        ("&lg:1:shop:* +@all -@dangerous -eval", "`eval`"),
        ("&lg:1:shop:* +@all -@dangerous -publish", "PUBLISH"),
    ] {
        let error = may(rule).await.expect_err(rule);
        assert_eq!(error.kind(), ErrorKind::Config, "{rule}: {error}");
        assert!(names(&error, missing), "{rule}: {error}");
    }
    for rule in ["&lg:1:shop:* +@all -@dangerous", &format!("{narrow} +time +wait -@dangerous")] {
        let store = may(rule).await.expect("it may do all");
        is_used(&store, &server).await;
        // Of one that is connected.
        server.command(&["ACL", "SETUSER", "app", "-time"]).await;
        let error = store.ping().await.expect_err("it may not any more");
        assert!(error.kind() == ErrorKind::Config && names(&error, "TIME"), "{error}");
    }
}

/// Each login that fails may be counted against whoever tries, and is written down.
#[tokio::test]
async fn a_password_that_is_gone_is_not_tried_by_each_call() {
    let server = Server::start().await;
    server.command(&USER).await;
    let url = format!("redis://app:secret@127.0.0.1:{}/?ns=shop", server.port());
    let store = Store::builder(&url).call_timeout(10 * SECOND).connect().await;
    let store = store.expect("the URL is right");
    server.command(&["ACL", "SETUSER", "app", "resetpass", ">other"]).await;
    server.command(&["CLIENT", "KILL", "USER", "app"]).await;
    let logins = async || server.info("stats", "total_connections_received").await;
    let kind = async || store.ping().await.err().map(|error| error.kind());
    let (before, begun) = (logins().await, Instant::now());
    eventually("it is told", async || kind().await == Some(ErrorKind::Config)).await;
    for _ in 0..500 {
        assert_eq!(kind().await, Some(ErrorKind::Config));
    }
    // Every 375 ms or less often; and who asks.
    let most = begun.elapsed().as_millis() / 375 + 3;
    let made = logins().await - before;
    println!("figure: logins for 500 calls {made}, at most {most}");
    assert!(u128::from(made) <= most, "{made} logins");
    server.command(&["ACL", "SETUSER", "app", ">secret"]).await;
    eventually("it is well again", async || kind().await.is_none()).await;
}

/// As where nobody has saved its users. What is wrong then is told, and not that it is away.
#[tokio::test]
async fn a_server_that_comes_back_without_the_user_is_not_taken_for_away() {
    let mut server = Server::start().await;
    server.command(&USER).await;
    let url = format!("redis://app:secret@127.0.0.1:{}/?ns=shop", server.port());
    let store = Store::connect(&url).await.expect("the URL is right");
    let kind = async || store.ping().await.err().map(|error| error.kind());
    server.kill();
    for _ in 0..20 {
        assert!(kind().await.is_some_and(|kind| kind != ErrorKind::Config));
    }
    server.restart().await;
    eventually("it is told", async || kind().await == Some(ErrorKind::Config)).await;
    server.command(&USER).await;
    eventually("it is well again", async || kind().await.is_none()).await;
}

/// A server that may not be asked who it is, is known by its address: those who hold something are told when it is
/// another one, and not when a renewal is due, after 20 s.
#[tokio::test]
async fn a_failover_keeps_the_user_and_the_database_and_tells_holders() {
    let sentinels = Sentinels::start().await;
    sentinels.master.command(&USER).await;
    sentinels.replica.command(&USER).await;
    sentinels.tell_all(&["ACL", "SETUSER", "watcher", "on", ">word", "&*", "+@all"]).await;
    let url = |login: &str, word: &str| {
        let base = sentinels.url().replace("?ns=test", "/3?ns=shop");
        let base = base.replace("://", &format!("://{login}@"));
        format!("{base}&sentinel_user=watcher&sentinel_password={word}")
    };
    let store =
        Store::builder(&url("app:secret", "word")).call_timeout(10 * SECOND).connect().await;
    let store = store.expect("the URL is right");
    let before = is_used(&store, &sentinels.master).await;
    assert_eq!(databases(&sentinels.master).await, ["db3"]);
    refused(&url("app:sesame", "word"), "another password").await;
    refused(&url("app:secret", "sesame"), "another password of the sentinels").await;
    let request = store.lock("held").lease(60 * SECOND).max_hold(600 * SECOND).min_replicas(1);
    let guard = request.acquire().await.expect("it is free");
    // As if it had not heard of it.
    let key = Key::custom("held");
    sentinels.replica.command(&["CONFIG", "SET", "replica-read-only", "no"]).await;
    let holders = KeyNames::new("shop").holders(&key);
    let delete = ["EVAL", DELETE, "1", &holders, "3"];
    assert_eq!(sentinels.replica.ask::<u64>(&delete).await, 1);
    let met = store.backend().server_generation();
    sentinels.fail_over().await;
    sentinels.failed_over().await;
    usable(&store).await;
    let told = timeout(10 * SECOND, guard.lost()).await;
    assert!(told.is_ok(), "nobody looked");
    // What was written before, on the other one, no replica of this one vouches for.
    let have = store.backend().wait_for_replicas(key.shard(), 1, met).await;
    assert!(have.is_err(), "{have:?}");
    let after = is_used(&store, &sentinels.replica).await;
    assert!(after > before, "{after} after {before}");
    assert_eq!(databases(&sentinels.replica).await, ["db3"]);
}

/// Deletes a key of a database.
const DELETE: &str = "redis.call('SELECT', ARGV[1]); return redis.call('DEL', KEYS[1])";

#[tokio::test]
async fn a_cluster_is_used_by_the_user_of_the_url() {
    let cluster = Cluster::start(3, false, 30 * SECOND).await;
    let mut user = USER.to_vec();
    // Before 7.0 this was for operators as a whole.
    user.push("+cluster");
    for at in 0..3 {
        cluster.command(at, &user).await;
    }
    let url = cluster.url("shop").replace("://", "://app:secret@");
    let store = Store::builder(&url).call_timeout(10 * SECOND).connect().await;
    let store = store.expect("the URL is right");
    let mut ear = Ear::new(&store).await;
    for key in keys(8) {
        let me = LockToken::new(store.node());
        let held = insist(async || store.backend().acquire(ask(&key, &me)).await).await;
        assert!(matches!(held, AcquireReply::Granted { .. }), "{held:?}");
        let gave = store.backend().release(key.clone(), me, LockMode::Exclusive).await;
        assert_eq!(gave.expect("it is there"), ReleaseOutcome::Released);
        let charged = store.backend().charge(charge(&key, 9)).await;
        assert_eq!(charged.expect("it is there").admitted, 1);
        // By channels of shards, where there are such.
        ear.hears(&store, &key).await;
    }
    let mut heard = String::new();
    for at in 0..3 {
        heard += &cluster.ask::<String>(at, &["CLIENT", "LIST", "TYPE", "pubsub"]).await;
    }
    assert!(heard.lines().any(|line| line.contains("user=app")), "{heard}");
    refused(&url.replace("secret", "sesame"), "another password").await;
    refused(&url.replace("ns=shop", "ns=other"), "not its keys").await;
    for at in 0..3 {
        cluster.command(at, &["ACL", "SETUSER", "app", "resetchannels"]).await;
    }
    refused(&url, "not its channels").await;
}
