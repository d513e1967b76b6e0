//! Outcome of an acquire: granted, busy, or an error.

use std::{error::Error as StdError, fmt, time::Duration};

use tokio::time::Instant;

use super::lock_guard::LockGuard;
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
            Self::TooManyKeys(remaining) => LockOutcome::TooManyKeys(remaining),
        }
    }

    /// Returns the grant of an acquire without an idempotency record.
    pub(super) fn into_granted(self) -> Result<G, AcquireError> {
        match self {
            Self::Granted(granted) => Ok(granted),
            Self::Busy(busy) => Err(AcquireError::Busy(busy)),
            #[expect(clippy::unreachable, reason = "returned for idempotency records only")]
            Self::RecordExists | Self::TooManyKeys(_) => {
                unreachable!("the request has no idempotency record")
            }
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
    pub(super) fn with_wait_since(self, started_at: Instant) -> Self {
        match self {
            Self::Busy(mut busy) => {
                busy.waited = busy.waited.map(|_| started_at.elapsed());
                Self::Busy(busy)
            }
            error => error,
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
