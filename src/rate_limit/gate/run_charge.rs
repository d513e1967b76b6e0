//! What a run of a deferred request is charged by a layer within its lock, to which the request did not come while that was
//! held.

use std::{fmt, sync::Arc};

use super::rate_limit_context::RateLimitContext;
use crate::{
    gate::ReplayMarker,
    rate_limit::engine::{CheckRequest, PendingSettlement, RateLimitEngine},
    store::Store,
};

/// Charged when it has run, and whatever is left of the quota: it was accepted, so it is refused no more, and who meets
/// another busy lock comes again.
pub(super) struct RunCharge {
    replay: Option<ReplayMarker>,
    store_and_engine: (Store, Arc<RateLimitEngine>),
    request: CheckRequest,
}

impl RunCharge {
    pub(super) fn new(to: (Store, Arc<RateLimitEngine>), facts: RateLimitContext) -> Self {
        Self { replay: facts.replay, store_and_engine: to, request: facts.request }
    }

    /// It was answered by this status. `refunds`: which of the layer's policies give that back.
    pub(super) fn charge_answered(
        self,
        status: u16,
        refunds: impl Fn(usize) -> bool,
    ) -> Option<PendingSettlement> {
        if self.replay.as_ref().is_none_or(|run| run.met_busy_lock_with(status)) {
            return None;
        }
        self.settle_in_background(|place| !refunds(place))
    }

    /// It was dropped before it had an answer: by a panic, a timeout further out, the loss of its lock. Whether the handler
    /// has run can't be told. A drain that cuts it off hands it back, and the next run is charged too.
    pub(super) fn charge_dropped(self) {
        if self.replay.as_ref().is_some_and(|run| !run.met_busy_lock()) {
            let _ = self.settle_in_background(|_| true);
        }
    }

    fn settle_in_background(&self, charges: impl Fn(usize) -> bool) -> Option<PendingSettlement> {
        let (store, engine) = &self.store_and_engine;
        engine.charge_unconditionally(store, &self.request, charges)
    }
}

impl fmt::Debug for RunCharge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunCharge").field("replay", &self.replay).finish_non_exhaustive()
    }
}
