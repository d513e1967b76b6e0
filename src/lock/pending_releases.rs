//! Releases in progress: of one guard, and of all locks that a request waits for at its end.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use tokio::sync::oneshot;

use super::{
    held_lock_view::HeldLocks,
    lock_set::LockSet,
    lock_span::LockSpan,
    release_status::{ReleaseStatus, release_status},
};
use crate::store::{HoldState, LockLoss, OwnedHold, Store};

/// Release of one guard in progress. Dropping it leaves the remaining steps to the background.
pub(super) enum PendingRelease {
    Done(ReleaseStatus),
    Release {
        hold_state: Arc<HoldState>,
        hold: OwnedHold,
        span: LockSpan,
    },
    /// A queue task releases and reacquires in one call, and reports the status.
    ReleaseAndReacquire {
        store: Store,
        status_receiver: oneshot::Receiver<ReleaseStatus>,
        span: LockSpan,
    },
}

impl PendingRelease {
    /// Returns the release of a guard that is not the last one.
    pub(super) fn still_held(loss: Option<LockLoss>) -> Self {
        Self::Done(loss.map_or(ReleaseStatus::StillHeld, |_| ReleaseStatus::AlreadyLost))
    }

    /// Waits for the release.
    pub(super) async fn finish(self) -> ReleaseStatus {
        match self {
            Self::Done(status) => status,
            // The span ends when the release has told whether the lock was lost.
            Self::Release { hold_state, hold, span: _span } => {
                release_status(&hold_state, &hold.release().await)
            }
            Self::ReleaseAndReacquire { store, status_receiver, span: _span } => {
                store.await_reply(status_receiver).await.unwrap_or(ReleaseStatus::Unknown)
            }
        }
    }
}

/// Releases in progress of one request.
pub(super) enum PendingReleases {
    /// Nothing to wait for; contains the reason if the locks were lost.
    Done(Option<LockLoss>),
    Single(PendingRelease),
    /// Several locks, or those that remain beside a lost one; contains the reason of that loss.
    Multiple {
        release: BoxFuture<'static, ReleaseStatus>,
        reported_loss: Option<LockLoss>,
    },
}

impl PendingReleases {
    /// Starts the release of all locks. That of a lost lock is not waited for; locks beside it are
    /// still held.
    pub(super) fn start(mut guards: LockSet, loss: Option<LockLoss>) -> Self {
        if loss.is_none() {
            return match guards.into_single() {
                Ok(guard) => Self::Single(guard.begin_release()),
                Err(guards) => {
                    Self::Multiple { release: Box::pin(guards.release()), reported_loss: None }
                }
            };
        }
        guards.drop_lost();
        match guards.first() {
            Some(_) => Self::Multiple { release: Box::pin(guards.release()), reported_loss: loss },
            None => Self::Done(loss),
        }
    }

    /// Waits for the releases. Returns the reason of a loss, as far as it is known.
    pub(super) async fn finish(self, held_locks: &HeldLocks) -> Option<LockLoss> {
        let (status, reported_loss) = match self {
            Self::Done(loss) => return loss,
            Self::Single(release) => (release.finish().await, None),
            Self::Multiple { release, reported_loss } => (release.await, reported_loss),
        };
        let release_loss = match status {
            // `StillHeld`: another layer, or a guard that the handler left behind, will release it.
            ReleaseStatus::Released | ReleaseStatus::StillHeld => None,
            ReleaseStatus::AlreadyLost => held_locks.loss().or(Some(LockLoss::Taken)),
            ReleaseStatus::Unknown => {
                crate::throttle::throttled!(
                    warn,
                    lock = %held_locks.display_names(), "no reply to the release of the lock"
                );
                None
            }
        };
        reported_loss.or(release_loss)
    }
}
