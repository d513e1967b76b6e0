//! Membership of the workers, and the shards assigned to them:
//! `heartbeat_and_shard_assignment.lua`.

use std::{sync::atomic::Ordering, time::Duration};

use super::{
    MemoryBackend,
    local_pubsub::OutgoingWakeup,
    memory_shard::{MemoryShard, ServerTime},
    shard_state::WatchUpdate,
};
use crate::{
    key::SHARD_COUNT,
    store::{
        backend::{HeartbeatReply, NodeId, SHARD_VACANCY_GRACE},
        wakeup_message::WakeupMessage,
    },
};

/// Maximum number of peers reported to a worker.
const MAX_REPORTED_PEERS: usize = 100;

/// Result of registering a worker's heartbeat.
struct WorkerRegistration {
    /// This worker has joined or left, or another one has expired.
    has_changed: bool,
    /// Live peers, at most `MAX_REPORTED_PEERS`.
    peers: Vec<NodeId>,
    /// Number of live workers, with this one.
    live_count: usize,
    /// Time until the lease of the peer that this worker observes ends.
    peer_expires_in: Option<Duration>,
}

/// Shards that a worker watches.
struct ShardAssignment {
    own_shards: Vec<u16>,
    /// The worker has released others.
    has_released: bool,
}

impl MemoryBackend {
    pub(super) fn process_heartbeat(&self, node: &NodeId, lease: Duration) -> HeartbeatReply {
        let now = ServerTime::from_micros(self.clock.now_us());
        let registration = self.register_worker(node, lease, now);
        let is_paused = self.jobs_paused.load(Ordering::SeqCst);
        let max_shards = match registration.live_count {
            _ if is_paused || lease.is_zero() => 0,
            live_count => usize::from(SHARD_COUNT).div_ceil(live_count.max(1)),
        };
        let has_successors = !registration.peers.is_empty() && !is_paused;
        let assignment = self.assign_shards(node, lease, max_shards, has_successors);
        if lease.is_zero() && registration.live_count == 0 {
            // No worker is left to take the released shards.
            (0..SHARD_COUNT)
                .for_each(|shard| self.with_shard(shard, |shard, _| shard.state.end_watch()));
        }
        if registration.has_changed || assignment.has_released {
            self.notify_workers();
        }
        let has_work = |shard: &u16| self.with_shard(*shard, |shard, _| shard.has_work());
        let busy_shards = assignment.own_shards.iter().copied().filter(has_work).collect();
        HeartbeatReply {
            own_shards: assignment.own_shards,
            busy_shards,
            peers: registration.peers,
            is_paused,
            peer_expires_in: registration.peer_expires_in,
        }
    }

    /// Registers the heartbeat of a worker.
    fn register_worker(
        &self,
        node: &NodeId,
        lease: Duration,
        now: ServerTime,
    ) -> WorkerRegistration {
        let mut workers = self.live_workers.lock();
        let update = super::update_live_nodes(&mut workers, node.clone(), lease, now);
        let peers = || workers.iter().filter(|(peer, _)| *peer != node);
        // A ring: the last worker observes the first.
        let observed_peer =
            peers().min_by_key(|(peer, _)| (peer.as_str() < node.as_str(), peer.as_str()));
        WorkerRegistration {
            has_changed: update.has_changed,
            peers: peers().take(MAX_REPORTED_PEERS).map(|(peer, _)| peer.clone()).collect(),
            live_count: update.live_count,
            peer_expires_in: observed_peer
                .map(|(_, expires_ms)| Duration::from_millis(expires_ms - now.ms)),
        }
    }

    /// Assigns at most `max_shards` shards to this node.
    fn assign_shards(
        &self,
        node: &NodeId,
        lease: Duration,
        max_shards: usize,
        has_successors: bool,
    ) -> ShardAssignment {
        let (mut own_shards, mut has_released) = (Vec::new(), false);
        for shard in 0..SHARD_COUNT {
            let keeps_watch = own_shards.len() < max_shards;
            let renew_or_release = |shard: &mut MemoryShard, now: ServerTime| {
                let update = WatchUpdate {
                    keeps_watch,
                    ends_ms: now.deadline_after(lease),
                    vacant_until_ms: has_successors
                        .then(|| now.deadline_after(SHARD_VACANCY_GRACE)),
                };
                shard.state.renew_or_release_watch(node.as_str(), &update, now)
            };
            match self.with_shard(shard, renew_or_release) {
                Some(true) => own_shards.push(shard),
                Some(false) => has_released = true,
                None => {}
            }
        }
        for shard in 0..SHARD_COUNT {
            if own_shards.len() >= max_shards {
                break;
            }
            let take_if_vacant = |shard: &mut MemoryShard, now: ServerTime| {
                shard.state.take_watch_if_vacant(node.as_str(), now.deadline_after(lease), now)
            };
            if self.with_shard(shard, take_if_vacant) {
                own_shards.push(shard);
            }
        }
        own_shards.sort_unstable();
        ShardAssignment { own_shards, has_released }
    }

    pub(super) fn notify_workers(&self) {
        self.pubsub.publish(vec![OutgoingWakeup {
            recipient: None,
            message: WakeupMessage::WorkersChanged,
        }]);
    }
}
