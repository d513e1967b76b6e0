//! ACL user and database of the URL: on a single server, behind sentinels and in a cluster.

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

/// The permissions that lockgate needs: its own keys and channels, no administrative commands.
const ACL_SETUSER: [&str; 10] = [
    "ACL",
    "SETUSER",
    "app",
    "on",
    ">secret",
    "~lg:1:shop:*",
    // Before 7.0, all channels are allowed by default.
    "resetchannels",
    "&lg:1:shop:*",
    "+@all",
    "-@dangerous",
];

/// Returns the databases that have keys, from lines like `db3:keys=2,..`.
async fn used_databases(server: &ServerProcess) -> Vec<String> {
    let text: String = server.query(&["INFO", "keyspace"]).await;
    let lines = text.lines().filter_map(|line| line.split_once(':'));
    lines.filter(|(name, _)| name.starts_with("db")).map(|(name, _)| name.to_owned()).collect()
}

async fn count_subscribers(server: &ServerProcess) -> usize {
    let list: String = server.query(&["CLIENT", "LIST", "TYPE", "pubsub"]).await;
    list.lines().filter(|line| line.contains("user=app")).count()
}

/// Hands a lock over to a waiter and charges a quota. Returns the fence of the waiter.
async fn assert_store_works(store: &Store, server: &ServerProcess) -> u64 {
    let held = store.lock("x").acquire().await.expect("it is free");
    let waiter = store.as_another_process().lock("x").wait(20 * SECOND).acquire();
    let waiter = crate::store::spawn(waiter);
    wait_until("a subscriber", async || count_subscribers(server).await > 0).await;
    let fence = held.fence();
    assert_eq!(held.release().await, ReleaseStatus::Released);
    let next = waiter.await.expect("no panic").expect("it is served");
    assert!(next.fence() > fence);
    let last_fence = next.fence();
    assert_eq!(next.release().await, ReleaseStatus::Released);
    let charged = store.backend().charge(charge_command(&Key::custom("x"), 9)).await;
    assert_eq!(charged.expect("it is there").admitted, 1);
    last_fence
}

async fn assert_config_error(url: &str, why: &str) {
    let store = Store::builder(url).call_timeout(10 * SECOND);
    let error = store.connect().await.expect_err(why);
    assert_eq!(error.kind(), ErrorKind::Config, "{why}: {error}");
    assert!(
        !format!("{error} {error:?}").contains("sesame"),
        "{why}: the error shows the password"
    );
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
    // The same through setters.
    let builder = Store::builder(&server.url()).namespace("shop").call_timeout(10 * SECOND);
    let store = builder.login("app", "secret").database(5).connect().await;
    assert_store_works(&store.expect("they are right"), &server).await;
    assert_eq!(used_databases(&server).await, ["db3", "db5"]);
    assert_config_error(&url("app:sesame", "3"), "another password").await;
    assert_config_error(&url("nobody:secret", "3"), "another user").await;
    assert_config_error(&url("app:secret", "3").replace("ns=shop", "ns=other"), "not its keys")
        .await;
    assert_config_error(&url("app:secret", "99"), "no such database").await;
    // The default user.
    server.command(&["CONFIG", "SET", "requirepass", "right"]).await;
    let url = |login: &str| format!("redis://{login}127.0.0.1:{}/?ns=shop", server.port());
    assert_config_error(&url(":sesame@"), "another password").await;
    assert_config_error(&url(""), "no password").await;
    let store = Store::builder(&url(":right@")).call_timeout(10 * SECOND).connect().await;
    store.expect("the URL is right").ping().await.expect("it is there");
}

/// Returns true if the error names the command. Valkey quotes its name in lower case.
fn names_command(error: &crate::error::Error, command: &str) -> bool {
    error.to_string().to_lowercase().contains(&command.to_lowercase())
}

/// Only contended locks and deferred requests need some of the permissions. Without a check at
/// connect, the first calls would not reveal that they are missing.
#[tokio::test]
async fn missing_script_permission_fails_at_connect() {
    let server = ServerProcess::start().await;
    let connect_with_rule = async |rule: &str| {
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
        let error = connect_with_rule(rule).await.expect_err(rule);
        assert_eq!(error.kind(), ErrorKind::Config, "{rule}: {error}");
        assert!(names_command(&error, missing), "{rule}: {error}");
    }
    for rule in ["&lg:1:shop:* +@all -@dangerous", &format!("{narrow} +time +wait -@dangerous")] {
        let store = connect_with_rule(rule).await.expect("it may do all");
        assert_store_works(&store, &server).await;
        // On a store that is connected already.
        server.command(&["ACL", "SETUSER", "app", "-time"]).await;
        let error = store.ping().await.expect_err("it may not any more");
        assert!(error.kind() == ErrorKind::Config && names_command(&error, "TIME"), "{error}");
    }
}

