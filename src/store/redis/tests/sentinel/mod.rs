//! Masters that are named by sentinels.

mod busy_server;
mod config_epochs;
mod failover_events;
mod failover_quota;
pub(super) mod fake_sentinel;
mod resumed_master;
pub(super) mod sentinel_setup;

use std::time::{Duration, Instant};

use self::fake_sentinel::FakeSentinel;
use super::{
    super::target::{ConnectionTarget, RedisTlsSettings, StoreUrl, TimeoutAndDisconnectFlag},
    SECOND, UNUSED_PORT,
    lossy_proxy::LossyProxy,
    server_process::ServerProcess,
    wait_until_usable,
};
use crate::{
    error::{Error, ErrorKind},
    lock::ReleaseStatus,
    store::Store,
};

async fn assert_config_error(
    connected: impl Future<Output = Result<Store, Error>>,
    expected: &str,
) {
    let error = connected.await.expect_err(expected);
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    assert!(error.to_string().contains(expected), "{error}");
}

/// Starts a master, and a replica that has caught up.
async fn start_replicated_pair() -> (ServerProcess, ServerProcess) {
    let (master, replica) = (ServerProcess::start().await, ServerProcess::start().await);
    replica.command(&["REPLICAOF", "127.0.0.1", &master.port().to_string()]).await;
    wait_until_replicated(&replica).await;
    (master, replica)
}

