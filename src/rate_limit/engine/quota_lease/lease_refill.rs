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
    pub(super) fn new(engine: &Arc<RateLimitEngine>, spot: BorrowedCounterId<'_>) -> Self {
        let voids = engine.leases.with(spot, |lease| lease.generation).unwrap_or(0);
        Self { engine: Arc::clone(engine), counter: CounterId::from_ref(spot), generation: voids }
    }

    /// Charges the units of `charge`. Returns one of them and puts the others into the lease.
    pub(super) async fn fetch(
        &self,
        store: &Store,
        charge: ChargeCommand,
    ) -> Result<Option<LeaseSpend>, Error> {
        let sent = Instant::now();
        let charged = store.backend().charge(charge).await?;
        let state = charged.snapshots.into_iter().next();
        Ok(state.map(|state| self.fill_lease(sent, state, charged.admitted)))
    }

    /// Returns a unit to the lease. The lease exists during its refill; if a reset has invalidated
    /// it, the unit is dropped.
    pub(super) fn return_unit(&self, unit: &LeasedUnit) {
        let _ = self.engine.return_leased_unit(&self.counter, unit);
    }

    /// Puts all admitted units but one into the lease.
    fn fill_lease(&self, sent: Instant, state: QuotaSnapshot, admitted: u32) -> LeaseSpend {
        let Some(more) = admitted.checked_sub(1) else {
            return LeaseSpend { sent_at: Some(sent), state, unit: None };
        };
        // The refused units are the last ones, which no request has asked for yet.
        let state = QuotaSnapshot { retry_after: Duration::ZERO, ..state };
        // Windows of the store are whole milliseconds, and may start in the middle of the first.
        let until = add_capped(sent, state.reset_after.saturating_sub(Duration::from_millis(1)));
        let (window, units) = (state.charged_window, u64::from(more));
        let filled = self.engine.leases.with(self.counter.to_ref(), |lease| {
            if lease.generation != self.generation {
                // A reset has deleted units charged before it. Units charged after it stay charged.
                return false;
            }
            // Units that are left or were returned meanwhile are valid, too.
            let back = if lease.is_in_window(window) { lease.units } else { 0 };
            let used = Instant::now();
            (lease.units, lease.valid_until, lease.window) = (units + back, until, window);
            (lease.last_used, lease.last_state, lease.filled_at) =
                (used, Some(state.clone()), Some(used));
            true
        });
        if filled == Some(true) {
            self.engine.record_lease_refill(self.counter.to_ref(), sent, &state);
        } else {
            self.engine.invalidate_counter(self.counter.to_ref());
        }
        let told = QuotaSnapshot { remaining: state.remaining + units, ..state };
        LeaseSpend { sent_at: Some(sent), state: told, unit: Some(LeasedUnit { window }) }
    }
}

impl Drop for LeaseRefill {
    fn drop(&mut self) {
        self.engine.leases.with(self.counter.to_ref(), |lease| lease.refilling = false);
    }
}
