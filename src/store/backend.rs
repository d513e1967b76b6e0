//! `Backend`: the trait between the engines and the stores.
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
    DueLocks, ENDED_JOB_OVERHEAD, EndedFilter, EnqueueCommand, EnqueueOutcome, Heartbeat,
    JobBackend, JobHistory, JobListPage, JobPolicy, JobView, MergeMode, MergePolicy, NextClaim,
    OnFailure, PendingCursor, SettleCommand, SettleOutcome, Settlement, ShardStats, StorageLimits,
    WebhookJobSpec,
};
#[cfg(any(test, feature = "fsck"))]
use super::fsck::{FsckPart, FsckPartResult};
pub(crate) use super::{
    job_id::{JobId, JobState},
    rate::{ChargeCommand, ChargeOutcome, CounterName, QuotaSnapshot, SettleChargeCommand},
};
use super::{tasks::TaskBackend, wakeups::Wakeups};
use crate::{clock::saturating_micros, error::Error, key::Key};

/// Result of an operation. Dropping it may or may not stop the operation, so the caller sends an
/// undo of its own.
pub(crate) type StoreFuture<'a, T> = BoxFuture<'a, Result<T, Error>>;

/// Time within which an offer must be confirmed before the lock goes to the next waiter.
pub(crate) const OFFER_TIMEOUT: Duration = Duration::from_millis(300);

/// Time for which a shard that a worker has given up still counts as watched. The other workers are
/// notified at once and claim it a moment later. The heartbeat script has the same number.
pub(crate) const SHARD_VACANCY_GRACE: Duration = Duration::from_secs(1);

/// Fences reserved after each grant for handovers inside the holder's process; the upper bound of
/// `max_handovers`. Fences restart from the server's clock after a loss of data, so they must not
/// run ahead of it: with this number, a shard can make 30,000 grants a second.
pub(crate) const SPARE_FENCES: u64 = 32;

/// Lock mode: which holders a lock admits at the same time. All holders of a lock have the same
/// mode.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum LockMode {
    /// One holder.
    #[default]
    Exclusive,
    /// Any number of holders.
    Shared,
    /// At most this many holders, at least one.
    Permits(u32),
}

impl LockMode {
    /// Returns the letter of the mode on the wire.
    pub(crate) fn wire_letter(self) -> &'static str {
        match self {
            Self::Exclusive => "x",
            Self::Shared => "s",
            Self::Permits(_) => "p",
        }
    }

    /// Returns the letter before a token in the Redis key `h`.
    pub(crate) fn member_tag(self) -> &'static str {
        if self == Self::Exclusive { "" } else { self.wire_letter() }
    }

    /// Returns the maximum number of holders for `Permits`, or 0 for modes that need no count.
    pub(crate) fn max_permits(self) -> u64 {
        match self {
            Self::Permits(most) => most.into(),
            Self::Exclusive | Self::Shared => 0,
        }
    }
}

/// Identity of an acquisition: `<nonce>:<node>`, both random hex. It is secret: never logged, never
/// sent to a client.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct LockToken(Arc<str>);

impl LockToken {
    #[expect(clippy::indexing_slicing, reason = "a nonce and a node have 49 bytes")]
    pub(crate) fn new(node: &NodeId) -> Self {
        let mut nonce = [0; uuid::fmt::Simple::LENGTH];
        let nonce: &str = uuid::Uuid::new_v4().simple().encode_lower(&mut nonce);
        let parts = [nonce.as_bytes(), b":", node.as_str().as_bytes()];
        // Nonce and node take 49 bytes. Writing into a buffer on the stack leaves one copy, into
        // the `Arc`.
        let mut text = [0; 64];
        let length = parts.iter().fold(0, |at, part| {
            text[at..at + part.len()].copy_from_slice(part);
            at + part.len()
        });
        // All bytes are ASCII.
        Self(std::str::from_utf8(&text[..length]).unwrap_or_default().into())
    }

    /// Parses a token returned by the store.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let hex = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_hexdigit());
        let (nonce, node) = text.split_once(':')?;
        (hex(nonce) && hex(node)).then(|| Self(text.into()))
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the node part. Messages for this token go to that node's channel.
    pub(crate) fn node(&self) -> &str {
        self.0.split_once(':').map_or("", |(_, node)| node)
    }
}

impl fmt::Debug for LockToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

/// Returns 60 random bits in hex.
pub(crate) fn random_hex_id() -> Arc<str> {
    format!("{:016x}", uuid::Uuid::new_v4().as_u64_pair().0).into()
}

/// Identity of one incarnation of one process. It is random, so a restarted process is a new node.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct NodeId(Arc<str>);

impl NodeId {
    pub(crate) fn new() -> Self {
        Self(random_hex_id())
    }

    /// Parses a node returned by the store.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let hex = !text.is_empty() && text.bytes().all(|b| b.is_ascii_hexdigit());
        hex.then(|| Self(text.into()))
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Node({self})")
    }
}

