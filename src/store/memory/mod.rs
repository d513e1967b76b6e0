//! Embedded store: the operations of `lua/*.lua` on data of this process.
//!
//! An operation locks its shard, reads the clock once, does the same as its script, and unlocks;
//! then its messages are sent. It never waits, so the future that it returns is ready at once. The
//! scripts are the specification:
//!
//! - [`lock_transaction`] is `wait_queue.lua`, [`pending_jobs`] is `job_common.lua`, and [`ended_job_index`] is
//!   `ended_jobs.lua`.
//! - [`lock_commands`], [`enqueue`], [`direct_run`] and [`claim_and_settle`] are the scripts about
//!   one lock.
//! - [`job_admin`] has the scripts about single jobs and their listings.
//! - [`worker_heartbeat`] is the workers' membership, and [`poll_due`] the search for due work.
//! - [`rate_counters`] has the scripts about quotas, and [`tasks`] those about task queues.
//! - The rest is in [`memory_shard`] and [`shard_state`].
//!
//! An expired value is absent at once for every operation; later operations free its memory.

mod claim_and_settle;
mod direct_run;
mod ended_job_index;
mod enqueue;
mod expiring_map;
#[cfg(any(test, feature = "fsck"))]
#[path = "../fsck/memory_shard_fsck.rs"]
mod fsck;
mod idempotency_records;
mod job_admin;
mod job_backend;
mod job_backoffs;
mod job_record;
mod local_pubsub;
mod lock_commands;
mod lock_state;
mod lock_transaction;
mod memory_shard;
#[cfg(test)]
mod model_snapshot;
mod owner_expiry_index;
mod pending_jobs;
mod poll_due;
mod rate_counters;
mod shard_state;
mod tasks;
mod worker_heartbeat;

#[cfg(test)]
pub(super) use self::model_snapshot::{ModelNames, PlantedFault};
#[cfg(any(test, feature = "test-kit"))]
use std::sync::atomic::Ordering;
use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use futures_util::future::{BoxFuture, ready};
use parking_lot::Mutex;

use self::{
    local_pubsub::LocalPubsub,
    lock_transaction::LockTransaction,
    memory_shard::{MemoryShard, ServerTime},
};
#[cfg(any(test, feature = "fsck"))]
use super::fsck::{FsckPart, FsckPartResult};
use super::{
    backend::{
        AcquireCommand, AcquireReply, Backend, ChargeCommand, ChargeFuture, CounterName,
        GrantRefresh, JobId, JobState, LeaseRenewal, LockMode, LockToken, NodeId, QuotaSnapshot,
        ReleaseOutcome, SettleChargeCommand, StoreFuture,
    },
    rate::check_item_count,
    wakeups::Wakeups,
};
use crate::{
    clock::Clock,
    error::Error,
    key::{Key, SHARD_COUNT},
};

/// Backend of [`Store::memory`](crate::Store::memory).
pub(crate) struct MemoryBackend {
    clock: Clock,
    identity: Arc<str>,
    /// Indexed by shard number.
    shards: Vec<Mutex<MemoryShard>>,
    /// Live workers, with the end of each lease in ms.
    live_workers: Mutex<HashMap<NodeId, u64>>,
    /// Live rate limiters, with the end of each lease in ms.
    live_limiters: Mutex<HashMap<NodeId, u64>>,
    jobs_paused: AtomicBool,
    task_queues: tasks::MemoryTaskQueues,
    pubsub: LocalPubsub,
    /// All acquires are busy; jobs still run.
    #[cfg(any(test, feature = "test-kit"))]
    simulates_busy_locks: AtomicBool,
}

impl MemoryBackend {
    pub(crate) fn new(clock: Clock) -> Self {
        Self {
            clock,
            identity: uuid::Uuid::new_v4().simple().to_string().into(),
            shards: (0..SHARD_COUNT).map(|_| Mutex::default()).collect(),
            live_workers: Mutex::default(),
            live_limiters: Mutex::default(),
            jobs_paused: AtomicBool::new(false),
            task_queues: Mutex::default(),
            pubsub: LocalPubsub::default(),
            #[cfg(any(test, feature = "test-kit"))]
            simulates_busy_locks: Default::default(),
        }
    }

