//! A user of the server's access list, and a database, both of the URL: on one server, and behind sentinels.

use tokio::time::{Instant, timeout};

use super::{
    SECOND,
    cluster::{
        WakeupListener, acquire_command, charge_command, keys_in_distinct_shards,
        retry_while_unavailable,
    },
    sentinel::sentinel_setup::SentinelSetup,
    server_process::ServerProcess,
    wait_until, wait_until_usable,
};
use crate::{
    error::ErrorKind,
    key::Key,
    lock::ReleaseStatus,
    store::{
        Store,
        backend::{AcquireReply, LockMode, LockToken, ReleaseOutcome},
        key_names::KeyNames,
        tests::test_cluster::TestCluster,
    },
};

/// Only what lockgate needs: its own keys and channels, and nothing that operators do.
const ACL_SETUSER: [&str; 10] = [
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
async fn used_databases(server: &ServerProcess) -> Vec<String> {
    let text: String = server.query(&["INFO", "keyspace"]).await;
    let lines = text.lines().filter_map(|line| line.split_once(':'));
    lines.filter(|(name, _)| name.starts_with("db")).map(|(name, _)| name.to_owned()).collect()
}

async fn count_subscribers(server: &ServerProcess) -> usize {
    let list: String = server.query(&["CLIENT", "LIST", "TYPE", "pubsub"]).await;
    list.lines().filter(|line| line.contains("user=app")).count()
}

/// A lock that is waited for, and a quota. The fence of whoever waited.
async fn assert_store_works(store: &Store, server: &ServerProcess) -> u64 {
    let held = store.lock("x").acquire().await.expect("it is free");
    let waiter = store.as_another_process().lock("x").wait(20 * SECOND).acquire();
    let waiter = crate::store::spawn(waiter);
    wait_until("a subscriber", async || count_subscribers(server).await > 0).await;
    let fence = held.fence();
    assert_eq!(held.release().await, ReleaseStatus::Released);
    let next = waiter.await.expect("no panic").expect("it is served");
    assert!(next.fence() > fence);
    let last = next.fence();
    assert_eq!(next.release().await, ReleaseStatus::Released);
    let charged = store.backend().charge(charge_command(&Key::custom("x"), 9)).await;
    assert_eq!(charged.expect("it is there").admitted, 1);
    last
}

async fn assert_config_error(url: &str, why: &str) {
    let store = Store::builder(url).call_timeout(10 * SECOND);
    let error = store.connect().await.expect_err(why);
    assert_eq!(error.kind(), ErrorKind::Config, "{why}: {error}");
    assert!(!format!("{error} {error:?}").contains("sesame"), "{why}: it is told");
}

#[tokio::test]
async fn user_and_database_of_url_are_used() {
    let server = ServerProcess::start().await;
    server.command(&ACL_SETUSER).await;
    let url = |login: &str, database: &str| {
        format!("redis://{login}@127.0.0.1:{}/{database}?ns=shop", server.port())
    };
    let store = Store::builder(&url("app:secret", "3")).call_timeout(10 * SECOND).connect().await;
    assert_store_works(&store.expect("the URL is right"), &server).await;
    assert_eq!(used_databases(&server).await, ["db3"], "nothing is anywhere else");
    // By setters instead.
    let builder = Store::builder(&server.url()).namespace("shop").call_timeout(10 * SECOND);
    let store = builder.login("app", "secret").database(5).connect().await;
    assert_store_works(&store.expect("they are right"), &server).await;
    assert_eq!(used_databases(&server).await, ["db3", "db5"]);
    assert_config_error(&url("app:sesame", "3"), "another password").await;
    assert_config_error(&url("nobody:secret", "3"), "another user").await;
    assert_config_error(&url("app:secret", "3").replace("ns=shop", "ns=other"), "not its keys")
        .await;
    assert_config_error(&url("app:secret", "99"), "no such database").await;
    // The user that is there without being made.
    server.command(&["CONFIG", "SET", "requirepass", "right"]).await;
    let url = |login: &str| format!("redis://{login}127.0.0.1:{}/?ns=shop", server.port());
    assert_config_error(&url(":sesame@"), "another password").await;
    assert_config_error(&url(""), "no password").await;
    let store = Store::builder(&url(":right@")).call_timeout(10 * SECOND).connect().await;
    store.expect("the URL is right").ping().await.expect("it is there");
}

/// Whether an error names a command. Valkey quotes names in lower case, as it knows the command.
fn names_command(error: &crate::error::Error, command: &str) -> bool {
    error.to_string().to_lowercase().contains(&command.to_lowercase())
}

/// Of what only some calls need, contended locks and deferred requests, the first call would tell nothing.
#[tokio::test]
async fn missing_script_permission_fails_at_connect() {
    let server = ServerProcess::start().await;
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
        assert!(names_command(&error, missing), "{rule}: {error}");
    }
    for rule in ["&lg:1:shop:* +@all -@dangerous", &format!("{narrow} +time +wait -@dangerous")] {
        let store = may(rule).await.expect("it may do all");
        assert_store_works(&store, &server).await;
        // Of one that is connected.
        server.command(&["ACL", "SETUSER", "app", "-time"]).await;
        let error = store.ping().await.expect_err("it may not any more");
        assert!(error.kind() == ErrorKind::Config && names_command(&error, "TIME"), "{error}");
    }
}

