//! Who hears what, on which node.

use std::time::Duration;

use super::{
    ear::{Ear, SECOND},
    insist, keys,
};
use crate::{
    key::Key,
    store::{Store, backend::JobId, tests::cluster::Cluster, wakeups::WakeupMessage},
};

/// Of a cluster that can not tell the shards' messages apart.
const OLD: &str = "messages of shards, which this Redis has not (before 7.0)";

/// A word to the ear about this key, which is heard before long.
async fn tells(store: &Store, ear: &mut Ear, key: &Key) {
    let hint = WakeupMessage::JobOffer(key.clone(), JobId::new(key));
    insist(async || store.backend().send_wakeup(ear.node.clone(), hint.clone()).await).await;
    ear.hears_this(&hint).await;
}

/// Channels of a namespace that somebody listens to on a node: plain ones, and those of shards.
async fn channels(cluster: &Cluster, at: usize, namespace: &str) -> [Vec<String>; 2] {
    let pattern = format!("lg:1:{namespace}:*");
    [
        cluster.ask(at, &["PUBSUB", "CHANNELS", &pattern]).await,
        cluster.ask(at, &["PUBSUB", "SHARDCHANNELS", &pattern]).await,
    ]
}

#[tokio::test]
async fn what_is_about_a_shard_is_told_by_its_node_alone() {
    let cluster = Cluster::shared().await;
    if !cluster.tells_shards().await {
        // The table of faults shows it.
        return println!("not here: {OLD}");
    }
    let store = cluster.builder("told").call_timeout(20 * SECOND).connect().await.unwrap();
    let (mut ear, mut other) = (Ear::new(&store).await, Ear::new(&store).await);
    let mut all = 0;
    for at in 0..3 {
        let [plain, of_shards] = channels(cluster, at, "told").await;
        assert_eq!(plain, [""; 0]);
        let mut own = 0;
        for shard in 0..crate::key::SHARD_COUNT {
            if cluster.owner(cluster.slot(shard).await).await == at {
                own += 1;
            }
        }
        // Of each of its shards the channels of two processes, and that of events.
        assert_eq!(of_shards.len(), 3 * own, "{of_shards:?}");
        all += of_shards.len();
    }
    assert_eq!(all, 3 * usize::from(crate::key::SHARD_COUNT));
    for key in keys(64) {
        tells(&store, &mut ear, &key).await;
    }
    // What comes by the channel of events is for both of them.
    store.backend().set_jobs_paused(true).await.unwrap();
    store.backend().set_jobs_paused(false).await.unwrap();
    for ear in [&mut ear, &mut other] {
        ear.hears_this(&WakeupMessage::WorkersChanged).await;
    }
}

#[tokio::test]
async fn who_listens_follows_a_shard_that_moves() {
    let cluster = Cluster::start(3, false, Duration::from_secs(30)).await;
    if !cluster.tells_shards().await {
        // The table of faults shows it.
        return println!("not here: {OLD}");
    }
    let store = cluster.builder("follows").call_timeout(2 * SECOND).connect().await.unwrap();
    let mut ear = Ear::new(&store).await;
    for key in keys(4) {
        tells(&store, &mut ear, &key).await;
        let slot = cluster.slot(key.shard()).await;
        let from = cluster.owner(slot).await;
        let to = (from + 1) % 3;
        cluster.begin_move(slot, from, to).await;
        cluster.end_move(slot, from, to).await;
        // It may have missed something, and is told so; nobody has called the store since.
        ear.resyncs().await;
        tells(&store, &mut ear, &key).await;
        let tag = format!("{{{}}}", key.shard());
        let [_, left] = channels(&cluster, from, "follows").await;
        assert!(left.iter().all(|channel| !channel.contains(&tag)), "{left:?}");
    }
}

#[tokio::test]
async fn a_node_that_is_gone_makes_nobody_deaf_for_the_others() {
    let cluster = Cluster::start(3, false, Duration::from_secs(30)).await;
    let store = cluster.builder("deaf").call_timeout(SECOND).connect().await.unwrap();
    let mut ear = Ear::new(&store).await;
    let mut alive = Vec::new();
    for key in keys(64) {
        if cluster.owner(cluster.slot(key.shard()).await).await != 1 {
            alive.push(key);
        }
    }
    cluster.signal(1, "-KILL").await;
    for key in &alive {
        tells(&store, &mut ear, key).await;
    }
    // One that begins to listen now hears them too.
    let mut late = Ear::new(&store).await;
    for key in &alive {
        tells(&store, &mut late, key).await;
    }
}
