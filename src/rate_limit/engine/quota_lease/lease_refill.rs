//! Refills of quota leases.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{LeaseSpend, LeasedUnit};
use crate::{
    error::Error,
    rate_limit::engine::{
        RateLimitEngine,
        counter_map::{BorrowedCounterId, CounterId},
        refusal_cache::add_capped,
    },
    store::{ChargeCommand, QuotaSnapshot, Store},
};

/// Refill in flight. Dropping it allows the next refill.
pub(super) struct LeaseRefill {
    engine: Arc<RateLimitEngine>,
    counter: CounterId,
    /// Generation of the lease when the refill started.
    generation: u64,
}

impl LeaseRefill {
    pub(super) fn new(engine: &Arc<RateLimitEngine>, counter_id: BorrowedCounterId<'_>) -> Self {
        let generation = engine.leases.with(counter_id, |lease| lease.generation).unwrap_or(0);
        Self { engine: Arc::clone(engine), counter: CounterId::from_ref(counter_id), generation }
    }

    /// Charges the units of `charge`. Returns one of them and puts the others into the lease.
    pub(super) async fn fetch(
        &self,
        store: &Store,
        charge: ChargeCommand,
    ) -> Result<Option<LeaseSpend>, Error> {
        let sent_at = Instant::now();
        let outcome = store.backend().charge(charge).await?;
        let state = outcome.snapshots.into_iter().next();
        Ok(state.map(|state| self.fill_lease(sent_at, state, outcome.admitted)))
    }

    /// Returns a unit to the lease. The lease exists during its refill; if a reset has invalidated
    /// it, the unit is dropped.
    pub(super) fn return_unit(&self, unit: &LeasedUnit) {
        let _ = self.engine.return_leased_unit(&self.counter, unit);
    }

    /// Puts all admitted units but one into the lease.
    fn fill_lease(&self, sent_at: Instant, state: QuotaSnapshot, admitted: u32) -> LeaseSpend {
        let Some(leased_units) = admitted.checked_sub(1) else {
            return LeaseSpend { sent_at: Some(sent_at), state, unit: None };
        };
        // The refused units are the last ones, which no request has asked for yet.
        let state = QuotaSnapshot { retry_after: Duration::ZERO, ..state };
        // Windows of the store are whole milliseconds, and may start in the middle of the first.
        let valid_until =
            add_capped(sent_at, state.reset_after.saturating_sub(Duration::from_millis(1)));
        let (window, added_units) = (state.charged_window, u64::from(leased_units));
        let is_filled = self.engine.leases.with(self.counter.to_ref(), |lease| {
            if lease.generation != self.generation {
                // A reset has deleted units charged before it. Units charged after it stay charged.
                return false;
            }
            // Units that are left or were returned meanwhile are valid, too.
            let remaining_units = if lease.is_in_window(window) { lease.units } else { 0 };
            let now = Instant::now();
            (lease.units, lease.valid_until, lease.window) =
                (added_units + remaining_units, valid_until, window);
            (lease.last_used, lease.last_state, lease.filled_at) =
                (now, Some(state.clone()), Some(now));
            true
        });
        if is_filled == Some(true) {
            self.engine.record_lease_refill(self.counter.to_ref(), sent_at, &state);
        } else {
            self.engine.invalidate_counter(self.counter.to_ref());
        }
        let snapshot = QuotaSnapshot { remaining: state.remaining + added_units, ..state };
        LeaseSpend { sent_at: Some(sent_at), state: snapshot, unit: Some(LeasedUnit { window }) }
    }
}

impl Drop for LeaseRefill {
    fn drop(&mut self) {
        self.engine.leases.with(self.counter.to_ref(), |lease| lease.refilling = false);
    }
}
