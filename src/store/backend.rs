//! `Backend`: the one trait between the engines and the stores.
//!
//! Each method is one atomic step, described by the script of the same name in `lua/`. The memory
//! store has the same steps in Rust; the conformance and differential tests hold the two together.

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

/// What a step returns. Dropping it may or may not undo the step: the caller sends its own undo.
pub(crate) type StoreFuture<'a, T> = BoxFuture<'a, Result<T, Error>>;

/// How long an offered lock waits to be confirmed before it goes to the next in line.
pub(crate) const OFFER_TIMEOUT: Duration = Duration::from_millis(300);

/// How long a shard that a worker has left to the others counts as watched until one of them takes it: they
/// hear of it at once, and come after a moment. As in `beat.lua`.
pub(crate) const SHARD_VACANCY_GRACE: Duration = Duration::from_secs(1);

/// Fences left free after each grant, for hand-overs inside the holder's process: the most there can be of
/// them. With many more, a busy shard's fences would run ahead of the server's clock, from which they begin
/// anew after a loss of data: this many allow for 30,000 grants a second.
pub(crate) const SPARE_FENCES: u64 = 32;

/// Who may hold a lock at the same time. Those who hold it are all of one mode.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum LockMode {
    /// One.
    #[default]
    Exclusive,
    /// Any number.
    Shared,
    /// At most this many, at least one.
    Permits(u32),
}

impl LockMode {
    /// The letter on the wire.
    pub(crate) fn wire_letter(self) -> &'static str {
        match self {
            Self::Exclusive => "x",
            Self::Shared => "s",
            Self::Permits(_) => "p",
        }
    }

    /// The letter before a token in `h`.
    pub(crate) fn member_tag(self) -> &'static str {
        if self == Self::Exclusive { "" } else { self.wire_letter() }
    }

    /// Most holders at once, where that has to be counted.
    pub(crate) fn max_permits(self) -> u64 {
        match self {
            Self::Permits(most) => most.into(),
            Self::Exclusive | Self::Shared => 0,
        }
    }
}

/// Who an acquisition is: `<nonce>:<node>`, both random hex. Never logged, never sent to a client.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct LockToken(Arc<str>);

impl LockToken {
    #[expect(clippy::indexing_slicing, reason = "a nonce and a node are 49 bytes")]
    pub(crate) fn new(node: &NodeId) -> Self {
        let mut nonce = [0; uuid::fmt::Simple::LENGTH];
        let nonce: &str = uuid::Uuid::new_v4().simple().encode_lower(&mut nonce);
        let parts = [nonce.as_bytes(), b":", node.as_str().as_bytes()];
        // Of nonce and node 49 are needed, and one copy makes the shared text of them.
        let mut text = [0; 64];
        let length = parts.iter().fold(0, |at, part| {
            text[at..at + part.len()].copy_from_slice(part);
            at + part.len()
        });
        // ASCII, all of it.
        Self(std::str::from_utf8(&text[..length]).unwrap_or_default().into())
    }

    /// One that came back from the store.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let hex = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_hexdigit());
        let (nonce, node) = text.split_once(':')?;
        (hex(nonce) && hex(node)).then(|| Self(text.into()))
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// The node part: whose channel a message for this token goes to.
    pub(crate) fn node(&self) -> &str {
        self.0.split_once(':').map_or("", |(_, node)| node)
    }
}

impl fmt::Debug for LockToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

/// 60 random bits, in hex.
pub(crate) fn random_hex_id() -> Arc<str> {
    format!("{:016x}", uuid::Uuid::new_v4().as_u64_pair().0).into()
}

/// One incarnation of one process: random, so a restarted process is another node.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct NodeId(Arc<str>);

impl NodeId {
    pub(crate) fn new() -> Self {
        Self(random_hex_id())
    }

