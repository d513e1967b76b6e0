//! Charge of a run of a deferred request, by a layer inside its lock. The request did not reach
//! that layer while the lock was held.

use std::{fmt, sync::Arc};

use super::rate_limit_context::RateLimitContext;
use crate::{
    gate::ReplayMarker,
    rate_limit::engine::{CheckRequest, RateLimitEngine, SettlementHandle},
    store::Store,
};

/// Charge that is made after the run, even beyond the remaining units: the request was accepted, so
/// it is not refused any more. A run that meets another busy lock is not charged, since it runs
/// again.
pub(super) struct RunCharge {
    replay: Option<ReplayMarker>,
    store_and_engine: (Store, Arc<RateLimitEngine>),
    request: CheckRequest,
}

impl RunCharge {
    pub(super) fn new(
        store_and_engine: (Store, Arc<RateLimitEngine>),
        context: RateLimitContext,
    ) -> Self {
        Self { replay: context.replay, store_and_engine, request: context.request }
    }

    /// Charges a run that was answered with this status. `is_refunded` returns true for the
    /// policies that refund it.
    pub(super) fn charge_answered(
        self,
        status: u16,
        is_refunded: impl Fn(usize) -> bool,
    ) -> Option<SettlementHandle> {
        if self.replay.as_ref().is_none_or(|replay| replay.met_busy_lock_with(status)) {
            return None;
        }
        self.settle_in_background(|policy_index| !is_refunded(policy_index))
    }

    /// Charges a run that was dropped before its answer: by a panic, an outer timeout or the loss
    /// of its lock. Its handler may have run. A drain that cuts it off returns the job, and the
    /// next run is charged as well.
    pub(super) fn charge_dropped(self) {
        if self.replay.as_ref().is_some_and(|replay| !replay.met_busy_lock()) {
            let _ = self.settle_in_background(|_| true);
        }
    }

    fn settle_in_background(
        &self,
        must_charge: impl Fn(usize) -> bool,
    ) -> Option<SettlementHandle> {
        let (store, engine) = &self.store_and_engine;
        engine.charge_unconditionally(store, &self.request, must_charge)
    }
}

impl fmt::Debug for RunCharge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunCharge").field("replay", &self.replay).finish_non_exhaustive()
    }
}
