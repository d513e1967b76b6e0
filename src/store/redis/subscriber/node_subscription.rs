//! `NodeSubscription`: subscriptions in a cluster, one for each cluster node that owns shards.
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
    wakeup_listeners::WakeupListeners,
    wakeup_message::WakeupMessage,
};

/// Node with the shards that it owns.
type NodeShards = (Endpoint, Vec<u16>);

/// Result of an attempt to subscribe to a node.
enum NodeSubscription<'a> {
    ShardChannels(MessageStream),
    /// Channels of all nodes without shard channels, and the permit for this one subscription.
    AllChannels(MessageStream, SemaphorePermit<'a>),
    /// Another subscription receives this node's messages.
    Covered,
    Failed,
}

impl NodeSubscription<'_> {
    fn is_established(&self) -> bool {
        matches!(self, Self::ShardChannels(_) | Self::AllChannels(..))
    }
}

impl MessageSubscriber {
    /// Delivers messages until the map changes. Returns false at once if no subscription could be
    /// made.
    pub(super) async fn deliver_from_nodes(
        &self,
        cluster: &ClusterTarget,
        listeners: &Weak<WakeupListeners>,
    ) -> bool {
        // Afterwards the map is known.
        let _ = timeout(self.connect_timeout, cluster.owner(COMMON_SHARD)).await;
        let shards_by_node = cluster.shards_by_owner();
        let all_channels_permit = Semaphore::new(1);
        let attempts = shards_by_node
            .iter()
            .map(|node_shards| self.subscribe_to_node(cluster, node_shards, &all_channels_permit));
        let subscriptions = join_all(attempts).await;
        if !subscriptions.iter().any(NodeSubscription::is_established) {
            return false;
        }
        // One resync for all subscriptions.
        deliver_wakeup(listeners, Some(WakeupMessage::Resync));
        let deliveries =
            shards_by_node.iter().zip(subscriptions).map(|(node_shards, subscription)| {
                let all_channels_permit = &all_channels_permit;
                async move {
                    self.keep_subscribed(
                        cluster,
                        node_shards,
                        all_channels_permit,
                        subscription,
                        listeners,
                    )
                    .await;
                }
            });
        join_all(deliveries).await;
        true
    }

    /// Keeps one subscription for ever. After each renewal, all waiters poll.
    async fn keep_subscribed<'a>(
        &self,
        cluster: &ClusterTarget,
        node_shards: &NodeShards,
        all_channels_permit: &'a Semaphore,
        mut subscription: NodeSubscription<'a>,
        listeners: &Weak<WakeupListeners>,
    ) {
        let mut retry_delay = RetryDelay::default();
        loop {
            let is_subscribed = subscription.is_established();
            match subscription {
                NodeSubscription::ShardChannels(messages) => {
                    deliver_messages(listeners, messages).await;
                }
                NodeSubscription::AllChannels(messages, _permit) => {
                    deliver_messages(listeners, messages).await;
                }
                // Waits until the subscription that covers this node ends.
                NodeSubscription::Covered => drop(all_channels_permit.acquire().await),
                NodeSubscription::Failed => {}
            }
            // Whatever the cause, a shard may have moved.
            cluster.request_refresh();
            retry_delay.record_outcome(is_subscribed);
            retry_delay.sleep().await;
            subscription = self.subscribe_to_node(cluster, node_shards, all_channels_permit).await;
            if subscription.is_established() {
                deliver_wakeup(listeners, Some(WakeupMessage::Resync));
            }
        }
    }

    async fn subscribe_to_node<'a>(
        &self,
        cluster: &ClusterTarget,
        node_shards: &NodeShards,
        all_channels_permit: &'a Semaphore,
    ) -> NodeSubscription<'a> {
        let subscription = timeout(
            self.connect_timeout,
            self.try_subscribe_to_node(cluster, node_shards, all_channels_permit),
        )
        .await;
        subscription.ok().flatten().unwrap_or(NodeSubscription::Failed)
    }

    async fn try_subscribe_to_node<'a>(
        &self,
        cluster: &ClusterTarget,
        (node, shards): &NodeShards,
        all_channels_permit: &'a Semaphore,
    ) -> Option<NodeSubscription<'a>> {
        let node = cluster.server_at(node).ok()?;
        let channels = shards.iter().map(|&shard| {
            self.keys.shard_subscriptions(shard, &self.node, self.wants_job_events())
        });
        let channels: Vec<_> = channels.flatten().collect();
        if let Some(messages) = node.subscribe_to_shards(&channels).await.ok()? {
            return Some(NodeSubscription::ShardChannels(messages));
        }
        let Ok(permit) = all_channels_permit.try_acquire() else {
            return Some(NodeSubscription::Covered);
        };
        let messages = node
            .subscribe(&self.keys.subscriptions(&self.node, self.wants_job_events()))
            .await
            .ok()?;
        Some(NodeSubscription::AllChannels(messages, permit))
    }
}
