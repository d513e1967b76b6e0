//! Concerns about a server, and reasons not to use it, that are found when a connection is made.

use super::{
    SECOND,
    sentinel::fake_sentinel::{handshake_reply, start_scripted_server},
    server_process::ServerProcess,
};
use crate::{
    error::{Error, ErrorKind},
    store::{
        Store,
        key_names::COMMON_SHARD,
        redis::{
            connection_source::{ConnectionOverrides, ConnectionSource},
            server_info::{ServerConcern, ServerInfo},
            target::TimeoutAndDisconnectFlag,
        },
    },
};

/// Returns the concerns that the first connection finds.
async fn concerns_of(server: &ServerProcess) -> Vec<ServerConcern> {
    concerns_at_url(server.url()).await
}

async fn concerns_at_url(url: String) -> Vec<ServerConcern> {
    let (target, _) = ConnectionSource::Url(url)
        .into_target(ConnectionOverrides::default(), SECOND)
        .expect("a URL");
    let opened = target.open(COMMON_SHARD, &TimeoutAndDisconnectFlag::default()).await;
    let mut connection = opened.ok().expect("it is there").connection;
    let info = ServerInfo::fetch(&mut connection).await.ok().expect("it can answer");
    assert!(info.check_usable(false).is_ok());
    info.concerns(&mut connection).await
}

async fn set_config(server: &ServerProcess, name: &str, value: &str) {
    server.command(&["CONFIG", "SET", name, value]).await;
}

#[tokio::test]
async fn server_without_persistence_raises_concern() {
    let server = ServerProcess::start().await;
    assert_eq!(concerns_of(&server).await, [ServerConcern::NotPersistent]);
    assert!(ServerConcern::NotPersistent.to_string().contains("`appendonly yes`"));
    // Snapshots suffice.
    set_config(&server, "save", "3600 1").await;
    assert_eq!(concerns_of(&server).await, []);
    set_config(&server, "save", "").await;
    set_config(&server, "appendonly", "yes").await;
    assert_eq!(concerns_of(&server).await, []);
}

#[tokio::test]
async fn evicting_server_raises_concern_with_its_policy() {
    let server = ServerProcess::start().await;
    set_config(&server, "save", "3600 1").await;
    // Without a memory limit, the server evicts nothing.
    set_config(&server, "maxmemory-policy", "allkeys-lru").await;
    assert_eq!(concerns_of(&server).await, []);
    set_config(&server, "maxmemory", "1gb").await;
    let evicts = |policy: &str| [ServerConcern::EvictsKeys(policy.to_owned())];
    assert_eq!(concerns_of(&server).await, evicts("allkeys-lru"));
    // Nearly all keys have a TTL.
    set_config(&server, "maxmemory-policy", "volatile-ttl").await;
    assert_eq!(concerns_of(&server).await, evicts("volatile-ttl"));
    assert!(evicts("volatile-ttl")[0].to_string().contains("(volatile-ttl)"));
    set_config(&server, "maxmemory-policy", "noeviction").await;
    assert_eq!(concerns_of(&server).await, []);
}

/// Without these commands, nothing wrong can be found. So the concern names the missing check.
#[tokio::test]
async fn denied_info_and_config_commands_raise_concerns() {
    let server = ServerProcess::start().await;
    let url = server.url().replace("://", "://app:secret@");
    let concerns_with_rule = async |rule: &str| -> Vec<String> {
        let user = ["ACL", "SETUSER", "app", "on", ">secret", "~*", "&*", "+@all", rule];
        server.command(&user).await;
        concerns_at_url(url.clone()).await.iter().map(ToString::to_string).collect()
    };
    let [concern] = &concerns_with_rule("-info").await[..] else { panic!("one is enough") };
    assert!(concern.contains("`INFO`") && concern.contains("role"), "{concern}");
    assert!(concern.contains("fences may go back") && concern.contains("+info"), "{concern}");
    server.command(&["ACL", "DELUSER", "app"]).await;
    let [concern] = &concerns_with_rule("-config").await[..] else {
        panic!("it may make snapshots")
    };
    assert!(concern.contains("`CONFIG GET save`"), "{concern}");
    set_config(&server, "appendonly", "yes").await;
    assert_eq!(concerns_with_rule("-config").await, [""; 0]);
}

/// Connects to a scripted server with this version and role. The tests' server is newer.
async fn connect_to_scripted_server(
    version: &'static str,
    role: &'static str,
) -> Result<Store, Error> {
    let info = format!("redis_version:{version}\r\nrun_id:a\r\nrole:{role}\r\n");
    let port = start_scripted_server(move |args| Some(handshake_reply(args, &info))).await;
    let url = format!("redis://127.0.0.1:{port}/?ns=test");
    Store::builder(&url).call_timeout(5 * SECOND).connect().await
}

#[tokio::test]
async fn old_server_is_config_error_and_replica_is_outage() {
    let store = connect_to_scripted_server("7.2.0", "master").await.expect("it can be used");
    store.ping().await.expect("it is there");
    let error = connect_to_scripted_server("6.0.16", "master").await.expect_err("it is too old");
    assert_eq!(error.kind(), ErrorKind::Config);
    assert!(error.to_string().contains("version 6.0 is too old; use Redis 6.2"), "{error}");
    let store =
        connect_to_scripted_server("7.2.0", "slave").await.expect("an outage is no mistake");
    let error = store.ping().await.expect_err("it is not used");
    assert_eq!(error.kind(), ErrorKind::Unavailable);
}
