//! More of a lease before all of it is spent, so that nobody waits for it, or asks for himself alone meanwhile.
//!
//! Only of a key that spends half of a lease within moments: of others it is one request in a lease's length that
//! waits, and what is fetched too early is not there for other processes. A process never has more of a key than its
//! policy says: it fetches at most what it has spent.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{LeaseRefill, LeaseSpend, QuotaLease};
use crate::{
    rate_limit::engine::{RateLimitEngine, counter_map::CounterRef},
    store::{ChargeCommand, ChargeItem, Store},
};

/// Half of a smaller lease is hardly worth a call.
const MIN_PREFETCHED_LEASE: u32 = 32;

/// Within this time half of it has to be spent: some round trips to a store that is near.
const MAX_HALF_SPEND_TIME: Duration = Duration::from_millis(25);

impl QuotaLease {
    /// How much is to be fetched now, before anybody needs it; whoever is told has to see to it.
    pub(super) fn start_prefetch(&mut self, most: u32, sharing: u64, now: Instant) -> Option<u32> {
        let half = u64::from(most / 2);
        if most < MIN_PREFETCHED_LEASE || self.units > half || self.refilling {
            return None;
        }
        // Asked for once: what does not come, for whatever reason, is fetched by who finds no unit.
        self.filled_at.take().filter(|filled| now - *filled <= MAX_HALF_SPEND_TIME)?;
        let room = most - u32::try_from(self.units).unwrap_or(most);
        let fetch = room.min(self.max_refill(sharing, now));
        self.refilling = fetch > 1;
        self.refilling.then_some(fetch)
    }
}

impl RateLimitEngine {
    /// Fetches what nobody waits for. A shutdown waits for it, and gives it back.
    pub(super) fn prefetch_lease(
        self: &Arc<Self>,
        store: &Store,
        spot: CounterRef<'_>,
        item: Option<ChargeItem>,
        times: u32,
    ) {
        let (fetching, begun) = (LeaseRefill::new(self, spot), self.background_work.start());
        let charge = ChargeCommand {
            tag: spot.tag.clone(),
            items: item.into_iter().collect(),
            repetitions: times,
        };
        let with = store.clone();
        store.spawn_background(async move {
            match fetching.fetch(&with, charge).await {
                Ok(Some(LeaseSpend { unit: Some(unit), .. })) => fetching.return_unit(&unit),
                Ok(_) => {}
                Err(error) => tracing::debug!(%error, "a lease was not fetched ahead"),
            }
            drop(begun);
        });
    }
}
