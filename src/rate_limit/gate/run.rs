//! What a run of a deferred request is charged by a layer within its lock, to which the request did not come while that was
//! held.

use std::{fmt, sync::Arc};

use super::ask::RateLimitFacts;
use crate::{
    gate::Replay,
    rate_limit::engine::{Ask, Done, Engine},
    store::Store,
};

/// Charged when it has run, and whatever is left of the quota: it was accepted, so it is refused no more, and who meets
/// another busy lock comes again.
pub(super) struct RunCharge {
    run: Option<Replay>,
    to: (Store, Arc<Engine>),
    ask: Ask,
}

impl RunCharge {
    pub(super) fn new(to: (Store, Arc<Engine>), facts: RateLimitFacts) -> Self {
        Self { run: facts.run, to, ask: facts.ask }
    }

    /// It was answered by this status. `refunds`: which of the layer's policies give that back.
    pub(super) fn made(self, status: u16, refunds: impl Fn(usize) -> bool) -> Option<Done> {
        if self.run.as_ref().is_none_or(|run| run.was_busy_with(status)) {
            return None;
        }
        self.charge(|place| !refunds(place))
    }

    /// It was dropped before it had an answer: by a panic, a timeout further out, the loss of its lock. Whether the handler
    /// has run can't be told. A drain that cuts it off hands it back, and the next run is charged too.
    pub(super) fn broke_off(self) {
        if self.run.as_ref().is_some_and(|run| !run.was_busy()) {
            let _ = self.charge(|_| true);
        }
    }

    fn charge(&self, charges: impl Fn(usize) -> bool) -> Option<Done> {
        let (store, engine) = &self.to;
        engine.charge_late(store, &self.ask, charges)
    }
}

impl fmt::Debug for RunCharge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunCharge").field("run", &self.run).finish_non_exhaustive()
    }
}
