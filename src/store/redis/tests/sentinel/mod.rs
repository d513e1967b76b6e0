//! Masters that come and go, and sentinels that tell.

mod busy;
mod epochs;
pub(super) mod fake;
mod quota;
pub(super) mod rig;
mod thaw;
mod words;

use std::time::{Duration, Instant};

use self::fake::FakeSentinel;
use super::{
    super::target::{ConnectionSettings, ConnectionTarget, RedisTlsSettings, StoreUrl},
    NOBODY, SECOND,
    proxy::Proxy,
    server::Server,
    usable,
};
use crate::{
    error::{Error, ErrorKind},
    lock::ReleaseStatus,
    store::Store,
};

async fn config(connected: impl Future<Output = Result<Store, Error>>, word: &str) {
    let error = connected.await.expect_err(word);
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    assert!(error.to_string().contains(word), "{error}");
}

/// A pair of servers, the second a replica that has caught up.
async fn pair() -> (Server, Server) {
    let (master, replica) = (Server::start().await, Server::start().await);
    replica.command(&["REPLICAOF", "127.0.0.1", &master.port().to_string()]).await;
    caught_up(&replica).await;
    (master, replica)
}

pub(super) async fn caught_up(replica: &Server) {
    loop {
        let text: String = replica.ask(&["INFO", "replication"]).await;
        if text.contains("master_link_status:up") {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// By hand, as an operator does it: nobody's connection is closed.
async fn swap(master: &Server, replica: &Server, sentinel: &FakeSentinel) {
    replica.command(&["REPLICAOF", "NO", "ONE"]).await;
    sentinel.name(replica.port());
    master.command(&["REPLICAOF", "127.0.0.1", &replica.port().to_string()]).await;
}

#[tokio::test]
async fn one_sentinel_that_hangs_costs_nothing() {
    let server = Server::start().await;
    let (hangs, answers) = (FakeSentinel::hanging().await, FakeSentinel::of(server.port()).await);
    for nodes in [[&hangs, &answers], [&answers, &hangs]] {
        let urls = nodes.map(|sentinel| format!("redis://127.0.0.1:{}", sentinel.port()));
        let builder = Store::sentinel(urls, "mymaster").call_timeout(3 * SECOND);
        let store = builder.connect().await.expect("one tells");
        store.ping().await.expect("it is there");
    }
}

/// Two servers call themselves masters, and one sentinel does not know yet that its own is none any more.
#[tokio::test]
async fn what_most_sentinels_say_is_believed() {
    let (old, new) = (Server::start().await, Server::start().await);
    let late = FakeSentinel::of(old.port()).await;
    let others = [FakeSentinel::of(new.port()).await, FakeSentinel::of(new.port()).await];
    let hangs = FakeSentinel::hanging().await;
    let mut misled = 0;
    for number in 0..20 {
        let before = old.calls().await;
        let sentinels = [&late, &others[0], &others[1], &hangs];
        let urls = sentinels.map(|sentinel| format!("redis://127.0.0.1:{}", sentinel.port()));
        let builder = Store::sentinel(urls, "mymaster").call_timeout(4 * SECOND);
        let store = builder.connect().await.expect("they tell");
        let guard = store.lock(number.to_string()).acquire().await.expect("it is free");
        assert_eq!(guard.release().await, ReleaseStatus::Released);
        misled += u32::from(old.calls().await != before);
    }
    // Who is a tenth of a second behind the first that answers is not waited for, and this process may stand still for as
    // long; but not each time in which the late one is the first, which is a third of them.
    assert!(misled <= 2, "{misled} of 20 rounds");
}

#[tokio::test]
async fn a_replica_is_not_used_whatever_sentinels_say() {
    let (_master, replica) = pair().await;
    let sentinel = FakeSentinel::of(replica.port()).await;
    let store = Store::connect(&sentinel.url()).await.expect("the URL is right");
    let error = store.ping().await.expect_err("it is no master");
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    // One that is told of by hand neither, even if it would take writes.
    replica.command(&["CONFIG", "SET", "replica-read-only", "no"]).await;
    let error = replica.store().await.ping().await.expect_err("it is no master");
    assert_eq!(error.kind(), ErrorKind::Unavailable);
}

#[tokio::test]
async fn mistakes_are_told_at_the_start() {
    let server = Server::start().await;
    let sentinel = FakeSentinel::of(server.port()).await;
    let node = |port: u16| [format!("redis://127.0.0.1:{port}")];
    config(
        Store::sentinel(node(sentinel.port()), "other").call_timeout(10 * SECOND).connect(),
        "no master of this name",
    )
    .await;
    config(
        Store::sentinel(node(sentinel.port()), "").call_timeout(10 * SECOND).connect(),
        "by its name",
    )
    .await;
    config(
        Store::sentinel(node(server.port()), "mymaster").call_timeout(10 * SECOND).connect(),
        "no sentinel",
    )
    .await;
    config(
        Store::sentinel::<&str>([], "mymaster").call_timeout(10 * SECOND).connect(),
        "at least one sentinel",
    )
    .await;
    let mixed = ["redis://:a@127.0.0.1:1", "redis://:b@127.0.0.1:2"];
    config(Store::sentinel(mixed, "mymaster").call_timeout(10 * SECOND).connect(), "same login")
        .await;
}

/// One that was started empty knows no name; those that do are away.
#[tokio::test]
async fn a_name_that_is_not_known_is_an_outage_while_a_sentinel_is_away() {
    let server = Server::start().await;
    let sentinel = FakeSentinel::of(server.port()).await;
    let urls = [NOBODY.to_owned(), sentinel.port().to_string()];
    let urls = urls.map(|port| format!("redis://127.0.0.1:{port}"));
    let store = Store::sentinel(urls, "other").call_timeout(10 * SECOND).connect().await;
    let error = store.expect("one may know it").ping().await.expect_err("nobody has told");
    assert_eq!(error.kind(), ErrorKind::Unavailable);
}

/// A sentinel that was restarted has ended its connections, and answers.
#[tokio::test]
async fn a_sentinel_is_asked_again_where_its_connection_had_ended() {
    let server = Server::start().await;
    let sentinel = FakeSentinel::of(server.port()).await;
    let proxy = Proxy::to(sentinel.port()).await;
    let url = proxy.url().replace("redis://", "redis+sentinel://").replace("/?", "/mymaster?");
    let address = StoreUrl::parse(&url).expect("the URL is right");
    let target = ConnectionTarget::new(&address, &RedisTlsSettings::default(), SECOND)
        .expect("the URL is right");
    for _ in 0..5 {
        let opened = target.open(0, &ConnectionSettings::default()).await;
        assert!(opened.is_ok());
        proxy.end();
    }
}

#[tokio::test]
async fn a_demoted_master_is_left_at_its_first_refusal_and_by_the_listener() {
    let (master, replica) = pair().await;
    let sentinel = FakeSentinel::of(master.port()).await;
    let builder = Store::builder(&sentinel.url()).connections_per_node(4).call_timeout(5 * SECOND);
    let store = builder.connect().await.expect("the URL is right");
    // A waiter, so that somebody listens.
    let held = store.as_another_process().lock("x").min_replicas(1).acquire().await;
    let held = held.expect("it is free, and the replica has it");
    let waiter = crate::store::spawn(store.lock("x").wait(20 * SECOND).acquire());
    while master.subscribers().await == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    swap(&master, &replica, &sentinel).await;
    let started = Instant::now();
    let guard = store.lock("y").acquire().await.expect("the successor takes it");
    assert!(started.elapsed() < 4 * SECOND, "{:?}", started.elapsed());
    assert_eq!(guard.release().await, ReleaseStatus::Released);
    // Nobody listens to the old one any more, where messages still come from its own master.
    while master.subscribers().await > 0 || replica.subscribers().await == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(held.release().await, ReleaseStatus::Released);
    let guard = waiter.await.expect("no panic").expect("it is served");
    assert_eq!(guard.release().await, ReleaseStatus::Released);
    usable(&store).await;
}
