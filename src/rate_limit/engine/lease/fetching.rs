//! Charges that are on their way into a lease.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{Spent, Unit};
use crate::{
    error::Error,
    rate_limit::engine::{
        Engine,
        counter_map::{Place, Spot},
        known::after,
    },
    store::{ChargeCommand, QuotaSnapshot, Store},
};

/// While more is fetched. Others fetch again when it has gone.
pub(super) struct Fetching {
    engine: Arc<Engine>,
    place: Place,
    /// How often the lease had been made void when it was asked for.
    voids: u64,
}

impl Fetching {
    pub(super) fn new(engine: &Arc<Engine>, spot: Spot<'_>) -> Self {
        let voids = engine.leases.with(spot, |lease| lease.voids).unwrap_or(0);
        Self { engine: Arc::clone(engine), place: Place::of(spot), voids }
    }

    /// Asks the store for as many, and keeps them but one.
    pub(super) async fn fetch(
        &self,
        store: &Store,
        charge: ChargeCommand,
    ) -> Result<Option<Spent>, Error> {
        let sent = Instant::now();
        let charged = store.backend().charge(charge).await?;
        let state = charged.snapshots.into_iter().next();
        Ok(state.map(|state| self.fill(sent, state, charged.admitted)))
    }

    /// The lease is there for as long as it is fetched, unless what was charged is forgotten by a reset.
    pub(super) fn put_back(&self, unit: &Unit) {
        let _ = self.engine.put_back(&self.place, unit);
    }

    /// Puts what was let in into the lease, but one.
    fn fill(&self, sent: Instant, state: QuotaSnapshot, admitted: u32) -> Spent {
        let Some(more) = admitted.checked_sub(1) else {
            return Spent { sent: Some(sent), state, unit: None };
        };
        // Refused were those at the end, whom nobody has asked for yet.
        let state = QuotaSnapshot { retry_after: Duration::ZERO, ..state };
        // The store's windows are of whole milliseconds, and may begin in the middle of the first.
        let until = after(sent, state.reset_after.saturating_sub(Duration::from_millis(1)));
        let (window, units) = (state.charged_window, u64::from(more));
        let filled = self.engine.leases.with(self.place.spot(), |lease| {
            if lease.voids != self.voids {
                // The reset has forgotten them, if they were charged before it; if not, they stay charged.
                return false;
            }
            // What is left, or was put back meanwhile, is good as well.
            let back = if lease.is_of(window) { lease.units } else { 0 };
            let used = Instant::now();
            (lease.units, lease.until, lease.window) = (units + back, until, window);
            (lease.used, lease.state, lease.filled) = (used, Some(state.clone()), Some(used));
            true
        });
        if filled == Some(true) {
            self.engine.note_rest(self.place.spot(), sent, &state);
        } else {
            self.engine.forget(self.place.spot());
        }
        let told = QuotaSnapshot { remaining: state.remaining + units, ..state };
        Spent { sent: Some(sent), state: told, unit: Some(Unit { window }) }
    }
}

impl Drop for Fetching {
    fn drop(&mut self) {
        self.engine.leases.with(self.place.spot(), |lease| lease.fetching = false);
    }
}
