//! `beat.lua` and `pause.lua`.

use std::{sync::atomic::Ordering, time::Duration};

use super::{Memory, post::Mail, shard::Now};
use crate::{
    key::SHARDS,
    store::{
        backend::{Heartbeat, SHARD_VACANCY_GRACE, NodeId},
        wakeups::WakeupMessage,
    },
};

/// Other workers that one is told of.
const OTHERS: usize = 100;

impl Memory {
    pub(super) fn beats(&self, node: &NodeId, lease: Duration) -> Heartbeat {
        let now = Now::of(self.clock.now_us());
        let (mut told, others, living, lapse) = self.present(node, lease, now);
        let paused = self.paused.load(Ordering::SeqCst);
        let most = match living {
            _ if paused || lease.is_zero() => 0,
            living => usize::from(SHARDS).div_ceil(living.max(1)),
        };
        let heirs = !others.is_empty() && !paused;
        let (mine, gave_up) = self.divide(node, lease, (most, heirs));
        told |= gave_up;
        if lease.is_zero() && living == 0 {
            // Nobody comes for what was left.
            (0..SHARDS).for_each(|shard| self.at(shard, |shard, _| shard.facts.end_watch()));
        }
        if told {
            self.tell_workers();
        }
        let has_work = |shard: &u16| self.at(*shard, |shard, _| shard.has_work());
        let busy = mine.iter().copied().filter(has_work).collect();
        Heartbeat { own_shards: mine, busy_shards: busy, peers: others, is_paused: paused, peer_expires_in: lapse }
    }

    /// Whether this one has come or left, or another one has died; the others that live, and how many live; how soon the lease of the one
    /// that this one looks after ends.
    fn present(
        &self,
        node: &NodeId,
        lease: Duration,
        now: Now,
    ) -> (bool, Vec<NodeId>, usize, Option<Duration>) {
        let mut workers = self.workers.lock();
        let (changed, living) = super::live(&mut workers, node.clone(), lease, now);
        let others = || workers.iter().filter(|(other, _)| *other != node);
        // In a ring: behind the last comes the first.
        let next =
            others().min_by_key(|(other, _)| (other.as_str() < node.as_str(), other.as_str()));
        let lapse = next.map(|(_, end)| Duration::from_millis(end - now.ms));
        let others = others().take(OTHERS).map(|(other, _)| other.clone()).collect();
        (changed, others, living, lapse)
    }

    /// The shards of this node from now on, and whether it gave some up.
    fn divide(
        &self,
        node: &NodeId,
        lease: Duration,
        (most, heirs): (usize, bool),
    ) -> (Vec<u16>, bool) {
        let (mut mine, mut gave_up) = (Vec::new(), false);
        for shard in 0..SHARDS {
            let keep = mine.len() < most;
            let kept = |shard: &mut super::shard::Shard, now: Now| {
                let left = heirs.then(|| now.after(SHARD_VACANCY_GRACE));
                shard.facts.keep_watch(node.as_str(), keep, (now.after(lease), left), now)
            };
            match self.at(shard, kept) {
                Some(true) => mine.push(shard),
                Some(false) => gave_up = true,
                None => {}
            }
        }
        for shard in 0..SHARDS {
            if mine.len() >= most {
                break;
            }
            let until = |now: Now| now.after(lease);
            if self.at(shard, |shard, now| shard.facts.take_watch(node.as_str(), until(now), now)) {
                mine.push(shard);
            }
        }
        mine.sort_unstable();
        (mine, gave_up)
    }

    pub(super) fn pause(&self, paused: bool) {
        self.paused.store(paused, Ordering::SeqCst);
        if paused {
            (0..SHARDS).for_each(|shard| self.at(shard, |shard, _| shard.facts.end_watch()));
        }
        self.tell_workers();
    }

    pub(super) fn tell_workers(&self) {
        self.post.send(vec![Mail { to: None, hint: WakeupMessage::WorkersChanged }]);
    }
}