    /// Runs an operation on a shard. The time is read under the lock, so that operations see it in
    /// their order.
    #[expect(
        clippy::indexing_slicing,
        reason = "a shard is below their number, which is the length"
    )]
    fn with_shard<T>(&self, shard: u16, step: impl FnOnce(&mut MemoryShard, ServerTime) -> T) -> T {
        // Shards of keys and of parsed job ids are below their number, which is the length.
        let mut shard = self.shards[usize::from(shard)].lock();
        step(&mut shard, ServerTime::from_micros(self.clock.now_us()))
    }

    /// Runs an operation on a lock, then sends its messages.
    fn with_lock<T>(&self, key: &Key, step: impl FnOnce(&mut LockTransaction<'_>) -> T) -> T {
        let mut post = Vec::new();
        let answer =
            self.with_shard(key.shard(), |shard, now| shard.with_lock(key, now, &mut post, step));
        self.pubsub.publish(post);
        answer
    }

    /// Makes every acquire busy from now on. Jobs run, because a claim takes its lock itself.
    #[cfg(any(test, feature = "test-kit"))]
    pub(crate) fn simulate_busy_locks(&self, busy: bool) {
        self.simulates_busy_locks.store(busy, Ordering::SeqCst);
    }

    /// Makes a grant busy if the simulation is on. The lock is acquired and released, so that
    /// everything that precedes the grant of a free lock takes effect.
    #[cfg(any(test, feature = "test-kit"))]
    fn apply_busy_simulation(&self, call: &AcquireCommand, acquired: AcquireReply) -> AcquireReply {
        let AcquireReply::Granted { queue_length: line, .. } = acquired else {
            return acquired;
        };
        // The lock of the workers' shared limits is exempt: a worker without a run permit runs
        // nothing.
        if !self.simulates_busy_locks.load(Ordering::SeqCst) || call.key == Key::for_queue_workers()
        {
            return acquired;
        }
        self.with_lock(&call.key, |visit| visit.release(&call.token, call.mode));
        AcquireReply::Busy {
            lease_remaining: Duration::from_secs(1),
            queue_length: line,
            seq: 0,
            has_joined: false,
        }
    }

    /// Returns the number of locks, jobs, records, counters and index entries, including expired
    /// ones that were not swept yet.
    #[cfg(test)]
    pub(super) fn stored_value_count(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().value_count()).sum()
    }

    /// Removes expired counters. If one stayed, a clock that is set back would revive it.
    #[cfg(test)]
    pub(super) fn sweep_counters(&self) {
        let now = ServerTime::from_micros(self.clock.now_us());
        for shard in &self.shards {
            shard.lock().counters.sweep(now.ms + 1, usize::MAX);
        }
    }

    /// Adds entries without jobs to a shard's index of dead jobs, with the given expiry times in
    /// microseconds.
    #[cfg(test)]
    pub(super) fn fill_dead_index(&self, shard: u16, times: std::ops::Range<u64>) {
        self.with_shard(shard, |shard_of, now| {
            for until in times {
                let id = JobId::parse(&format!("{shard:02x}{until:032x}")).expect("it is an id");
                shard_of.state.index_ended_job(JobState::Dead, (&id, ""), (until, 0), now);
            }
        });
    }

    /// Returns the number of entries that never expire: locks with jobs, pending jobs, index
    /// entries.
    #[cfg(test)]
    pub(super) fn persistent_entry_count(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().persistent_entry_count()).sum()
    }

    /// Returns the counts of jobs and bytes of the key's shard, and of bytes of its lock.
    #[cfg(test)]
    pub(super) fn usage_counts(&self, key: &Key) -> [u64; 3] {
        self.with_shard(key.shard(), |shard, _| shard.usage_counts(key))
    }

    fn cancel_queued_job(
        &self,
        id: &JobId,
        began_us: u64,
        retention: Duration,
    ) -> Option<JobState> {
        let key = self.with_shard(id.shard(), |shard, now| shard.lock_of(id, now))?;
        self.with_lock(&key, |visit| visit.cancel_job(id, began_us, retention))
    }
}

impl Backend for MemoryBackend {
    fn identities(&self) -> Vec<Arc<str>> {
        vec![Arc::clone(&self.identity)]
    }

