//! A cluster without faults.

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

/// Returns a number from `INFO commandstats` of one node.
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
        let token = LockToken::new(store.node());
        let held = store.backend().acquire(acquire_command(&key, &token)).await.unwrap();
        assert!(matches!(held, AcquireReply::Granted { .. }), "{held:?}");
        assert_eq!(store.backend().charge(charge_command(&key, 1)).await.unwrap().admitted, 1);
        let released = store.backend().release(key, token, LockMode::Exclusive).await.unwrap();
        assert_eq!(released, ReleaseOutcome::Released);
    }
    let mut call_counts = Vec::new();
    for (at, before) in before.into_iter().enumerate() {
        call_counts.push(command_stat(&cluster, at, "cmdstat_evalsha:calls=").await - before);
    }
    println!("script calls a node: {call_counts:?}");
    // 192 calls over 64 shards: each node has at least a quarter of them.
    assert!(call_counts.iter().all(|calls| *calls >= 48), "{call_counts:?}");
    // Each node has its own script cache.
    for at in 0..3 {
        cluster.send_command(at, &["SCRIPT", "FLUSH"]).await;
    }
    for key in keys_in_distinct_shards(64) {
        let token = LockToken::new(store.node());
        store.backend().acquire(acquire_command(&key, &token)).await.unwrap();
        store.backend().release(key, token, LockMode::Exclusive).await.unwrap();
    }
}

/// Locks of one shard are acquired in one call, others one after another.
#[tokio::test]
async fn acquire_all_takes_locks_of_one_shard_in_one_call() {
    let cluster = TestCluster::shared().await;
    let builder = cluster.store_builder("several").call_timeout(Duration::from_secs(10));
    let store = builder.connect().await.unwrap();
    let mut keys = (0..).map(|n: u32| Key::custom(&n.to_string()));
    let first = keys.next().unwrap();
    let same_shard = keys.find(|key| key.shard() == first.shard()).unwrap();
    let other_shard = keys.find(|key| key.shard() != first.shard()).unwrap();
    let call = |key: &Key| acquire_command(key, &LockToken::new(store.node()));
    let calls = [&first, &same_shard].map(call);
    let held = store.backend().acquire_all(&calls).await.unwrap().expect("they are free");
    assert!(held.iter().all(|held| matches!(held, AcquireReply::Granted { .. })), "{held:?}");
    for call in calls {
        let released = store.backend().release(call.key, call.token, call.mode).await.unwrap();
        assert_eq!(released, ReleaseOutcome::Released);
    }
    assert_eq!(store.backend().acquire_all(&[&first, &other_shard].map(call)).await.unwrap(), None);
    let set = store.locks([first, same_shard, other_shard]).acquire().await.expect("they are free");
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
    let standalone = super::super::server_process::ServerProcess::start().await;
    let standalone = standalone.url().replace("redis:", "redis+cluster:");
    assert_eq!(kind(&standalone).await, ErrorKind::Config);
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
    let (token, other) = (LockToken::new(store.node()), LockToken::new(store.node()));
    retry_while_unavailable(async || store.backend().acquire(acquire_command(&key, &token)).await)
        .await;
    let slot = cluster.slot_of_shard(key.shard()).await;
    let source = cluster.slot_owner(slot).await;
    let target = (source + 1) % 3;
    let count_keys = async || {
        let keys: u64 =
            cluster.query(source, &["CLUSTER", "COUNTKEYSINSLOT", &slot.to_string()]).await;
        keys
    };
    let before = count_keys().await;
    cluster.begin_slot_migration(slot, source, target).await;
    // All keys that the scripts read are still on the source, and none that they would create.
    let release =
        async || store.backend().release(key.clone(), token.clone(), LockMode::Exclusive).await;
    // A call in flight at its deadline may have run.
    let assert_outage = |error: crate::Error| {
        assert!(matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Timeout), "{error:?}");
    };
    assert_outage(release().await.expect_err("it may not run here, nor there"));
    assert_outage(
        store.backend().acquire(acquire_command(&key, &other)).await.expect_err("nor this"),
    );
    assert_eq!(count_keys().await, before);
    // Other slots are not affected.
    let neighbour = keys_in_distinct_shards(64).remove(7);
    retry_while_unavailable(async || {
        store.backend().acquire(acquire_command(&neighbour, &other)).await
    })
    .await;
    cluster.finish_slot_migration(slot, source, target).await;
    // A release whose reply came too late is sent again, and finds the lock released.
    assert!(matches!(
        retry_while_unavailable(release).await,
        ReleaseOutcome::Released | ReleaseOutcome::NotFound
    ));
    let held = retry_while_unavailable(async || {
        store.backend().acquire(acquire_command(&key, &other)).await
    })
    .await;
    assert!(matches!(held, AcquireReply::Granted { .. }), "{held:?}");
    assert_eq!(count_keys().await, 0);
}
