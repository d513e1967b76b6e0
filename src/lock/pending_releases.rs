//! What is waited for when a request gives back what it had.

use futures_util::future::BoxFuture;

use super::{
    guard::{PendingRelease, ReleaseStatus},
    held_lock::HeldLocks,
    lock_set::LockSet,
};
use crate::store::LockLoss;

/// What is waited for.
pub(super) enum PendingReleases {
    /// Nothing; how it was lost.
    Done(Option<LockLoss>),
    Single(PendingRelease),
    /// Several, or those that are left; how one of them was lost.
    Multiple(BoxFuture<'static, ReleaseStatus>, Option<LockLoss>),
}

impl PendingReleases {
    /// A lost lock is given back all the same, but there is nothing to wait for. Those beside it are held still.
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

    /// How it was lost, as far as is known.
    pub(super) async fn finish(self, held: &HeldLocks) -> Option<LockLoss> {
        let (released, known) = match self {
            Self::Done(loss) => return loss,
            Self::Single(ending) => (ending.finish().await, None),
            Self::Multiple(released, known) => (released.await, known),
        };
        let found = match released {
            // Another layer has it too, or the handler has left a guard behind: that gives it back.
            ReleaseStatus::Released | ReleaseStatus::StillHeld => None,
            ReleaseStatus::AlreadyLost => held.loss().or(Some(LockLoss::Taken)),
            ReleaseStatus::Unknown => {
                crate::throttle::throttled!(
                    warn,
                    lock = %held.display_hashed(), "no answer to the lock's release"
                );
                None
            }
        };
        known.or(found)
    }
}