    fn identify(&self) -> StoreFuture<'_, Arc<str>> {
        Box::pin(std::future::ready(Ok(Arc::clone(&self.identity))))
    }

    fn estimated_now_us(&self) -> u64 {
        self.clock.now_us()
    }

    fn has_manual_clock(&self) -> bool {
        self.clock.is_manual()
    }

    fn acquire(&self, call: AcquireCommand) -> StoreFuture<'_, AcquireReply> {
        let acquired = self.with_lock(&call.key, |visit| visit.acquire(&call));
        #[cfg(any(test, feature = "test-kit"))]
        let acquired = self.apply_busy_simulation(&call, acquired);
        ready_ok(acquired)
    }

    fn release(&self, key: Key, me: LockToken, mode: LockMode) -> StoreFuture<'_, ReleaseOutcome> {
        ready_ok(self.with_lock(&key, |visit| visit.release(&me, mode)))
    }

    fn send_release(
        &self,
        key: Key,
        me: LockToken,
        mode: LockMode,
    ) -> Option<StoreFuture<'static, ReleaseOutcome>> {
        Some(ready_ok(self.with_lock(&key, |visit| visit.release(&me, mode))))
    }

    fn release_and_reacquire(
        &self,
        me: LockToken,
        mode: LockMode,
        next: AcquireCommand,
    ) -> StoreFuture<'_, (ReleaseOutcome, AcquireReply)> {
        ready_ok(self.with_lock(&next.key, |visit| {
            let came = if next.record_name.is_none() { next.resume_seq } else { 0 };
            (visit.release_before_acquire(&me, mode, came), visit.acquire(&next))
        }))
    }

    fn refresh_grant(&self, key: Key, me: LockToken) -> StoreFuture<'_, Option<GrantRefresh>> {
        ready_ok(self.with_lock(&key, |visit| visit.refresh_grant(&me)))
    }

    fn downgrade(&self, key: Key, me: LockToken, lease: Duration) -> StoreFuture<'_, bool> {
        ready_ok(self.with_lock(&key, |visit| visit.downgrade(&me, lease)))
    }

    fn renew(&self, items: Vec<LeaseRenewal>) -> StoreFuture<'_, Vec<bool>> {
        let one = |item: &LeaseRenewal| {
            self.with_shard(item.key.shard(), |shard, now| shard.renew_lease(item, now))
        };
        ready_ok(items.iter().map(one).collect())
    }

    fn advance_fence(&self, key: Key, me: LockToken, fence: u64) -> StoreFuture<'_, bool> {
        ready_ok(
            self.with_shard(key.shard(), |shard, now| shard.advance_fence(&key, &me, fence, now)),
        )
    }

    fn charge(&self, call: ChargeCommand) -> ChargeFuture<'_> {
        let charge = |call: &ChargeCommand| {
            self.with_shard(call.tag.shard(), |shard, now| shard.charge(call, now))
        };
        ChargeFuture::Boxed(ready_result(call.validate().map(|()| match call.merge_duplicates() {
            None => charge(&call),
            Some((merged, places)) => charge(&merged).expand_duplicates(&places),
        })))
    }

    fn settle_charge(&self, call: SettleChargeCommand) -> StoreFuture<'_, Vec<QuotaSnapshot>> {
        let settle =
            |()| self.with_shard(call.tag.shard(), |shard, now| shard.settle_charge(&call, now));
        ready_result(call.validate().map(settle))
    }

    fn reset_counters(&self, tag: Key, counters: Vec<CounterName>) -> StoreFuture<'_, ()> {
        let reset =
            |()| self.with_shard(tag.shard(), |shard, _| shard.reset_counters(&tag, &counters));
        ready_result(check_item_count(counters.len()).map(reset))
    }

    fn register_limiter(&self, node: NodeId, lease: Duration) -> StoreFuture<'_, usize> {
        let now = ServerTime::from_micros(self.clock.now_us());
        ready_ok(update_live_nodes(&mut self.live_limiters.lock(), node, lease, now).1)
    }

    /// Ignores `mend`: data of this process cannot be edited by hand, so a finding is a bug of this
    /// store.
    #[cfg(any(test, feature = "fsck"))]
    fn fsck(&self, part: FsckPart, _mend: bool) -> StoreFuture<'_, FsckPartResult> {
        // The scan is complete and the namespace never empty: its name cannot be mistyped.
        let mut found = FsckPartResult {
            is_complete_scan: true,
            namespace_keys: 1,
            ..FsckPartResult::default()
        };
        if let FsckPart::Shard { shard: number, .. } = part {
            let look = |shard: &mut MemoryShard, now| shard.check_consistency(number, now);
            (found.examined, found.findings) = self.with_shard(number, look);
        }
        ready_ok(found)
    }

    fn ping(&self) -> StoreFuture<'_, ()> {
        ready_ok(())
    }

    fn subscribe(&self, node: NodeId, hints: &Arc<Wakeups>) -> Option<BoxFuture<'static, ()>> {
        self.pubsub.subscribe(&node, hints);
        None
    }
}

impl fmt::Debug for MemoryBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Omits the data: keys and requests belong to users.
        f.debug_struct("MemoryBackend").field("clock", &self.clock).finish_non_exhaustive()
    }
}

/// `live_workers.lua`: registers a node, or removes it if the lease is zero. Returns true if a node has
/// joined, left or expired, and the number of live nodes.
fn update_live_nodes(
    nodes: &mut HashMap<NodeId, u64>,
    node: NodeId,
    lease: Duration,
    now: ServerTime,
) -> (bool, usize) {
    let mut gone = false;
    nodes.retain(|other, end| {
        let lives = *end > now.ms;
        gone |= !lives && *other != node;
        lives
    });
    let changed = if lease.is_zero() {
        nodes.remove(&node).is_some()
    } else {
        nodes.insert(node, now.deadline_after(lease)).is_none()
    };
    (gone || changed, nodes.len())
}

fn ready_ok<T: Send + 'static>(answer: T) -> StoreFuture<'static, T> {
    ready_result(Ok(answer))
}

fn ready_result<T: Send + 'static>(outcome: Result<T, Error>) -> StoreFuture<'static, T> {
    Box::pin(ready(outcome))
}