/// Each login that fails may be counted against whoever tries, and is written down.
#[tokio::test]
async fn changed_password_is_not_retried_by_each_call() {
    let server = ServerProcess::start().await;
    server.command(&ACL_SETUSER).await;
    let url = format!("redis://app:secret@127.0.0.1:{}/?ns=shop", server.port());
    let store = Store::builder(&url).call_timeout(10 * SECOND).connect().await;
    let store = store.expect("the URL is right");
    server.command(&["ACL", "SETUSER", "app", "resetpass", ">other"]).await;
    server.command(&["CLIENT", "KILL", "USER", "app"]).await;
    let logins = async || server.info_number("stats", "total_connections_received").await;
    let kind = async || store.ping().await.err().map(|error| error.kind());
    let (before, begun) = (logins().await, Instant::now());
    wait_until("it is told", async || kind().await == Some(ErrorKind::Config)).await;
    for _ in 0..500 {
        assert_eq!(kind().await, Some(ErrorKind::Config));
    }
    // Every 375 ms or less often; and who asks.
    let most = begun.elapsed().as_millis() / 375 + 3;
    let made = logins().await - before;
    println!("figure: logins for 500 calls {made}, at most {most}");
    assert!(u128::from(made) <= most, "{made} logins");
    server.command(&["ACL", "SETUSER", "app", ">secret"]).await;
    wait_until("it is well again", async || kind().await.is_none()).await;
}

/// As where nobody has saved its users. What is wrong then is told, and not that it is away.
#[tokio::test]
async fn restarted_server_without_user_is_config_error() {
    let mut server = ServerProcess::start().await;
    server.command(&ACL_SETUSER).await;
    let url = format!("redis://app:secret@127.0.0.1:{}/?ns=shop", server.port());
    let store = Store::connect(&url).await.expect("the URL is right");
    let kind = async || store.ping().await.err().map(|error| error.kind());
    server.kill();
    for _ in 0..20 {
        assert!(kind().await.is_some_and(|kind| kind != ErrorKind::Config));
    }
    server.restart().await;
    wait_until("it is told", async || kind().await == Some(ErrorKind::Config)).await;
    server.command(&ACL_SETUSER).await;
    wait_until("it is well again", async || kind().await.is_none()).await;
}

