//! Who hears what, on which node.

use std::time::Duration;

use super::{
    keys_in_distinct_shards, retry_while_unavailable,
    wakeup_listener::{SECOND, WakeupListener},
};
use crate::{
    key::Key,
    store::{
        Store, backend::JobId, tests::test_cluster::TestCluster, wakeup_message::WakeupMessage,
    },
};

/// Of a cluster that can not tell the shards' messages apart.
const UNSUPPORTED_REASON: &str = "messages of shards, which this Redis has not (before 7.0)";

/// A word to the ear about this key, which is heard before long.
async fn send_and_receive(store: &Store, ear: &mut WakeupListener, key: &Key) {
    let hint = WakeupMessage::JobOffer(key.clone(), JobId::new(key));
    retry_while_unavailable(async || {
        store.backend().send_wakeup(ear.node.clone(), hint.clone()).await
    })
    .await;
    ear.wait_for_message(&hint).await;
}

/// Channels of a namespace that somebody listens to on a node: plain ones, and those of shards.
async fn subscribed_channels(
    cluster: &TestCluster,
    at: usize,
    namespace: &str,
) -> [Vec<String>; 2] {
    let pattern = format!("lg:1:{namespace}:*");
    [
        cluster.query(at, &["PUBSUB", "CHANNELS", &pattern]).await,
        cluster.query(at, &["PUBSUB", "SHARDCHANNELS", &pattern]).await,
    ]
}

#[tokio::test]
async fn shard_messages_come_from_owner_node_only() {
    let cluster = TestCluster::shared().await;
    if !cluster.supports_sharded_pubsub().await {
        // The table of faults shows it.
        return println!("not here: {UNSUPPORTED_REASON}");
    }
    let store = cluster.store_builder("told").call_timeout(20 * SECOND).connect().await.unwrap();
    let (mut ear, mut other) =
        (WakeupListener::new(&store).await, WakeupListener::new(&store).await);
    let mut all = 0;
    for at in 0..3 {
        let [plain, of_shards] = subscribed_channels(cluster, at, "told").await;
        assert_eq!(plain, [""; 0]);
        let mut own = 0;
        for shard in 0..crate::key::SHARD_COUNT {
            if cluster.slot_owner(cluster.slot_of_shard(shard).await).await == at {
                own += 1;
            }
        }
        // Of each of its shards the channels of two processes, and that of events.
        assert_eq!(of_shards.len(), 3 * own, "{of_shards:?}");
        all += of_shards.len();
    }
    assert_eq!(all, 3 * usize::from(crate::key::SHARD_COUNT));
    for key in keys_in_distinct_shards(64) {
        send_and_receive(&store, &mut ear, &key).await;
    }
    // What comes by the channel of events is for both of them.
    store.backend().set_jobs_paused(true).await.unwrap();
    store.backend().set_jobs_paused(false).await.unwrap();
    for ear in [&mut ear, &mut other] {
        ear.wait_for_message(&WakeupMessage::WorkersChanged).await;
    }
}

#[tokio::test]
async fn subscription_follows_moved_shard() {
    let cluster = TestCluster::start(3, false, Duration::from_secs(30)).await;
    if !cluster.supports_sharded_pubsub().await {
        // The table of faults shows it.
        return println!("not here: {UNSUPPORTED_REASON}");
    }
    let store = cluster.store_builder("follows").call_timeout(2 * SECOND).connect().await.unwrap();
    let mut ear = WakeupListener::new(&store).await;
    for key in keys_in_distinct_shards(4) {
        send_and_receive(&store, &mut ear, &key).await;
        let slot = cluster.slot_of_shard(key.shard()).await;
        let from = cluster.slot_owner(slot).await;
        let to = (from + 1) % 3;
        cluster.begin_slot_migration(slot, from, to).await;
        cluster.finish_slot_migration(slot, from, to).await;
        // It may have missed something, and is told so; nobody has called the store since.
        ear.wait_for_resync().await;
        send_and_receive(&store, &mut ear, &key).await;
        let tag = format!("{{{}}}", key.shard());
        let [_, left] = subscribed_channels(&cluster, from, "follows").await;
        assert!(left.iter().all(|channel| !channel.contains(&tag)), "{left:?}");
    }
}

#[tokio::test]
async fn killed_node_does_not_stop_messages_of_other_nodes() {
    let cluster = TestCluster::start(3, false, Duration::from_secs(30)).await;
    let store = cluster.store_builder("deaf").call_timeout(SECOND).connect().await.unwrap();
    let mut ear = WakeupListener::new(&store).await;
    let mut alive = Vec::new();
    for key in keys_in_distinct_shards(64) {
        if cluster.slot_owner(cluster.slot_of_shard(key.shard()).await).await != 1 {
            alive.push(key);
        }
    }
    cluster.signal_node(1, "-KILL").await;
    for key in &alive {
        send_and_receive(&store, &mut ear, key).await;
    }
    // One that begins to listen now hears them too.
    let mut late = WakeupListener::new(&store).await;
    for key in &alive {
        send_and_receive(&store, &mut late, key).await;
    }
}
