//! Status of a release, as its caller gets it.

use tokio::time::Instant;

use crate::{
    error::Error,
    store::{HoldState, ReleaseOutcome},
};

/// Status of a release.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReleaseStatus {
    /// The lock was held to the end, and is released or handed over within this process.
    Released,
    /// Another guard of the same request still holds the lock; the last one releases it.
    StillHeld,
    /// The lock had been lost before; another holder may have had it.
    AlreadyLost,
    /// The store did not answer. The release is repeated in the background until the lease has
    /// ended.
    Unknown,
}

/// Converts the outcome of a release to the status for its caller.
pub(super) fn release_status(
    hold_state: &HoldState,
    release_result: &Result<ReleaseOutcome, Error>,
) -> ReleaseStatus {
    match release_result {
        _ if hold_state.loss().is_some() => ReleaseStatus::AlreadyLost,
        Ok(ReleaseOutcome::Released) => ReleaseStatus::Released,
        // The first of two calls may have released it: within the lease, no other call can have.
        Ok(ReleaseOutcome::NotFoundOnRetry) if hold_state.valid_until() > Instant::now() => {
            ReleaseStatus::Released
        }
        Ok(ReleaseOutcome::NotFoundOnRetry) | Err(_) => ReleaseStatus::Unknown,
        Ok(_) => {
            hold_state.report_loss_on_release();
            ReleaseStatus::AlreadyLost
        }
    }
}
