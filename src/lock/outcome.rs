//! What asking for a lock comes to.

use std::{error::Error as StdError, fmt, time::Duration};

use tokio::time::Instant;

use super::guard::LockGuard;
use crate::error::Error;

/// What asking comes to.
pub(super) enum LockOutcome<G = LockGuard> {
    Granted(G),
    Busy(LockBusy),
    RecordExists,
    /// Its owner has as many idempotency records as it may, until the first of them ends.
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

/// The status of a busy answer. Its fields and its body are the same, whichever it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum BusyStatus {
    /// 409: the request conflicts with what is going on at the resource, and may be sent again. The
    /// default, since it says what is the matter and proxies leave it alone.
    #[default]
    Conflict,
    /// 423 (RFC 4918): for clients that know it from WebDAV.
    Locked,
    /// 429: for clients that wait and repeat by themselves after this status. It looks like a quota;
    /// the problem's type tells them apart.
    TooManyRequests,
    /// 503: for proxies and clients that repeat by themselves after this status. Some take the server
    /// out of service for it.
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

/// What is known about a lock that somebody else has.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockBusy {
    /// When its lease ends if it is not renewed.
    pub lease_remaining: Duration,
    /// How many stand in line.
    pub queue_length: u64,
    /// How long this request has waited, if it did.
    pub waited: Option<Duration>,
}

/// Why there is no lock.
#[derive(Debug)]
#[non_exhaustive]
pub enum AcquireError {
    /// Somebody else has it: an outcome, not a fault.
    Busy(LockBusy),
    /// This request has the lock already, shared or by a permit, and asks for it in another way, for which
    /// it would have to wait for itself: a fault of the program. Give it back first, or ask for it alone
    /// from the start.
    WouldDeadlock,
    /// The store could not be asked.
    Fault(Error),
}

impl AcquireError {
    /// The wait was for several locks, and began then.
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
            Self::Busy(_) => f.write_str("the lock is held by somebody else"),
            Self::WouldDeadlock => f.write_str(
                "the lock is held by this request itself, in a way that excludes this one",
            ),
            Self::Fault(_) => f.write_str("the lock could not be asked for"),
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
