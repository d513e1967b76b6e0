//! Channels on which each node delivers wake-ups.

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

/// Reason why a cluster without sharded channels is skipped.
const UNSUPPORTED_REASON: &str = "messages of shards, which this Redis has not (before 7.0)";

/// Sends a wake-up about the key, and waits until it is received.
async fn send_and_receive(store: &Store, listener: &mut WakeupListener, key: &Key) {
    let message = WakeupMessage::JobOffer(key.clone(), JobId::new(key));
    retry_while_unavailable(async || {
        store.backend().send_wakeup(listener.node.clone(), message.clone()).await
    })
    .await;
    listener.wait_for_message(&message).await;
}

/// Returns the subscribed channels of a namespace on a node: plain ones and sharded ones.
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
        // The fault table reports the skip.
        return println!("not here: {UNSUPPORTED_REASON}");
    }
    let store = cluster.store_builder("told").call_timeout(20 * SECOND).connect().await.unwrap();
    let (mut listener, mut other_listener) =
        (WakeupListener::new(&store).await, WakeupListener::new(&store).await);
    let mut all = 0;
    for at in 0..3 {
        let [plain, of_shards] = subscribed_channels(cluster, at, "told").await;
        assert_eq!(plain, [""; 0]);
        let mut owned_shards = 0;
        for shard in 0..crate::key::SHARD_COUNT {
            if cluster.slot_owner(cluster.slot_of_shard(shard).await).await == at {
                owned_shards += 1;
            }
        }
        // For each of its shards, the channels of two processes and the channel of events.
        assert_eq!(of_shards.len(), 3 * owned_shards, "{of_shards:?}");
        all += of_shards.len();
    }
    assert_eq!(all, 3 * usize::from(crate::key::SHARD_COUNT));
    for key in keys_in_distinct_shards(64) {
        send_and_receive(&store, &mut listener, &key).await;
    }
    // A message on the channel of events reaches both listeners.
    store.backend().set_jobs_paused(true).await.unwrap();
    store.backend().set_jobs_paused(false).await.unwrap();
    for listener in [&mut listener, &mut other_listener] {
        listener.wait_for_message(&WakeupMessage::WorkersChanged).await;
    }
}

#[tokio::test]
async fn subscription_follows_moved_shard() {
    let cluster = TestCluster::start(3, false, Duration::from_secs(30)).await;
    if !cluster.supports_sharded_pubsub().await {
        // The fault table reports the skip.
        return println!("not here: {UNSUPPORTED_REASON}");
    }
    let store = cluster.store_builder("follows").call_timeout(2 * SECOND).connect().await.unwrap();
    let mut listener = WakeupListener::new(&store).await;
    for key in keys_in_distinct_shards(4) {
        send_and_receive(&store, &mut listener, &key).await;
        let slot = cluster.slot_of_shard(key.shard()).await;
        let source = cluster.slot_owner(slot).await;
        let target = (source + 1) % 3;
        cluster.begin_slot_migration(slot, source, target).await;
        cluster.finish_slot_migration(slot, source, target).await;
        // The listener gets a resync, since messages may be lost. No call was made since the move.
        listener.wait_for_resync().await;
        send_and_receive(&store, &mut listener, &key).await;
        let tag = format!("{{{}}}", key.shard());
        let [_, sharded] = subscribed_channels(&cluster, source, "follows").await;
        assert!(sharded.iter().all(|channel| !channel.contains(&tag)), "{sharded:?}");
    }
}

#[tokio::test]
async fn killed_node_does_not_stop_messages_of_other_nodes() {
    let cluster = TestCluster::start(3, false, Duration::from_secs(30)).await;
    let store = cluster.store_builder("deaf").call_timeout(SECOND).connect().await.unwrap();
    let mut listener = WakeupListener::new(&store).await;
    let mut live_keys = Vec::new();
    for key in keys_in_distinct_shards(64) {
        if cluster.slot_owner(cluster.slot_of_shard(key.shard()).await).await != 1 {
            live_keys.push(key);
        }
    }
    let is_sharded = cluster.supports_sharded_pubsub().await;
    cluster.signal_node(1, "-KILL").await;
    if !is_sharded {
        // A plain subscription is on one node, perhaps the killed one. It moves, and messages are
        // lost until then.
        listener.assert_delivers_for(&store, &live_keys[0]).await;
    }
    for key in &live_keys {
        send_and_receive(&store, &mut listener, key).await;
    }
    // A new listener receives them as well.
    let mut late_listener = WakeupListener::new(&store).await;
    for key in &live_keys {
        send_and_receive(&store, &mut late_listener, key).await;
    }
}
