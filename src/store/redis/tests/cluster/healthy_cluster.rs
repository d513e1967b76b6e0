//! What holds while nothing happens to the cluster.

use std::time::Duration;

use super::{acquire_command, charge_command, keys_in_distinct_shards, retry_while_unavailable};
use crate::{
    error::ErrorKind,
    key::Key,
    lock::ReleaseStatus,
    store::{
        Store,
        backend::{AcquireReply, LockMode, LockToken, ReleaseOutcome},
        tests::test_cluster::TestCluster,
    },
};

/// Of one node.
async fn command_stat(cluster: &TestCluster, at: usize, field: &str) -> u64 {
    let text: String = cluster.query(at, &["INFO", "commandstats"]).await;
    let found =
        text.split(['\r', '\n', ',']).find_map(|line| line.strip_prefix(field)?.parse().ok());
    found.unwrap_or(0)
}

#[tokio::test]
async fn load_over_all_shards_is_spread_over_all_nodes() {
    let cluster = TestCluster::start(3, false, Duration::from_secs(30)).await;
    let store = cluster
        .store_builder("spread")
        .call_timeout(Duration::from_secs(10))
        .connect()
        .await
        .unwrap();
    let before =
        [0, 1, 2].map(async |at| command_stat(&cluster, at, "cmdstat_evalsha:calls=").await);
    let before = futures_util::future::join_all(before).await;
    for key in keys_in_distinct_shards(64) {
        let me = LockToken::new(store.node());
        let held = store.backend().acquire(acquire_command(&key, &me)).await.unwrap();
        assert!(matches!(held, AcquireReply::Granted { .. }), "{held:?}");
        assert_eq!(store.backend().charge(charge_command(&key, 1)).await.unwrap().admitted, 1);
        let gave = store.backend().release(key, me, LockMode::Exclusive).await.unwrap();
        assert_eq!(gave, ReleaseOutcome::Released);
    }
    let mut counted = Vec::new();
    for (at, before) in before.into_iter().enumerate() {
        counted.push(command_stat(&cluster, at, "cmdstat_evalsha:calls=").await - before);
    }
    println!("script calls a node: {counted:?}");
    // 192 steps over 64 shards; no node has less than a quarter of them.
    assert!(counted.iter().all(|calls| *calls >= 48), "{counted:?}");
    // Each node knows the scripts for itself.
    for at in 0..3 {
        cluster.send_command(at, &["SCRIPT", "FLUSH"]).await;
    }
    for key in keys_in_distinct_shards(64) {
        let me = LockToken::new(store.node());
        store.backend().acquire(acquire_command(&key, &me)).await.unwrap();
        store.backend().release(key, me, LockMode::Exclusive).await.unwrap();
    }
}

/// Several locks go in one call where they are of one shard, and one after the other where they are not.
#[tokio::test]
async fn acquire_all_takes_locks_of_one_shard_in_one_call() {
    let cluster = TestCluster::shared().await;
    let builder = cluster.store_builder("several").call_timeout(Duration::from_secs(10));
    let store = builder.connect().await.unwrap();
    let mut all = (0..).map(|n: u32| Key::custom(&n.to_string()));
    let first = all.next().unwrap();
    let beside = all.find(|key| key.shard() == first.shard()).unwrap();
    let other = all.find(|key| key.shard() != first.shard()).unwrap();
    let call = |key: &Key| acquire_command(key, &LockToken::new(store.node()));
    let calls = [&first, &beside].map(call);
    let held = store.backend().acquire_all(&calls).await.unwrap().expect("they are free");
    assert!(held.iter().all(|held| matches!(held, AcquireReply::Granted { .. })), "{held:?}");
    for call in calls {
        let gave = store.backend().release(call.key, call.token, call.mode).await.unwrap();
        assert_eq!(gave, ReleaseOutcome::Released);
    }
    assert_eq!(store.backend().acquire_all(&[&first, &other].map(call)).await.unwrap(), None);
    let set = store.locks([first, beside, other]).acquire().await.expect("they are free");
    assert_eq!(set.release().await, ReleaseStatus::Released);
}

#[tokio::test]
async fn invalid_cluster_url_fails_at_connect() {
    let cluster = TestCluster::shared().await;
    let url = cluster.url("wrong");
    let database = url.replace("/?", "/1?");
    let kind = async |url: &str| {
        let store = Store::builder(url).call_timeout(Duration::from_secs(10));
        store.connect().await.expect_err("it is wrong").kind()
    };
    assert_eq!(kind(&database).await, ErrorKind::Config);
    let password = url.replace("://", "://nobody:secret@");
    assert_eq!(kind(&password).await, ErrorKind::Config);
    let alone = super::super::server_process::ServerProcess::start().await;
    let alone = alone.url().replace("redis:", "redis+cluster:");
    assert_eq!(kind(&alone).await, ErrorKind::Config);
    let shards = ["HSET", "lg:1:wrong:{0}:meta", "shards", "32"];
    let owner = cluster.slot_owner(cluster.slot_of_shard(0).await).await;
    cluster.send_command(owner, &shards).await;
    assert_eq!(kind(&url).await, ErrorKind::Config);
}

#[tokio::test]
async fn no_script_runs_in_slot_being_migrated() {
    let cluster = TestCluster::start(3, false, Duration::from_secs(30)).await;
    let store = cluster.store_builder("way").connect().await.unwrap();
    let key = keys_in_distinct_shards(1).remove(0);
    let (me, other) = (LockToken::new(store.node()), LockToken::new(store.node()));
    retry_while_unavailable(async || store.backend().acquire(acquire_command(&key, &me)).await)
        .await;
    let slot = cluster.slot_of_shard(key.shard()).await;
    let from = cluster.slot_owner(slot).await;
    let to = (from + 1) % 3;
    let count = async || {
        let keys: u64 =
            cluster.query(from, &["CLUSTER", "COUNTKEYSINSLOT", &slot.to_string()]).await;
        keys
    };
    let before = count().await;
    cluster.begin_slot_migration(slot, from, to).await;
    // All that it would need is still here, and all that it would make is not.
    let release =
        async || store.backend().release(key.clone(), me.clone(), LockMode::Exclusive).await;
    // What is under way when the deadline is over may have run, as far as anybody knows.
    let away = |error: crate::Error| {
        assert!(matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Timeout), "{error:?}");
    };
    away(release().await.expect_err("it may not run here, nor there"));
    away(store.backend().acquire(acquire_command(&key, &other)).await.expect_err("nor this"));
    assert_eq!(count().await, before);
    // Elsewhere all goes on.
    let neighbour = keys_in_distinct_shards(64).remove(7);
    retry_while_unavailable(async || {
        store.backend().acquire(acquire_command(&neighbour, &other)).await
    })
    .await;
    cluster.finish_slot_migration(slot, from, to).await;
    // One whose answer came too late is made again, and finds it given back.
    assert!(matches!(
        retry_while_unavailable(release).await,
        ReleaseOutcome::Released | ReleaseOutcome::NotFound
    ));
    let held = retry_while_unavailable(async || {
        store.backend().acquire(acquire_command(&key, &other)).await
    })
    .await;
    assert!(matches!(held, AcquireReply::Granted { .. }), "{held:?}");
    assert_eq!(count().await, 0);
}
