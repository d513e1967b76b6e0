//! Subscriptions in a cluster: one for each cluster node that owns shards.
//!
//! A node of version 7.0 or newer publishes messages about a shard on a channel of that shard, only
//! to its subscribers. The other nodes do not handle these messages, and the publisher learns the
//! number of receivers. Older nodes forward all messages to each other, so one subscription among
//! them receives everything. The kind of a node is determined at the node: here by subscribing, in
//! scripts by its version. So processes need no agreement on it, and the nodes may have different
//! versions.
//!
//! An unavailable node does not affect the subscriptions to the others. When a shard has moved, its
//! old owner ends the subscription and the map changes. Each change of the map renews all
//! subscriptions.

use std::sync::Weak;

use futures_util::future::join_all;
use tokio::{
    sync::{Semaphore, SemaphorePermit},
    time::timeout,
};

use super::{MessageSubscriber, RetryDelay, deliver_messages, deliver_wakeup};
use crate::store::{
    key_names::COMMON_SHARD,
    redis::target::{ClusterTarget, Endpoint, MessageStream},
    wakeups::{WakeupMessage, Wakeups},
};

/// Node with the shards that it owns.
type NodeShards = (Endpoint, Vec<u16>);

/// Result of an attempt to subscribe to a node.
enum Subscription<'a> {
    ShardChannels(MessageStream),
    /// Channels of all nodes without shard channels, and the permit for this one subscription.
    AllChannels(MessageStream, SemaphorePermit<'a>),
    /// Another subscription receives this node's messages.
    Covered,
    Failed,
}

impl MessageSubscriber {
    /// Delivers messages until the map changes. Returns false at once if no subscription could be
    /// made.
    pub(super) async fn deliver_from_nodes(
        &self,
        cluster: &ClusterTarget,
        hints: &Weak<Wakeups>,
    ) -> bool {
        // Afterwards the map is known.
        let _ = timeout(self.connect_timeout, cluster.owner(COMMON_SHARD)).await;
        let shares = cluster.shards_by_owner();
        let all = Semaphore::new(1);
        let ears =
            join_all(shares.iter().map(|share| self.subscribe_to_node(cluster, share, &all))).await;
        if ears.iter().all(|ear| matches!(ear, Subscription::Failed | Subscription::Covered)) {
            return false;
        }
        // One resync for all subscriptions.
        deliver_wakeup(hints, Some(WakeupMessage::Resync));
        let heard = shares.iter().zip(ears).map(|(share, ear)| {
            let all = &all;
            async move { self.keep_subscribed(cluster, share, all, ear, hints).await }
        });
        join_all(heard).await;
        true
    }

    /// Keeps one subscription for ever. After each renewal, all waiters poll.
    async fn keep_subscribed<'a>(
        &self,
        cluster: &ClusterTarget,
        share: &NodeShards,
        all: &'a Semaphore,
        mut ear: Subscription<'a>,
        hints: &Weak<Wakeups>,
    ) {
        let mut pause = RetryDelay::default();
        loop {
            let heard =
                matches!(ear, Subscription::ShardChannels(_) | Subscription::AllChannels(..));
            match ear {
                Subscription::ShardChannels(messages) => deliver_messages(hints, messages).await,
                Subscription::AllChannels(messages, _all) => {
                    deliver_messages(hints, messages).await;
                }
                // Waits until the subscription that covers this node ends.
                Subscription::Covered => drop(all.acquire().await),
                Subscription::Failed => {}
            }
            // Whatever the cause, a shard may have moved.
            cluster.request_refresh();
            pause.record_outcome(heard);
            pause.sleep().await;
            ear = self.subscribe_to_node(cluster, share, all).await;
            if matches!(ear, Subscription::ShardChannels(_) | Subscription::AllChannels(..)) {
                deliver_wakeup(hints, Some(WakeupMessage::Resync));
            }
        }
    }

    async fn subscribe_to_node<'a>(
        &self,
        cluster: &ClusterTarget,
        share: &NodeShards,
        all: &'a Semaphore,
    ) -> Subscription<'a> {
        let ear =
            timeout(self.connect_timeout, self.try_subscribe_to_node(cluster, share, all)).await;
        ear.ok().flatten().unwrap_or(Subscription::Failed)
    }

    async fn try_subscribe_to_node<'a>(
        &self,
        cluster: &ClusterTarget,
        (node, shards): &NodeShards,
        all: &'a Semaphore,
    ) -> Option<Subscription<'a>> {
        let node = cluster.server_at(node).ok()?;
        let channels = shards.iter().map(|&shard| {
            self.keys.shard_subscriptions(shard, &self.node, self.wants_job_events())
        });
        let channels: Vec<_> = channels.flatten().collect();
        if let Some(messages) = node.subscribe_to_shards(&channels).await.ok()? {
            return Some(Subscription::ShardChannels(messages));
        }
        let Ok(permit) = all.try_acquire() else { return Some(Subscription::Covered) };
        let messages = node
            .subscribe(&self.keys.subscriptions(&self.node, self.wants_job_events()))
            .await
            .ok()?;
        Some(Subscription::AllChannels(messages, permit))
    }
}