    /// One that came back from the store.
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

/// `acquire.lua`.
#[derive(Debug, Clone)]
pub(crate) struct AcquireCommand {
    pub(crate) key: Key,
    pub(crate) token: LockToken,
    pub(crate) mode: LockMode,
    pub(crate) lease: Duration,
    /// How long a place in the line may wait; `None` = try, and take no place.
    pub(crate) max_wait: Option<Duration>,
    /// The sequence of a lapsed offer, to come back to the old place once; that of the place of
    /// another reader of this process, who was let in when this one stood behind him; or when the caller
    /// came, in the server's time, if its own process had the lock until now; 0 = none.
    pub(crate) resume_seq: u64,
    /// Idempotency record to look up before a free lock is taken.
    pub(crate) record_name: Option<Arc<str>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum AcquireReply {
    /// `now`: the server's time in microseconds, which sequences are made of.
    Granted { fence: u64, queue_length: u64, contenders: Contenders, server_us: u64 },
    /// `has_joined`: this call put the place into the line.
    Busy { lease_remaining: Duration, queue_length: u64, seq: u64, has_joined: bool },
    /// Accepted before: nothing was taken. The record's text is for `enqueue` alone.
    AlreadyAccepted,
}

/// Who of those in line could be served now: the sequence of the first of all, and of the first job; 0 = nobody.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Contenders {
    pub(crate) first: u64,
    pub(crate) job: u64,
}

impl Contenders {
    pub(crate) const NONE: Self = Self { first: 0, job: 0 };

    /// The place of a process.
    pub(crate) fn from_waiter(seq: u64) -> Self {
        Self { first: seq, job: 0 }
    }

    pub(crate) fn from_job(seq: u64) -> Self {
        Self { first: seq, job: seq }
    }

    /// Both of them together.
    pub(crate) fn merge(self, more: Self) -> Self {
        // Nobody is the largest, one below zero.
        let first =
            |one: u64, other: u64| one.wrapping_sub(1).min(other.wrapping_sub(1)).wrapping_add(1);
        Self { first: first(self.first, more.first), job: first(self.job, more.job) }
    }
}

/// `still.lua`: as the fields of [`AcquireReply::Held`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct GrantRefresh {
    pub(crate) fence: u64,
    pub(crate) contenders: Contenders,
    pub(crate) server_us: u64,
}

/// `release.lua`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReleaseOutcome {
    Released,
    Withdrawn,
    AlreadyExpired,
    NotFound,
    /// As `NotFound`, but the call had to be sent twice: the first one may have given it back.
    NotFoundOnRetry,
}

/// One item of `renew.lua`.
#[derive(Debug, Clone)]
pub(crate) struct LeaseRenewal {
    pub(crate) key: Key,
    pub(crate) token: LockToken,
    pub(crate) mode: LockMode,
    pub(crate) lease: Duration,
    pub(crate) job: Option<JobId>,
}