/// Servers may count and log each failed login.
#[tokio::test]
async fn changed_password_is_not_retried_by_each_call() {
    let server = ServerProcess::start().await;
    server.command(&ACL_SETUSER).await;
    let url = format!("redis://app:secret@127.0.0.1:{}/?ns=shop", server.port());
    let store = Store::builder(&url).call_timeout(10 * SECOND).connect().await;
    let store = store.expect("the URL is right");
    server.command(&["ACL", "SETUSER", "app", "resetpass", ">other"]).await;
    server.command(&["CLIENT", "KILL", "USER", "app"]).await;
    let count_logins = async || server.info_number("stats", "total_connections_received").await;
    let kind = async || store.ping().await.err().map(|error| error.kind());
    let (before, started) = (count_logins().await, Instant::now());
    wait_until("the error to be reported", async || kind().await == Some(ErrorKind::Config)).await;
    for _ in 0..500 {
        assert_eq!(kind().await, Some(ErrorKind::Config));
    }
    // One login every 375 ms at most, and the connections of the test's own queries.
    let max_logins = started.elapsed().as_millis() / 375 + 3;
    let login_count = count_logins().await - before;
    println!("figure: logins for 500 calls {login_count}, at most {max_logins}");
    assert!(u128::from(login_count) <= max_logins, "{login_count} logins");
    server.command(&["ACL", "SETUSER", "app", ">secret"]).await;
    wait_until("it is well again", async || kind().await.is_none()).await;
}

/// A restart loses users that were not saved. The error names this cause, and is no outage.
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
    wait_until("the error to be reported", async || kind().await == Some(ErrorKind::Config)).await;
    server.command(&ACL_SETUSER).await;
    wait_until("it is well again", async || kind().await.is_none()).await;
}

/// A server that denies `INFO` is identified by its address. A new address makes holders check
/// their leases at once, instead of at the renewal after 20 s.
#[tokio::test]
async fn failover_keeps_user_and_database_and_reports_lost_locks() {
    let sentinels = SentinelSetup::start().await;
    sentinels.master.command(&ACL_SETUSER).await;
    sentinels.replica.command(&ACL_SETUSER).await;
    sentinels.command_all(&["ACL", "SETUSER", "watcher", "on", ">word", "&*", "+@all"]).await;
    let url = |login: &str, password: &str| {
        let base = sentinels.url().replace("?ns=test", "/3?ns=shop");
        let base = base.replace("://", &format!("://{login}@"));
        format!("{base}&sentinel_user=watcher&sentinel_password={password}")
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
    // As if the replica had not received the grant.
    let key = Key::custom("held");
    sentinels.replica.command(&["CONFIG", "SET", "replica-read-only", "no"]).await;
    let holders = KeyNames::new("shop").holders(&key);
    let delete = ["EVAL", DELETE_SCRIPT, "1", &holders, "3"];
    assert_eq!(sentinels.replica.query::<u64>(&delete).await, 1);
    let generation = store.backend().server_generation();
    sentinels.start_failover().await;
    sentinels.wait_for_failover().await;
    wait_until_usable(&store).await;
    let lost = timeout(10 * SECOND, guard.lost()).await;
    assert!(lost.is_ok(), "the loss is detected");
    // Writes before the failover are not confirmed by replicas of the new master.
    let acks = store.backend().wait_for_replicas(key.shard(), 1, generation).await;
    assert!(acks.is_err(), "{acks:?}");
    let after = assert_store_works(&store, &sentinels.replica).await;
    assert!(after > before, "{after} after {before}");
    assert_eq!(used_databases(&sentinels.replica).await, ["db3"]);
}

/// Deletes a key in the given database.
const DELETE_SCRIPT: &str = "redis.call('SELECT', ARGV[1]); return redis.call('DEL', KEYS[1])";

#[tokio::test]
async fn cluster_is_used_with_user_of_url() {
    let cluster = TestCluster::start(3, false, 30 * SECOND).await;
    let mut user = ACL_SETUSER.to_vec();
    // Before 7.0, `CLUSTER` was an administrative command as a whole.
    user.push("+cluster");
    for at in 0..3 {
        cluster.send_command(at, &user).await;
    }
    let url = cluster.url("shop").replace("://", "://app:secret@");
    let store = Store::builder(&url).call_timeout(10 * SECOND).connect().await;
    let store = store.expect("the URL is right");
    let mut listener = WakeupListener::new(&store).await;
    for key in keys_in_distinct_shards(8) {
        let token = LockToken::new(store.node());
        let held = retry_while_unavailable(async || {
            store.backend().acquire(acquire_command(&key, &token)).await
        })
        .await;
        assert!(matches!(held, AcquireReply::Granted { .. }), "{held:?}");
        let released = store.backend().release(key.clone(), token, LockMode::Exclusive).await;
        assert_eq!(released.expect("it is there"), ReleaseOutcome::Released);
        let charged = store.backend().charge(charge_command(&key, 9)).await;
        assert_eq!(charged.expect("it is there").admitted, 1);
        // Over sharded channels, where the server has them.
        listener.assert_delivers_for(&store, &key).await;
    }
    let mut clients = String::new();
    for at in 0..3 {
        clients += &cluster.query::<String>(at, &["CLIENT", "LIST", "TYPE", "pubsub"]).await;
    }
    assert!(clients.lines().any(|line| line.contains("user=app")), "{clients}");
    assert_config_error(&url.replace("secret", "sesame"), "another password").await;
    assert_config_error(&url.replace("ns=shop", "ns=other"), "not its keys").await;
    for at in 0..3 {
        cluster.send_command(at, &["ACL", "SETUSER", "app", "resetchannels"]).await;
    }
    assert_config_error(&url, "not its channels").await;
}
