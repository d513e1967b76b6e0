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
        let Self { run, to: (store, engine), ask } = self;
        if run.is_none_or(|run| run.was_busy_with(status)) {
            return None;
        }
        engine.charge_late(&store, &ask, |place| !refunds(place))
    }
}

impl fmt::Debug for RunCharge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunCharge").field("run", &self.run).finish_non_exhaustive()
    }
}
