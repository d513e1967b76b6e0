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

use super::{Listener, Pause, deliver, deliver_all};
use crate::store::{
    wakeups::{WakeupMessage, Wakeups},
    key_names::COMMON,
    redis::target::{Cluster, Endpoint, Messages},
};

/// A node, and the shards it has.
type Share = (Endpoint, Vec<u16>);

/// What an attempt to hear a node has come to.
enum Ear<'a> {
    Hears(Messages),
    /// And what all its kind have to say: the permit of that.
    HearsAll(Messages, SemaphorePermit<'a>),
    /// It has nothing to tell that another does not.
    Elsewhere,
    Deaf,
}

impl Listener {
    /// Delivers for as long as the map stays; false at once if nobody could be heard.
    pub(super) async fn hear_apart(&self, cluster: &Cluster, hints: &Weak<Wakeups>) -> bool {
        // Whoever has it, the map is known then.
        let _ = timeout(self.connect_within, cluster.owner(COMMON)).await;
        let shares = cluster.shares();
        let all = Semaphore::new(1);
        let ears = join_all(shares.iter().map(|share| self.ear(cluster, share, &all))).await;
        if ears.iter().all(|ear| matches!(ear, Ear::Deaf | Ear::Elsewhere)) {
            return false;
        }
        // One for all of them.
        deliver(hints, Some(WakeupMessage::Resync));
        let heard = shares.iter().zip(ears).map(|(share, ear)| {
            let all = &all;
            async move { self.keep_hearing(cluster, share, all, ear, hints).await }
        });
        join_all(heard).await;
        true
    }

    /// For ever: when it breaks it is made again, after which everybody looks.
    async fn keep_hearing<'a>(
        &self,
        cluster: &Cluster,
        share: &Share,
        all: &'a Semaphore,
        mut ear: Ear<'a>,
        hints: &Weak<Wakeups>,
    ) {
        let mut pause = Pause::default();
        loop {
            let heard = matches!(ear, Ear::Hears(_) | Ear::HearsAll(..));
            match ear {
                Ear::Hears(messages) => deliver_all(hints, messages).await,
                Ear::HearsAll(messages, _all) => deliver_all(hints, messages).await,
                // Whoever hears it may go.
                Ear::Elsewhere => drop(all.acquire().await),
                Ear::Deaf => {}
            }
            // Whatever it was, a shard may be elsewhere.
            cluster.look_again();
            pause.note(heard);
            pause.sleep().await;
            ear = self.ear(cluster, share, all).await;
            if matches!(ear, Ear::Hears(_) | Ear::HearsAll(..)) {
                deliver(hints, Some(WakeupMessage::Resync));
            }
        }
    }

    async fn ear<'a>(&self, cluster: &Cluster, share: &Share, all: &'a Semaphore) -> Ear<'a> {
        let ear = timeout(self.connect_within, self.try_ear(cluster, share, all)).await;
        ear.ok().flatten().unwrap_or(Ear::Deaf)
    }

    async fn try_ear<'a>(
        &self,
        cluster: &Cluster,
        (node, shards): &Share,
        all: &'a Semaphore,
    ) -> Option<Ear<'a>> {
        let node = cluster.node(node).ok()?;
        let channels =
            shards.iter().map(|&shard| self.keys.shard_subscriptions(shard, &self.node, self.hears_jobs()));
        let channels: Vec<_> = channels.flatten().collect();
        if let Some(messages) = node.subscribe_to_shards(&channels).await.ok()? {
            return Some(Ear::Hears(messages));
        }
        let Ok(permit) = all.try_acquire() else { return Some(Ear::Elsewhere) };
        let messages =
            node.subscribe(&self.keys.subscriptions(&self.node, self.hears_jobs())).await.ok()?;
        Some(Ear::HearsAll(messages, permit))
    }
}