/// A server that may not be asked who it is, is known by its address: those who hold something are told when it is
/// another one, and not when a renewal is due, after 20 s.
#[tokio::test]
async fn failover_keeps_user_and_database_and_reports_lost_locks() {
    let sentinels = SentinelSetup::start().await;
    sentinels.master.command(&ACL_SETUSER).await;
    sentinels.replica.command(&ACL_SETUSER).await;
    sentinels.command_all(&["ACL", "SETUSER", "watcher", "on", ">word", "&*", "+@all"]).await;
    let url = |login: &str, word: &str| {
        let base = sentinels.url().replace("?ns=test", "/3?ns=shop");
        let base = base.replace("://", &format!("://{login}@"));
        format!("{base}&sentinel_user=watcher&sentinel_password={word}")
    };
    let store =
        Store::builder(&url("app:secret", "word")).call_timeout(10 * SECOND).connect().await;
    let store = store.expect("the URL is right");
    let before = assert_store_works(&store, &sentinels.master).await;
    assert_eq!(used_databases(&sentinels.master).await, ["db3"]);
    assert_config_error(&url("app:sesame", "word"), "another password").await;
    assert_config_error(&url("app:secret", "sesame"), "another password of the sentinels").await;
    let request = store.lock("held").lease(60 * SECOND).max_hold(600 * SECOND).min_replicas(1);
    let guard = request.acquire().await.expect("it is free");
    // As if it had not heard of it.
    let key = Key::custom("held");
    sentinels.replica.command(&["CONFIG", "SET", "replica-read-only", "no"]).await;
    let holders = KeyNames::new("shop").holders(&key);
    let delete = ["EVAL", DELETE_SCRIPT, "1", &holders, "3"];
    assert_eq!(sentinels.replica.query::<u64>(&delete).await, 1);
    let met = store.backend().server_generation();
    sentinels.start_failover().await;
    sentinels.wait_for_failover().await;
    wait_until_usable(&store).await;
    let told = timeout(10 * SECOND, guard.lost()).await;
    assert!(told.is_ok(), "nobody looked");
    // What was written before, on the other one, no replica of this one vouches for.
    let have = store.backend().wait_for_replicas(key.shard(), 1, met).await;
    assert!(have.is_err(), "{have:?}");
    let after = assert_store_works(&store, &sentinels.replica).await;
    assert!(after > before, "{after} after {before}");
    assert_eq!(used_databases(&sentinels.replica).await, ["db3"]);
}

/// Deletes a key of a database.
const DELETE_SCRIPT: &str = "redis.call('SELECT', ARGV[1]); return redis.call('DEL', KEYS[1])";

#[tokio::test]
async fn cluster_is_used_with_user_of_url() {
    let cluster = TestCluster::start(3, false, 30 * SECOND).await;
    let mut user = ACL_SETUSER.to_vec();
    // Before 7.0 this was for operators as a whole.
    user.push("+cluster");
    for at in 0..3 {
        cluster.send_command(at, &user).await;
    }
    let url = cluster.url("shop").replace("://", "://app:secret@");
    let store = Store::builder(&url).call_timeout(10 * SECOND).connect().await;
    let store = store.expect("the URL is right");
    let mut ear = WakeupListener::new(&store).await;
    for key in keys_in_distinct_shards(8) {
        let me = LockToken::new(store.node());
        let held = retry_while_unavailable(async || {
            store.backend().acquire(acquire_command(&key, &me)).await
        })
        .await;
        assert!(matches!(held, AcquireReply::Granted { .. }), "{held:?}");
        let gave = store.backend().release(key.clone(), me, LockMode::Exclusive).await;
        assert_eq!(gave.expect("it is there"), ReleaseOutcome::Released);
        let charged = store.backend().charge(charge_command(&key, 9)).await;
        assert_eq!(charged.expect("it is there").admitted, 1);
        // By channels of shards, where there are such.
        ear.assert_delivers_for(&store, &key).await;
    }
    let mut heard = String::new();
    for at in 0..3 {
        heard += &cluster.query::<String>(at, &["CLIENT", "LIST", "TYPE", "pubsub"]).await;
    }
    assert!(heard.lines().any(|line| line.contains("user=app")), "{heard}");
    assert_config_error(&url.replace("secret", "sesame"), "another password").await;
    assert_config_error(&url.replace("ns=shop", "ns=other"), "not its keys").await;
    for at in 0..3 {
        cluster.send_command(at, &["ACL", "SETUSER", "app", "resetchannels"]).await;
    }
    assert_config_error(&url, "not its channels").await;
}
