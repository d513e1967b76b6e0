//! `MemoryBackend`: the shards of the embedded store, and how an operation locks one.

#[cfg(any(test, feature = "test-kit"))]
use std::{collections::BTreeSet, sync::atomic::Ordering};
use std::{
    collections::{HashMap, VecDeque},
    fmt,
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use futures_util::future::ready;
use parking_lot::Mutex;

#[cfg(any(test, feature = "test-kit"))]
use super::super::backend::{AcquireCommand, AcquireReply};
#[cfg(test)]
use super::ended_job_index::EndedJob;
use super::{
    super::{
        backend::{JobId, JobState, NodeId, StoreFuture, StoredPolicyChanges},
        inspection::MemoryAuditLog,
    },
    local_pubsub::LocalPubsub,
    lock_transaction::LockTransaction,
    memory_shard::{MemoryShard, ServerTime},
};
use crate::{
    clock::Clock,
    error::Error,
    key::{Key, SHARD_COUNT},
};

/// Backend of [`Store::memory`](crate::Store::memory).
pub(crate) struct MemoryBackend {
    pub(super) clock: Clock,
    pub(super) identity: Arc<str>,
    /// Indexed by shard number.
    shards: Vec<Mutex<MemoryShard>>,
    /// Live workers, with the end of each lease in ms.
    pub(super) live_workers: Mutex<HashMap<NodeId, u64>>,
    /// Live rate limiters, with the end of each lease in ms.
    pub(super) live_limiters: Mutex<HashMap<NodeId, u64>>,
    pub(super) policy_changes: Mutex<StoredPolicyChanges>,
    pub(super) jobs_paused: AtomicBool,
    pub(super) audit_log: Mutex<MemoryAuditLog>,
    /// Reports of processes, each with its inquiry.
    pub(super) fleet_reports: Mutex<VecDeque<(String, String)>>,
    pub(super) task_queues: super::tasks::MemoryTaskQueues,
    pub(super) pubsub: LocalPubsub,
    /// All acquires are busy; jobs still run.
    #[cfg(any(test, feature = "test-kit"))]
    simulates_busy_locks: AtomicBool,
    /// Forms of the keys that layers have asked for: all parts but the values.
    #[cfg(any(test, feature = "test-kit"))]
    layer_key_forms: Mutex<BTreeSet<Box<str>>>,
}

impl MemoryBackend {
    pub(crate) fn new(clock: Clock) -> Self {
        Self {
            clock,
            identity: uuid::Uuid::new_v4().simple().to_string().into(),
            shards: (0..SHARD_COUNT).map(|_| Mutex::default()).collect(),
            live_workers: Mutex::default(),
            live_limiters: Mutex::default(),
            policy_changes: Mutex::default(),
            jobs_paused: AtomicBool::new(false),
            audit_log: Mutex::default(),
            fleet_reports: Mutex::default(),
            task_queues: Mutex::default(),
            pubsub: LocalPubsub::default(),
            #[cfg(any(test, feature = "test-kit"))]
            simulates_busy_locks: Default::default(),
            #[cfg(any(test, feature = "test-kit"))]
            layer_key_forms: Mutex::default(),
        }
    }

    /// Runs an operation on a shard. The time is read under the lock, so that operations see it in
    /// their order.
    #[expect(
        clippy::indexing_slicing,
        reason = "a shard is below SHARD_COUNT, the length of the array"
    )]
    pub(super) fn with_shard<T>(
        &self,
        shard: u16,
        operation: impl FnOnce(&mut MemoryShard, ServerTime) -> T,
    ) -> T {
        // Shards of keys and of parsed job ids are below their number, which is the length.
        let mut shard = self.shards[usize::from(shard)].lock();
        operation(&mut shard, ServerTime::from_micros(self.clock.now_us()))
    }

    /// Runs an operation on a lock, then sends its messages.
    pub(super) fn with_lock<T>(
        &self,
        key: &Key,
        operation: impl FnOnce(&mut LockTransaction<'_>) -> T,
    ) -> T {
        let mut outbox = Vec::new();
        let result = self.with_shard(key.shard(), |shard, now| {
            shard.with_lock(key, now, &mut outbox, operation)
        });
        self.pubsub.publish(outbox);
        result
    }

    /// Makes every acquire busy from now on. Jobs run, because a claim takes its lock itself.
    #[cfg(any(test, feature = "test-kit"))]
    pub(crate) fn simulate_busy_locks(&self, busy: bool) {
        self.simulates_busy_locks.store(busy, Ordering::SeqCst);
    }

    /// Remembers the forms of keys that a layer asks for. Layers have few of them.
    #[cfg(any(test, feature = "test-kit"))]
    pub(super) fn remember_key_forms(&self, keys: &[Key]) {
        let mut forms = self.layer_key_forms.lock();
        for form in keys.iter().map(Key::without_value) {
            if !forms.contains(form) {
                forms.insert(form.into());
            }
        }
    }

    /// Returns the forms of the keys that layers have asked for, if the form of this key is not
    /// among them.
    #[cfg(feature = "test-kit")]
    pub(crate) fn other_layer_key_forms(&self, key: &Key) -> Vec<Box<str>> {
        let forms = self.layer_key_forms.lock();
        if forms.contains(key.without_value()) {
            return Vec::new();
        }
        forms.iter().cloned().collect()
    }

    /// Returns true if a layer with this store has met a request.
    #[cfg(feature = "test-kit")]
    pub(crate) fn has_met_layer(&self) -> bool {
        !self.layer_key_forms.lock().is_empty()
    }

    /// Makes a grant busy if the simulation is on. The lock is acquired and released, so that
    /// everything that precedes the grant of a free lock takes effect.
    #[cfg(any(test, feature = "test-kit"))]
    pub(super) fn apply_busy_simulation(
        &self,
        command: &AcquireCommand,
        reply: AcquireReply,
    ) -> AcquireReply {
        let AcquireReply::Granted { queue_length, .. } = reply else {
            return reply;
        };
        // The lock of the workers' shared limits is exempt: a worker without a run permit runs
        // nothing.
        if !self.simulates_busy_locks.load(Ordering::SeqCst)
            || command.key == Key::for_queue_workers()
        {
            return reply;
        }
        self.with_lock(&command.key, |transaction| {
            transaction.release(&command.token, command.mode)
        });
        AcquireReply::Busy {
            lease_remaining: Duration::from_secs(1),
            queue_length,
            seq: 0,
            has_joined: false,
        }
    }

    /// Returns the number of locks, jobs, records, counters and index entries, including expired
    /// ones that were not swept yet.
    #[cfg(test)]
    pub(in super::super) fn stored_value_count(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().value_count()).sum()
    }

    /// Removes expired counters. If one stayed, a clock that is set back would revive it.
    #[cfg(test)]
    pub(in super::super) fn sweep_counters(&self) {
        let now = ServerTime::from_micros(self.clock.now_us());
        for shard in &self.shards {
            shard.lock().counters.sweep(now.ms + 1, usize::MAX);
        }
    }

    /// Adds entries without jobs to a shard's index of dead jobs, with the given expiry times in
    /// microseconds.
    #[cfg(test)]
    pub(in super::super) fn fill_dead_index(&self, shard: u16, expiries_us: std::ops::Range<u64>) {
        self.with_shard(shard, |memory_shard, now| {
            for expires_us in expiries_us {
                let id =
                    JobId::parse(&format!("{shard:02x}{expires_us:032x}")).expect("it is an id");
                let job = EndedJob { id: &id, owner: "", expires_us, bytes: 0 };
                memory_shard.state.index_ended_job(JobState::Dead, &job, now);
            }
        });
    }

    /// Returns the number of entries that never expire: locks with jobs, pending jobs, index
    /// entries.
    #[cfg(test)]
    pub(in super::super) fn persistent_entry_count(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().persistent_entry_count()).sum()
    }

    /// Returns the counts of jobs and bytes of the key's shard, and of bytes of its lock.
    #[cfg(test)]
    pub(in super::super) fn usage_counts(&self, key: &Key) -> [u64; 3] {
        self.with_shard(key.shard(), |shard, _| shard.usage_counts(key))
    }

    pub(super) fn cancel_queued_job(
        &self,
        id: &JobId,
        began_us: u64,
        retention: Duration,
    ) -> Option<JobState> {
        let key = self.with_shard(id.shard(), |shard, now| shard.lock_of(id, now))?;
        self.with_lock(&key, |transaction| transaction.cancel_job(id, began_us, retention))
    }
}

