//! Releases that a request waits for at its end.

use futures_util::future::BoxFuture;

use super::{
    guard::{PendingRelease, ReleaseStatus},
    held_lock::HeldLocks,
    lock_set::LockSet,
};
use crate::store::LockLoss;

/// Releases in progress of one request.
pub(super) enum PendingReleases {
    /// Nothing to wait for; contains the reason if the locks were lost.
    Done(Option<LockLoss>),
    Single(PendingRelease),
    /// Several locks, or those left beside a lost one; contains the reason of that loss.
    Multiple(BoxFuture<'static, ReleaseStatus>, Option<LockLoss>),
}

impl PendingReleases {
    /// Starts the release of all locks. That of a lost lock is not waited for; locks beside it are
    /// still held.
    pub(super) fn start(mut guards: LockSet, loss: Option<LockLoss>) -> Self {
        if loss.is_none() {
            return match guards.into_single() {
                Ok(guard) => Self::Single(guard.begin_release()),
                Err(several) => Self::Multiple(Box::pin(several.release()), None),
            };
        }
        guards.drop_lost();
        match guards.first() {
            Some(_) => Self::Multiple(Box::pin(guards.release()), loss),
            None => Self::Done(loss),
        }
    }

    /// Waits for the releases. Returns the reason of a loss, as far as it is known.
    pub(super) async fn finish(self, held: &HeldLocks) -> Option<LockLoss> {
        let (released, known) = match self {
            Self::Done(loss) => return loss,
            Self::Single(ending) => (ending.finish().await, None),
            Self::Multiple(released, known) => (released.await, known),
        };
        let found = match released {
            // `StillHeld`: another layer, or a guard that the handler left behind, will release it.
            ReleaseStatus::Released | ReleaseStatus::StillHeld => None,
            ReleaseStatus::AlreadyLost => held.loss().or(Some(LockLoss::Taken)),
            ReleaseStatus::Unknown => {
                crate::throttle::throttled!(
                    warn,
                    lock = %held.display_hashed(), "no reply to the release of the lock"
                );
                None
            }
        };
        known.or(found)
    }
}