/// Arguments of [`Backend::acquire`].
#[derive(Debug, Clone)]
pub(crate) struct AcquireCommand {
    pub(crate) key: Key,
    pub(crate) token: LockToken,
    pub(crate) mode: LockMode,
    pub(crate) lease: Duration,
    /// Time for which the queue entry may wait. `None` tries the lock once, without a queue entry.
    pub(crate) max_wait: Option<Duration>,
    /// Sequence that the new queue entry resumes, or 0. It is one of:
    ///
    /// - the sequence of a lapsed offer, which can be resumed once
    /// - the sequence of another reader's entry of this process, admitted while this caller waited
    ///   behind it
    /// - the arrival of the caller in server time, if its own process held the lock until now
    pub(crate) resume_seq: u64,
    /// Idempotency record to look up before a free lock is taken.
    pub(crate) record_name: Option<Arc<str>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum AcquireReply {
    /// `server_us` is the server's time in microseconds, from which sequences are made.
    Granted { fence: u64, queue_length: u64, contenders: Contenders, server_us: u64 },
    /// `has_joined` is true if this call created the queue entry.
    Busy { lease_remaining: Duration, queue_length: u64, seq: u64, has_joined: bool },
    /// The idempotency record exists: the request was accepted before. Nothing was taken.
    AlreadyAccepted,
}

/// Contenders for a held lock: the sequence of the first entry that could be served now, waiter or
/// job, and that of the first such job. 0 means that there is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Contenders {
    pub(crate) first: u64,
    pub(crate) job: u64,
}

impl Contenders {
    pub(crate) const NONE: Self = Self { first: 0, job: 0 };

    /// Contender that is a process.
    pub(crate) fn from_waiter(seq: u64) -> Self {
        Self { first: seq, job: 0 }
    }

    pub(crate) fn from_job(seq: u64) -> Self {
        Self { first: seq, job: seq }
    }

    /// Returns the older of each.
    pub(crate) fn merge(self, more: Self) -> Self {
        // 0 stands for none. Subtracting one makes it the largest number.
        let first =
            |one: u64, other: u64| one.wrapping_sub(1).min(other.wrapping_sub(1)).wrapping_add(1);
        Self { first: first(self.first, more.first), job: first(self.job, more.job) }
    }
}

/// Current fence and contenders of a held lock, as in [`AcquireReply::Granted`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct GrantRefresh {
    pub(crate) fence: u64,
    pub(crate) contenders: Contenders,
    pub(crate) server_us: u64,
}

/// Outcome of [`Backend::release`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReleaseOutcome {
    Released,
    Withdrawn,
    AlreadyExpired,
    NotFound,
    /// As `NotFound`, but the call was sent twice: the first copy may have released the lock.
    NotFoundOnRetry,
}

/// One lease in a call of [`Backend::renew`].
#[derive(Debug, Clone)]
pub(crate) struct LeaseRenewal {
    pub(crate) key: Key,
    pub(crate) token: LockToken,
    pub(crate) mode: LockMode,
    pub(crate) lease: Duration,
    pub(crate) job: Option<JobId>,
}

/// Atomic operations of a store. Each one ends within the store's deadline.
pub(crate) trait Backend:
    JobBackend + TaskBackend + fmt::Debug + Send + Sync + 'static
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
    fn release(&self, key: Key, me: LockToken, mode: LockMode) -> StoreFuture<'_, ReleaseOutcome>;
    /// Like `release`, for callers that must not wait, such as a `Drop`. The call is on its way
    /// when this returns, and every later call about this lock is ordered behind it. The future
    /// returns the outcome; dropping it changes nothing. `None` means that no runtime can send the
    /// call, neither the current one nor the home runtime, so it is not sent.
    fn send_release(
        &self,
        key: Key,
        me: LockToken,
        mode: LockMode,
    ) -> Option<StoreFuture<'static, ReleaseOutcome>>;
    /// Releases the lock of this token and acquires it for the next waiter of the same process, in
    /// one call. If no other process waits, that waiter gets the lock at once.
    fn release_and_reacquire(
        &self,
        me: LockToken,
        mode: LockMode,
        next: AcquireCommand,
    ) -> StoreFuture<'_, (ReleaseOutcome, AcquireReply)>;
    /// Returns the current fence and contenders for the holder of an exclusive lock, or `None` if
    /// the lock was lost. The fence and its spare fences are larger than all earlier ones. The
    /// lease does not change.
    fn refresh_grant(&self, key: Key, me: LockToken) -> StoreFuture<'_, Option<GrantRefresh>>;
    /// Turns an exclusive lock into a shared one. Returns false if it was lost.
    fn downgrade(&self, key: Key, me: LockToken, lease: Duration) -> StoreFuture<'_, bool>;
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
    fn advance_fence(&self, key: Key, me: LockToken, fence: u64) -> StoreFuture<'_, bool>;
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
    /// Registers this process as a limiter and returns the number of live ones. A lease of zero
    /// removes it.
    fn register_limiter(&self, node: NodeId, lease: Duration) -> StoreFuture<'_, usize>;
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
    /// Checks one part of the store, and repairs it if `_mend` is set. Finds nothing by default.
    #[cfg(any(test, feature = "fsck"))]
    fn fsck(&self, _part: FsckPart, _mend: bool) -> StoreFuture<'_, FsckPartResult> {
        Box::pin(std::future::ready(Ok(FsckPartResult::default())))
    }
    /// Fails if the store is unavailable or unusable.
    fn ping(&self) -> StoreFuture<'_, ()>;
    /// Like `ping`, for the server that owns this shard.
    fn ping_shard(&self, _shard: u16) -> StoreFuture<'_, ()> {
        self.ping()
    }
    /// Calls `tell`, for as long as it lives, whenever the store turns out to be another server, or
    /// the same one without its data: held locks may be lost. `tell` must not block.
    fn on_new_server(&self, tell: Weak<dyn Fn() + Send + Sync>) {
        drop(tell);
    }
    /// Delivers messages for this node into `hints` from now on, for as long as `hints` lives.
    /// Returns the future that must run for this, if there is one. If that future is dropped, for
    /// example with its runtime, `subscribe` must be called again.
    fn subscribe(&self, node: NodeId, hints: &Arc<Wakeups>) -> Option<BoxFuture<'static, ()>>;
}