/// A store, seen from the engines. Every step is bounded by the store's deadline.
pub(crate) trait Backend:
    JobBackend + TaskBackend + fmt::Debug + Send + Sync + 'static
{
    /// Identities of this server, database and namespace, the current one last: shared with every other
    /// handle on them, in any process, and with no other store. None until a connection was made. The
    /// earlier ones are of data that the same server has lost since: a run that began under one of them
    /// still knows its own lock.
    fn identities(&self) -> Vec<Arc<str>>;
    /// The current identity, after a connection if there was none yet.
    fn identify(&self) -> StoreFuture<'_, Arc<str>>;
    /// The store's time in microseconds since 1970, as far as this process knows it without asking. Nothing of order, leases or
    /// due times may hang on it.
    fn estimated_now_us(&self) -> u64 {
        saturating_micros(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default())
    }
    /// What bounds a step. Where it is no round trip, that is what a thread may be kept from it at most.
    fn deadline(&self) -> Duration {
        Duration::from_secs(1)
    }
    /// Whether its clock is moved by hand, and says nothing of that of this process.
    fn has_manual_clock(&self) -> bool {
        false
    }
    fn acquire(&self, call: AcquireCommand) -> StoreFuture<'_, AcquireReply>;
    /// Takes all of these if each is free and nobody stands in its line, and else nothing: one step. They ask for
    /// the same, and there are two to 32 of them. `None`: nothing was taken, also where one step cannot be about
    /// all of them. Unlike other steps about a lock, it may be overtaken by what is called later.
    fn acquire_all(&self, calls: &[AcquireCommand]) -> StoreFuture<'_, Option<Vec<AcquireReply>>> {
        // Where a step is no round trip, they are as well taken one after the other.
        let _ = calls;
        Box::pin(std::future::ready(Ok(None)))
    }
    fn release(&self, key: Key, me: LockToken, mode: LockMode) -> StoreFuture<'_, ReleaseOutcome>;
    /// As `release`, for those who may not wait, such as a `Drop`: the step is on its way when this returns,
    /// and every step about this lock that is called after it comes after it. The future says how it
    /// went; dropped, it changes nothing. `None`: there is no runtime here or at home that would send it,
    /// and it will not be sent.
    fn send_release(
        &self,
        key: Key,
        me: LockToken,
        mode: LockMode,
    ) -> Option<StoreFuture<'static, ReleaseOutcome>>;
    /// Gives back what this nonce has, and acquires for the next of the same process, in one call: if
    /// nobody else stands in line, that one has the lock at once.
    fn release_and_reacquire(
        &self,
        me: LockToken,
        mode: LockMode,
        next: AcquireCommand,
    ) -> StoreFuture<'_, (ReleaseOutcome, AcquireReply)>;
    /// What the holder of an exclusive lock was told with its grant, as it is now: its fence, and the spare ones
    /// after it, are larger than all before; `None` if it had been lost. The lease stays as it is.
    fn refresh_grant(&self, key: Key, me: LockToken) -> StoreFuture<'_, Option<GrantRefresh>>;
    /// Makes an exclusive hold a shared one; false if it had been lost.
    fn downgrade(&self, key: Key, me: LockToken, lease: Duration) -> StoreFuture<'_, bool>;
    /// How often a way to the store was left because it was silent, or broke: what was called before may arrive there behind
    /// what is called now, also where it was called again by another way and answered.
    fn connection_resets(&self) -> u64 {
        0
    }
    /// Whether steps about different shards are different calls, of which some may fail.
    fn is_clustered(&self) -> bool {
        false
    }
    /// At most 100 items; of one shard, if the store is apart.
    fn renew(&self, items: Vec<LeaseRenewal>) -> StoreFuture<'_, Vec<bool>>;
    /// Makes the next fence of this lock larger than this one, which another store has given; false if this
    /// nonce does not have it alone.
    #[cfg_attr(not(feature = "quorum"), allow(dead_code, reason = "only a quorum raises fences"))]
    fn advance_fence(&self, key: Key, me: LockToken, fence: u64) -> StoreFuture<'_, bool>;
    /// NOT idempotent: sent again only where it cannot have run. Dropped before it was sent, it is not; after
    /// that the charge stands. It may stand in a queue, or
    /// have run, when this returns. To be polled at once: the first poll may be what sends it, and others wait for that.
    fn charge(&self, call: ChargeCommand) -> ChargeFuture<'_>;
    /// As `charge`, it may have been made if it fails. The states are those of a cost of 0.
    fn settle_charge(&self, call: SettleChargeCommand) -> StoreFuture<'_, Vec<QuotaSnapshot>>;
    /// Forgets what was spent, refused and blocked of these counters, at most 100.
    fn reset_counters(&self, tag: Key, counters: Vec<CounterName>) -> StoreFuture<'_, ()>;
    /// Number of live processes that limit; a lease of zero takes this one out.
    fn register_limiter(&self, node: NodeId, lease: Duration) -> StoreFuture<'_, usize>;
    /// How often this was another server than before.
    fn server_generation(&self) -> u64 {
        0
    }
    /// How many replicas have all that was written so far, once there are `wanted` of them, or the
    /// deadline has nearly passed. It fails unless it is the same server as when [`server_generation`](Self::server_generation) was
    /// `since`: replicas of another one say nothing of what was written before. A store without replicas
    /// cannot lose a grant: as many as wanted.
    fn wait_for_replicas(&self, _shard: u16, wanted: u32, _since: u64) -> StoreFuture<'_, u32> {
        Box::pin(std::future::ready(Ok(wanted)))
    }
    /// Checks one part of the store and mends it on request. Finds nothing by default.
    #[cfg(any(test, feature = "fsck"))]
    fn fsck(&self, _part: FsckPart, _mend: bool) -> StoreFuture<'_, FsckPartResult> {
        Box::pin(std::future::ready(Ok(FsckPartResult::default())))
    }
    /// Fails if the store is away or is not usable.
    fn ping(&self) -> StoreFuture<'_, ()>;
    /// The same of where this shard is.
    fn ping_shard(&self, _shard: u16) -> StoreFuture<'_, ()> {
        self.ping()
    }
    /// Calls this, for as long as it lives, whenever the store turns out to be another server than before,
    /// or the same one without its data: what is held may be gone. It must not wait.
    fn on_new_server(&self, tell: Weak<dyn Fn() + Send + Sync>) {
        drop(tell);
    }
    /// Delivers hints for this node into `hints` from now on, for as long as `hints` lives. What has to run for
    /// that, if anything has: should it be dropped, with its runtime say, somebody has to listen again.
    fn subscribe(&self, node: NodeId, hints: &Arc<Wakeups>) -> Option<BoxFuture<'static, ()>>;
}
