//! Outcomes of acquiring a lock.

use std::{error::Error as StdError, fmt, time::Duration};

use tokio::time::Instant;

use super::guard::LockGuard;
use crate::error::Error;

/// Outcome of an acquire.
pub(super) enum LockOutcome<G = LockGuard> {
    Granted(G),
    Busy(LockBusy),
    RecordExists,
    /// The owner has reached its limit of idempotency records; the duration ends with the first of
    /// them.
    TooManyKeys(Duration),
}

impl<G> LockOutcome<G> {
    pub(super) fn map_granted<H>(self, granted: impl FnOnce(G) -> H) -> LockOutcome<H> {
        match self {
            Self::Granted(guard) => LockOutcome::Granted(granted(guard)),
            Self::Busy(busy) => LockOutcome::Busy(busy),
            Self::RecordExists => LockOutcome::RecordExists,
            Self::TooManyKeys(left) => LockOutcome::TooManyKeys(left),
        }
    }
}

/// Status of a response to a request that found its lock busy. Headers and body are the same for
/// each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum BusyStatus {
    /// 409: the request conflicts with one in progress and may be sent again. The default, because
    /// it names the cause and proxies pass it on unchanged.
    #[default]
    Conflict,
    /// 423 (RFC 4918): for clients that know it from WebDAV.
    Locked,
    /// 429: for clients that wait and retry by themselves after this status. It looks like a quota;
    /// the type of the problem document differs.
    TooManyRequests,
    /// 503: for proxies and clients that retry by themselves after this status. Some proxies take
    /// the server out of service for it.
    Unavailable,
}

impl BusyStatus {
    pub(super) fn code(self) -> u16 {
        match self {
            Self::Conflict => 409,
            Self::Locked => 423,
            Self::TooManyRequests => 429,
            Self::Unavailable => 503,
        }
    }
}

/// State of a lock that another holder has.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockBusy {
    /// Time until its lease expires if it is not renewed.
    pub lease_remaining: Duration,
    /// Number of waiters.
    pub queue_length: u64,
    /// Time that this request has waited, if it did.
    pub waited: Option<Duration>,
}

/// Reason why a lock was not acquired.
#[derive(Debug)]
#[non_exhaustive]
pub enum AcquireError {
    /// Another holder has it: an outcome, not a fault.
    Busy(LockBusy),
    /// This request holds the lock already, shared or by a permit, and asks for it in a mode that
    /// this excludes, so it would wait for itself. That is a bug in the application: release the
    /// lock first, or acquire it exclusively from the start.
    WouldDeadlock,
    /// The store could not be asked.
    Fault(Error),
}

impl AcquireError {
    /// Sets the wait to the time since `began`, the start of an acquire of several locks.
    pub(super) fn with_wait_since(self, began: Instant) -> Self {
        match self {
            Self::Busy(mut busy) => {
                busy.waited = busy.waited.map(|_| began.elapsed());
                Self::Busy(busy)
            }
            other => other,
        }
    }
}

impl From<Error> for AcquireError {
    fn from(error: Error) -> Self {
        Self::Fault(error)
    }
}

impl fmt::Display for AcquireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Busy(_) => f.write_str("the lock is held by another holder"),
            Self::WouldDeadlock => {
                f.write_str("the request itself holds the lock in a mode that excludes this one")
            }
            Self::Fault(_) => f.write_str("the acquire failed"),
        }
    }
}

impl StdError for AcquireError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Self::Busy(_) | Self::WouldDeadlock => None,
            Self::Fault(error) => Some(error),
        }
    }
}
