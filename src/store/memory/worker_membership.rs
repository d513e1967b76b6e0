//! `heartbeat.lua` and `pause_jobs.lua`.

use std::{sync::atomic::Ordering, time::Duration};

use super::{MemoryBackend, local_pubsub::OutgoingWakeup, memory_shard::ServerTime};
use crate::{
    key::SHARD_COUNT,
    store::{
        backend::{Heartbeat, NodeId, SHARD_VACANCY_GRACE},
        wakeups::WakeupMessage,
    },
};

/// Maximum number of peers reported to a worker.
const MAX_REPORTED_PEERS: usize = 100;

impl MemoryBackend {
    pub(super) fn process_heartbeat(&self, node: &NodeId, lease: Duration) -> Heartbeat {
        let now = ServerTime::from_micros(self.clock.now_us());
        let (mut told, others, living, lapse) = self.register_worker(node, lease, now);
        let paused = self.jobs_paused.load(Ordering::SeqCst);
        let most = match living {
            _ if paused || lease.is_zero() => 0,
            living => usize::from(SHARD_COUNT).div_ceil(living.max(1)),
        };
        let heirs = !others.is_empty() && !paused;
        let (mine, gave_up) = self.assign_shards(node, lease, (most, heirs));
        told |= gave_up;
        if lease.is_zero() && living == 0 {
            // No worker is left to take the released shards.
            (0..SHARD_COUNT)
                .for_each(|shard| self.with_shard(shard, |shard, _| shard.state.end_watch()));
        }
        if told {
            self.notify_workers();
        }
        let has_work = |shard: &u16| self.with_shard(*shard, |shard, _| shard.has_work());
        let busy = mine.iter().copied().filter(has_work).collect();
        Heartbeat {
            own_shards: mine,
            busy_shards: busy,
            peers: others,
            is_paused: paused,
            peer_expires_in: lapse,
        }
    }

    /// Registers the heartbeat of a worker. Returns:
    ///
    /// - true if this worker has joined or left, or another one has expired;
    /// - the live peers;
    /// - the number of live workers;
    /// - the time until the lease of the peer that this worker observes ends.
    fn register_worker(
        &self,
        node: &NodeId,
        lease: Duration,
        now: ServerTime,
    ) -> (bool, Vec<NodeId>, usize, Option<Duration>) {
        let mut workers = self.live_workers.lock();
        let (changed, living) = super::update_live_nodes(&mut workers, node.clone(), lease, now);
        let others = || workers.iter().filter(|(other, _)| *other != node);
        // A ring: the last worker observes the first.
        let next =
            others().min_by_key(|(other, _)| (other.as_str() < node.as_str(), other.as_str()));
        let lapse = next.map(|(_, end)| Duration::from_millis(end - now.ms));
        let others = others().take(MAX_REPORTED_PEERS).map(|(other, _)| other.clone()).collect();
        (changed, others, living, lapse)
    }

    /// Assigns shards to this node. Returns them, and true if it has released any.
    fn assign_shards(
        &self,
        node: &NodeId,
        lease: Duration,
        (most, heirs): (usize, bool),
    ) -> (Vec<u16>, bool) {
        let (mut mine, mut gave_up) = (Vec::new(), false);
        for shard in 0..SHARD_COUNT {
            let keep = mine.len() < most;
            let kept = |shard: &mut super::memory_shard::MemoryShard, now: ServerTime| {
                let left = heirs.then(|| now.deadline_after(SHARD_VACANCY_GRACE));
                shard.state.renew_or_release_watch(
                    node.as_str(),
                    keep,
                    (now.deadline_after(lease), left),
                    now,
                )
            };
            match self.with_shard(shard, kept) {
                Some(true) => mine.push(shard),
                Some(false) => gave_up = true,
                None => {}
            }
        }
        for shard in 0..SHARD_COUNT {
            if mine.len() >= most {
                break;
            }
            let until = |now: ServerTime| now.deadline_after(lease);
            if self.with_shard(shard, |shard, now| {
                shard.state.take_watch_if_vacant(node.as_str(), until(now), now)
            }) {
                mine.push(shard);
            }
        }
        mine.sort_unstable();
        (mine, gave_up)
    }

    pub(super) fn apply_pause(&self, paused: bool) {
        self.jobs_paused.store(paused, Ordering::SeqCst);
        if paused {
            (0..SHARD_COUNT)
                .for_each(|shard| self.with_shard(shard, |shard, _| shard.state.end_watch()));
        }
        self.notify_workers();
    }

    pub(super) fn notify_workers(&self) {
        self.pubsub.publish(vec![OutgoingWakeup {
            recipient: None,
            message: WakeupMessage::WorkersChanged,
        }]);
    }
}
