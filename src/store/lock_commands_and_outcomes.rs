//! Commands of the operations on a lock, such as [`AcquireCommand`], and their outcomes.

use std::{sync::Arc, time::Duration};

use super::{job_id::JobId, lock_mode::LockMode, lock_token::LockToken};
use crate::key::Key;

/// Time within which an offer must be confirmed before the lock goes to the next waiter.
pub(crate) const OFFER_TIMEOUT: Duration = Duration::from_millis(300);

/// Fences reserved after each grant for handovers inside the holder's process; the upper bound of
/// `max_handovers`. Fences restart from the server's clock after a loss of data, so they must not
/// run ahead of it: with this number, a shard can make 30,000 grants a second.
pub(crate) const SPARE_FENCES: u64 = 32;

/// Arguments of [`Backend::acquire`](super::backend::Backend::acquire).
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

/// Reply to an [`AcquireCommand`].
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
    pub(crate) fn merge(self, other: Self) -> Self {
        // 0 stands for none. Subtracting one makes it the largest number.
        let older = |a: u64, b: u64| a.wrapping_sub(1).min(b.wrapping_sub(1)).wrapping_add(1);
        Self { first: older(self.first, other.first), job: older(self.job, other.job) }
    }
}

/// Current fence and contenders of a held lock, as in [`AcquireReply::Granted`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct GrantRefresh {
    pub(crate) fence: u64,
    pub(crate) contenders: Contenders,
    pub(crate) server_us: u64,
}

/// Outcome of [`Backend::release`](super::backend::Backend::release).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReleaseOutcome {
    Released,
    Withdrawn,
    AlreadyExpired,
    NotFound,
    /// As `NotFound`, but the call was sent twice: the first copy may have released the lock.
    NotFoundOnRetry,
}

/// One lease in a call of [`Backend::renew`](super::backend::Backend::renew).
#[derive(Debug, Clone)]
pub(crate) struct LeaseRenewal {
    pub(crate) key: Key,
    pub(crate) token: LockToken,
    pub(crate) mode: LockMode,
    pub(crate) lease: Duration,
    pub(crate) job: Option<JobId>,
}