pub(super) async fn wait_until_replicated(replica: &ServerProcess) {
    loop {
        let text: String = replica.query(&["INFO", "replication"]).await;
        if text.contains("master_link_status:up") {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Swaps the roles as an operator does: no connection is closed.
async fn swap_roles(master: &ServerProcess, replica: &ServerProcess, sentinel: &FakeSentinel) {
    replica.command(&["REPLICAOF", "NO", "ONE"]).await;
    sentinel.set_master(replica.port());
    master.command(&["REPLICAOF", "127.0.0.1", &replica.port().to_string()]).await;
}

#[tokio::test]
async fn hanging_sentinel_does_not_delay_connect() {
    let server = ServerProcess::start().await;
    let (hangs, answers) =
        (FakeSentinel::hanging().await, FakeSentinel::monitoring(server.port()).await);
    for nodes in [[&hangs, &answers], [&answers, &hangs]] {
        let urls = nodes.map(|sentinel| format!("redis://127.0.0.1:{}", sentinel.port()));
        let builder = Store::sentinel(urls, "mymaster").call_timeout(3 * SECOND);
        let store = builder.connect().await.expect("one sentinel answers");
        store.ping().await.expect("it is there");
    }
}

/// Two servers act as masters, and one sentinel does not know of the failover yet.
#[tokio::test]
async fn majority_of_sentinels_chooses_master() {
    let (old, new) = (ServerProcess::start().await, ServerProcess::start().await);
    let late_sentinel = FakeSentinel::monitoring(old.port()).await;
    let others =
        [FakeSentinel::monitoring(new.port()).await, FakeSentinel::monitoring(new.port()).await];
    let hangs = FakeSentinel::hanging().await;
    let mut misled = 0;
    for number in 0..20 {
        let before = old.count_script_calls().await;
        let sentinels = [&late_sentinel, &others[0], &others[1], &hangs];
        let urls = sentinels.map(|sentinel| format!("redis://127.0.0.1:{}", sentinel.port()));
        let builder = Store::sentinel(urls, "mymaster").call_timeout(4 * SECOND);
        let store = builder.connect().await.expect("the sentinels answer");
        let guard = store.lock(number.to_string()).acquire().await.expect("it is free");
        assert_eq!(guard.release().await, ReleaseStatus::Released);
        misled += u32::from(old.count_script_calls().await != before);
    }
    // A sentinel is not awaited if it is a tenth of a second later than the first one. This process
    // may pause for as long, but not whenever the late sentinel answers first, in a third of the
    // rounds.
    assert!(misled <= 2, "{misled} of 20 rounds");
}

#[tokio::test]
async fn replica_named_by_sentinel_is_not_used() {
    let (_master, replica) = start_replicated_pair().await;
    let sentinel = FakeSentinel::monitoring(replica.port()).await;
    let store = Store::connect(&sentinel.url()).await.expect("the URL is right");
    let error = store.ping().await.expect_err("it is no master");
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    // A replica that a URL names is not used either, even if it accepted writes.
    replica.command(&["CONFIG", "SET", "replica-read-only", "no"]).await;
    let error = replica.connect_store().await.ping().await.expect_err("it is no master");
    assert_eq!(error.kind(), ErrorKind::Unavailable);
}

#[tokio::test]
async fn invalid_sentinel_settings_fail_at_connect() {
    let server = ServerProcess::start().await;
    let sentinel = FakeSentinel::monitoring(server.port()).await;
    let node = |port: u16| [format!("redis://127.0.0.1:{port}")];
    assert_config_error(
        Store::sentinel(node(sentinel.port()), "other").call_timeout(10 * SECOND).connect(),
        "no master of this name",
    )
    .await;
    assert_config_error(
        Store::sentinel(node(sentinel.port()), "").call_timeout(10 * SECOND).connect(),
        "name of the sentinels' master is empty",
    )
    .await;
    assert_config_error(
        Store::sentinel(node(server.port()), "mymaster").call_timeout(10 * SECOND).connect(),
        "is not a sentinel",
    )
    .await;
    assert_config_error(
        Store::sentinel::<&str>([], "mymaster").call_timeout(10 * SECOND).connect(),
        "at least one sentinel",
    )
    .await;
    let mixed = ["redis://:a@127.0.0.1:1", "redis://:b@127.0.0.1:2"];
    assert_config_error(
        Store::sentinel(mixed, "mymaster").call_timeout(10 * SECOND).connect(),
        "same login",
    )
    .await;
}

/// A sentinel that was started empty knows no master name. Those that know it are down.
#[tokio::test]
async fn unknown_master_name_is_outage_while_sentinel_is_down() {
    let server = ServerProcess::start().await;
    let sentinel = FakeSentinel::monitoring(server.port()).await;
    let urls = [UNUSED_PORT.to_owned(), sentinel.port().to_string()];
    let urls = urls.map(|port| format!("redis://127.0.0.1:{port}"));
    let store = Store::sentinel(urls, "other").call_timeout(10 * SECOND).connect().await;
    let error = store
        .expect("an unavailable sentinel is no config error")
        .ping()
        .await
        .expect_err("no sentinel names a master");
    assert_eq!(error.kind(), ErrorKind::Unavailable);
}

/// A restarted sentinel has closed its connections, and answers on new ones.
#[tokio::test]
async fn ended_sentinel_connection_is_replaced() {
    let server = ServerProcess::start().await;
    let sentinel = FakeSentinel::monitoring(server.port()).await;
    let proxy = LossyProxy::to(sentinel.port()).await;
    let url = proxy.url().replace("redis://", "redis+sentinel://").replace("/?", "/mymaster?");
    let address = StoreUrl::parse(&url).expect("the URL is right");
    let target = ConnectionTarget::new(&address, &RedisTlsSettings::default(), SECOND)
        .expect("the URL is right");
    for _ in 0..5 {
        let opened = target.open(0, &TimeoutAndDisconnectFlag::default()).await;
        assert!(opened.is_ok());
        proxy.end_connections();
    }
}

#[tokio::test]
async fn demoted_master_is_left_by_calls_and_subscriber() {
    let (master, replica) = start_replicated_pair().await;
    let sentinel = FakeSentinel::monitoring(master.port()).await;
    let builder = Store::builder(&sentinel.url()).connections_per_node(4).call_timeout(5 * SECOND);
    let store = builder.connect().await.expect("the URL is right");
    // A waiter, so that there is a subscription.
    let held = store.as_another_process().lock("x").min_replicas(1).acquire().await;
    let held = held.expect("it is free, and the replica has it");
    let waiter = crate::store::spawn(store.lock("x").wait(20 * SECOND).acquire());
    while master.count_subscribers().await == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    swap_roles(&master, &replica, &sentinel).await;
    let started = Instant::now();
    let guard = store.lock("y").acquire().await.expect("the new master grants it");
    assert!(started.elapsed() < 4 * SECOND, "{:?}", started.elapsed());
    assert_eq!(guard.release().await, ReleaseStatus::Released);
    // The old master has no subscribers left, although it still forwards messages of the new one.
    while master.count_subscribers().await > 0 || replica.count_subscribers().await == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(held.release().await, ReleaseStatus::Released);
    let guard = waiter.await.expect("no panic").expect("it is served");
    assert_eq!(guard.release().await, ReleaseStatus::Released);
    wait_until_usable(&store).await;
}
