//! `Backend`: the trait between the engines and the stores, of all operations on locks and quotas.
//! Those on jobs and tasks, and those of operators, are in its supertraits [`JobBackend`],
//! [`TaskBackend`] and [`InspectionBackend`].
//!
//! Each method is one atomic operation: a script in `lua/` on Redis, Rust code under the shard's
//! mutex in memory. Conformance and differential tests keep the two backends equivalent.

use std::{
    fmt,
    sync::{Arc, Weak},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use futures_util::future::BoxFuture;

pub(crate) use super::charge_future::ChargeFuture;
pub(crate) use super::deferred::{
    ActiveRun, BeginDirectOutcome, ClaimCommand, ClaimOutcome, ClaimedRun, DirectRunCommand,
    DueLocks, ENDED_JOB_OVERHEAD, EndedJobFilter, EnqueueCommand, EnqueueOutcome, HeartbeatReply,
    JobBackend, JobHistory, JobListPage, JobPolicy, JobView, MergeMode, MergePolicy, NextClaim,
    OnFailure, PendingCursor, SHARD_VACANCY_GRACE, SettleCommand, SettleOutcome, Settlement,
    ShardStats, StorageLimits, WebhookJobSpec,
};
#[cfg(any(test, feature = "fsck"))]
use super::fsck::{FsckPart, FsckPartResult};
use super::{inspection::InspectionBackend, tasks::TaskBackend, wakeup_listeners::WakeupListeners};
pub(crate) use super::{
    job_id::{JobId, JobState},
    lock_commands_and_outcomes::{
        AcquireCommand, AcquireReply, Contenders, GrantRefresh, LeaseRenewal, OFFER_TIMEOUT,
        ReleaseOutcome, SPARE_FENCES,
    },
    lock_mode::LockMode,
    lock_token::LockToken,
    node_id::{NodeId, random_hex_id},
    rate::{
        ChargeCommand, ChargeOutcome, CounterName, QuotaSnapshot, SettleChargeCommand,
        StoredPolicyChanges,
    },
};
use crate::{durations::saturating_micros, error::Error, key::Key};

/// Result of an operation. Dropping it may or may not stop the operation, so the caller sends an
/// undo of its own.
pub(crate) type StoreFuture<'a, T> = BoxFuture<'a, Result<T, Error>>;

/// Atomic operations of a store. Each one ends within the store's deadline.
pub(crate) trait Backend:
    InspectionBackend + JobBackend + TaskBackend + fmt::Debug + Send + Sync + 'static
{
    /// Returns the identities of this server, database and namespace, the current one last. All
    /// handles on them, in any process, share these identities; no other store has them. The list
    /// is empty until a connection was made. Earlier identities belong to data that the same server
    /// has lost since; a run that started under one of them still recognizes its own lock.
    fn identities(&self) -> Vec<Arc<str>>;
    /// Returns the current identity, and connects first if there was no connection yet.
    fn identify(&self) -> StoreFuture<'_, Arc<str>>;
    /// Returns the store's time in microseconds since 1970 as this process estimates it without a
    /// call. Order, leases and due times must not depend on it.
    fn estimated_now_us(&self) -> u64 {
        saturating_micros(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default())
    }
    /// Returns the time limit of an operation. The embedded store makes no round trip; there it is
    /// the longest time for which an operation's thread is expected to be stalled.
    fn deadline(&self) -> Duration {
        Duration::from_secs(1)
    }
    /// Returns true if the store's clock is moved by hand, and so is unrelated to this process's
    /// clock.
    fn has_manual_clock(&self) -> bool {
        false
    }
    /// Notes keys that a `LockLayer` asks for, for a test that holds a key of another form.
    #[cfg(any(test, feature = "test-kit"))]
    fn note_layer_keys(&self, keys: &[Key]) {
        let _ = keys;
    }
    /// Returns the number of pending jobs that are lost when this process ends, because they are in
    /// its memory.
    fn volatile_job_count(&self) -> u64 {
        0
    }
    fn acquire(&self, call: AcquireCommand) -> StoreFuture<'_, AcquireReply>;
    /// Acquires all these locks if each is free and has no waiters, and otherwise none, in one
    /// operation. There are 2 to 32 commands, with the same mode and lease. `None` means that
    /// nothing was taken, also because one operation cannot cover all these locks. Unlike other
    /// operations on a lock, it may be overtaken by calls that are made later.
    fn acquire_all(&self, calls: &[AcquireCommand]) -> StoreFuture<'_, Option<Vec<AcquireReply>>> {
        // Without a round trip, acquiring them one after the other is as fast.
        let _ = calls;
        Box::pin(std::future::ready(Ok(None)))
    }
    fn release(
        &self,
        key: Key,
        token: LockToken,
        mode: LockMode,
    ) -> StoreFuture<'_, ReleaseOutcome>;
    /// Like `release`, for callers that must not wait, such as a `Drop`. The call is on its way
    /// when this returns, and every later call about this lock is ordered behind it. The future
    /// returns the outcome; dropping it changes nothing. `None` means that no runtime can send the
    /// call, neither the current one nor the home runtime, so it is not sent.
    fn send_release(
        &self,
        key: Key,
        token: LockToken,
        mode: LockMode,
    ) -> Option<StoreFuture<'static, ReleaseOutcome>>;
    /// Releases the lock of this token and acquires it for the next waiter of the same process, in
    /// one call. If no other process waits, that waiter gets the lock at once.
    fn release_and_reacquire(
        &self,
        token: LockToken,
        mode: LockMode,
        next: AcquireCommand,
    ) -> StoreFuture<'_, (ReleaseOutcome, AcquireReply)>;
    /// Returns the current fence and contenders for the holder of an exclusive lock, or `None` if
    /// the lock was lost. The fence and its spare fences are larger than all earlier ones. The
    /// lease does not change.
    fn refresh_grant(&self, key: Key, token: LockToken) -> StoreFuture<'_, Option<GrantRefresh>>;
    /// Turns an exclusive lock into a shared one. Returns false if it was lost.
    fn downgrade(&self, key: Key, token: LockToken, lease: Duration) -> StoreFuture<'_, bool>;
    /// Returns the number of connections that were given up because they were silent or broke.
    /// Calls sent over such a connection may reach the server after later calls, even if they were
    /// sent again over another connection and answered.
    fn connection_resets(&self) -> u64 {
        0
    }
    /// Returns true if operations on different shards are separate calls, of which some may fail.
    fn is_clustered(&self) -> bool {
        false
    }
    /// Renews at most 100 leases, all in one shard if [`is_clustered`](Self::is_clustered).
    /// Returns, for each, true if it was renewed.
    fn renew(&self, items: Vec<LeaseRenewal>) -> StoreFuture<'_, Vec<bool>>;
    /// Makes the next fence of this lock larger than `fence`, which another store has given.
    /// Returns false if this token does not hold the lock exclusively.
    #[cfg_attr(not(feature = "quorum"), allow(dead_code, reason = "only a quorum raises fences"))]
    fn advance_fence(&self, key: Key, token: LockToken, fence: u64) -> StoreFuture<'_, bool>;
    /// Charges quotas. NOT idempotent: it is sent again only if it cannot have run. Dropped before
    /// it was sent, it never is; dropped later, the charge stands. The charge may be queued, or
    /// have run, when this returns. Poll the future at once: its first poll may be the one that
    /// sends the batch, and other calls wait for it.
    fn charge(&self, call: ChargeCommand) -> ChargeFuture<'_>;
    /// Refunds or charges after the fact. Like `charge`, it may have run although it failed. The
    /// snapshots are those of a cost of 0.
    fn settle_charge(&self, call: SettleChargeCommand) -> StoreFuture<'_, Vec<QuotaSnapshot>>;
    /// Resets usage, refusals and blocks of at most 100 counters.
    fn reset_counters(&self, tag: Key, counters: Vec<CounterName>) -> StoreFuture<'_, ()>;
    /// Blocks at most 100 counters for this time, or ends their blocks and forgets their refusals
    /// if it is zero. Only charges with a penalty notice a block.
    fn block_counters(
        &self,
        tag: Key,
        counters: Vec<CounterName>,
        block: Duration,
    ) -> StoreFuture<'_, ()>;
    /// Registers this process as a limiter and returns the number of live ones. A lease of zero
    /// removes it.
    fn register_limiter(&self, node: NodeId, lease: Duration) -> StoreFuture<'_, usize>;
    /// Returns the document of the policies that operators have changed.
    fn read_policy_changes(&self) -> StoreFuture<'_, StoredPolicyChanges>;
    /// Replaces that document if it still has this version, and notifies all processes. Returns
    /// false if it has another one. It may be repeated.
    fn replace_policy_changes(
        &self,
        old_version: u64,
        new: StoredPolicyChanges,
    ) -> StoreFuture<'_, bool>;
    /// Returns true while calls are refused because the store is unavailable.
    #[cfg_attr(not(feature = "metrics"), allow(dead_code, reason = "read by metrics only"))]
    fn has_open_breaker(&self) -> bool {
        false
    }
    /// Returns the number of times that the server was replaced by another one.
    fn server_generation(&self) -> u64 {
        0
    }
    /// Returns the number of replicas that have all writes made so far, once at least `wanted` have
    /// them or the deadline has nearly passed. Fails if
    /// [`server_generation`](Self::server_generation) is no longer `since`: replicas of another
    /// server say nothing about earlier writes. A store without replicas cannot lose a grant, so it
    /// returns `wanted`.
    fn wait_for_replicas(&self, _shard: u16, wanted: u32, _since: u64) -> StoreFuture<'_, u32> {
        Box::pin(std::future::ready(Ok(wanted)))
    }
    /// Checks one part of the store, and repairs it if `_repair` is set. Finds nothing by default.
    #[cfg(any(test, feature = "fsck"))]
    fn fsck(&self, _part: FsckPart, _repair: bool) -> StoreFuture<'_, FsckPartResult> {
        Box::pin(std::future::ready(Ok(FsckPartResult::default())))
    }
    /// Fails if the store is unavailable or unusable.
    fn ping(&self) -> StoreFuture<'_, ()>;
    /// Like `ping`, for the server that owns this shard.
    fn ping_shard(&self, _shard: u16) -> StoreFuture<'_, ()> {
        self.ping()
    }
    /// Calls `notify`, for as long as it lives, whenever the store turns out to be another server,
    /// or the same one without its data: held locks may be lost. `notify` must not block.
    fn on_new_server(&self, notify: Weak<dyn Fn() + Send + Sync>) {
        drop(notify);
    }
    /// Returns false if [`subscribe`](Self::subscribe) delivers no messages.
    fn receives_messages(&self) -> bool {
        true
    }
    /// Delivers messages for this node into `wakeups` from now on, for as long as `wakeups` lives.
    /// Returns the future that must run for this, if there is one. If that future is dropped, for
    /// example with its runtime, `subscribe` must be called again.
    fn subscribe(
        &self,
        node: NodeId,
        wakeups: &Arc<WakeupListeners>,
    ) -> Option<BoxFuture<'static, ()>>;
}
