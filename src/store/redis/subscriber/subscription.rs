//! Messages in a cluster: an ear at each node that has shards.
//!
//! A node of 7.0 or newer tells what is about a shard by a channel of that shard, to those who listen there: so its
//! messages are no business of the other nodes, and who publishes learns how many hear it. Nodes before that pass
//! all messages on to each other; one ear among them hears everything. Which kind a node has is asked of itself, here
//! by subscribing and in the scripts by its version, so nobody has to agree on it, and the nodes of a cluster may be
//! of several versions.
//!
//! A node that is away makes nobody deaf for the others. When a shard has moved, its subscription is ended by the node
//! that had it, and the map changes: then all ears are made anew, as they are for any change of it.

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

/// A node, and the shards it has.
type NodeShards = (Endpoint, Vec<u16>);

/// What an attempt to hear a node has come to.
enum Subscription<'a> {
    ShardChannels(MessageStream),
    /// And what all its kind have to say: the permit of that.
    AllChannels(MessageStream, SemaphorePermit<'a>),
    /// It has nothing to tell that another does not.
    Covered,
    Failed,
}

impl MessageSubscriber {
    /// Delivers for as long as the map stays; false at once if nobody could be heard.
    pub(super) async fn deliver_from_nodes(
        &self,
        cluster: &ClusterTarget,
        hints: &Weak<Wakeups>,
    ) -> bool {
        // Whoever has it, the map is known then.
        let _ = timeout(self.connect_timeout, cluster.owner(COMMON_SHARD)).await;
        let shares = cluster.shards_by_owner();
        let all = Semaphore::new(1);
        let ears =
            join_all(shares.iter().map(|share| self.subscribe_to_node(cluster, share, &all))).await;
        if ears.iter().all(|ear| matches!(ear, Subscription::Failed | Subscription::Covered)) {
            return false;
        }
        // One for all of them.
        deliver_wakeup(hints, Some(WakeupMessage::Resync));
        let heard = shares.iter().zip(ears).map(|(share, ear)| {
            let all = &all;
            async move { self.keep_subscribed(cluster, share, all, ear, hints).await }
        });
        join_all(heard).await;
        true
    }

    /// For ever: when it breaks it is made again, after which everybody looks.
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
                    deliver_messages(hints, messages).await
                }
                // Whoever hears it may go.
                Subscription::Covered => drop(all.acquire().await),
                Subscription::Failed => {}
            }
            // Whatever it was, a shard may be elsewhere.
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
