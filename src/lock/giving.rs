//! What is waited for when a request gives back what it had.

use futures_util::future::BoxFuture;

use super::{
    guard::{Ending, Released},
    held::HeldLocks,
    several::LockSet,
};
use crate::store::LockLoss;

/// What is waited for.
pub(super) enum Giving {
    /// Nothing; how it was lost.
    Over(Option<LockLoss>),
    One(Ending),
    /// Several, or those that are left; how one of them was lost.
    Several(BoxFuture<'static, Released>, Option<LockLoss>),
}

impl Giving {
    /// A lost lock is given back all the same, but there is nothing to wait for. Those beside it are held still.
    pub(super) fn back(mut guards: LockSet, loss: Option<LockLoss>) -> Self {
        if loss.is_none() {
            return match guards.only() {
                Ok(guard) => Self::One(guard.end()),
                Err(several) => Self::Several(Box::pin(several.release()), None),
            };
        }
        guards.drop_lost();
        match guards.first() {
            Some(_) => Self::Several(Box::pin(guards.release()), loss),
            None => Self::Over(loss),
        }
    }

    /// How it was lost, as far as is known.
    pub(super) async fn loss(self, held: &HeldLocks) -> Option<LockLoss> {
        let (released, known) = match self {
            Self::Over(loss) => return loss,
            Self::One(ending) => (ending.released().await, None),
            Self::Several(released, known) => (released.await, known),
        };
        let found = match released {
            // Another layer has it too, or the handler has left a guard behind: that gives it back.
            Released::Released | Released::StillHeld => None,
            Released::AlreadyLost => held.loss().or(Some(LockLoss::Taken)),
            Released::Unknown => {
                crate::throttle::throttled!(
                    warn,
                    lock = %held.hashed(), "no answer to the lock's release"
                );
                None
            }
        };
        known.or(found)
    }
}
