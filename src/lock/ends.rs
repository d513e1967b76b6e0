//! How the lock of a request ends.

use super::{
    gate::{LockGate, LockTicket, Ticket},
    guard::Released,
};
use crate::{lock::estimate::HoldTimes, reply::Fields};

/// The part of a layer's policy that begins when the handler does.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Ends {
    in_background: bool,
}

impl<N: ?Sized> LockGate<N> {
    /// See `LockLayer::release_in_background`.
    #[must_use]
    pub fn release_in_background(mut self) -> Self {
        self.ends.in_background = true;
        self
    }
}

impl Ends {
    /// The handler has answered.
    pub(super) async fn leave(self, ticket: LockTicket) -> Fields {
        if let Ticket::Own { guard, store, since } = ticket.0 {
            store.room::<HoldTimes>().note(since.elapsed());
            if self.in_background {
                drop(guard);
                return Fields::new();
            }
            let key = guard.key().clone();
            let released = guard.release().await;
            if released != Released::Released {
                tracing::warn!(lock = %key.hashed(), ?released, "the lock did not last");
            }
        }
        Fields::new()
    }
}