impl fmt::Debug for MemoryBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Omits the data: keys and requests belong to users.
        f.debug_struct("MemoryBackend").field("clock", &self.clock).finish_non_exhaustive()
    }
}

/// Result of `update_live_nodes`.
pub(super) struct LiveNodesUpdate {
    /// A node has joined, left or expired.
    pub(super) has_changed: bool,
    pub(super) live_count: usize,
}

/// `worker_registry.lua`: registers a node, or removes it if the lease is zero.
pub(super) fn update_live_nodes(
    nodes: &mut HashMap<NodeId, u64>,
    node: NodeId,
    lease: Duration,
    now: ServerTime,
) -> LiveNodesUpdate {
    let mut has_expired_peer = false;
    nodes.retain(|other, end| {
        let is_live = *end > now.ms;
        has_expired_peer |= !is_live && *other != node;
        is_live
    });
    let has_joined_or_left = if lease.is_zero() {
        nodes.remove(&node).is_some()
    } else {
        nodes.insert(node, now.deadline_after(lease)).is_none()
    };
    LiveNodesUpdate { has_changed: has_expired_peer || has_joined_or_left, live_count: nodes.len() }
}

pub(super) fn ready_ok<T: Send + 'static>(result: T) -> StoreFuture<'static, T> {
    ready_result(Ok(result))
}

pub(super) fn ready_result<T: Send + 'static>(
    outcome: Result<T, Error>,
) -> StoreFuture<'static, T> {
    Box::pin(ready(outcome))
}
