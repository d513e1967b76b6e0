//! Prefetch of a quota lease: a refill before its last unit is spent, so that no request waits for
//! it or is charged on its own meanwhile.
//!
//! Only a key that spends half of its lease within [`MAX_HALF_SPEND_TIME`] is prefetched. For other
//! keys a single request for each lease waits, and units fetched too early are missing for other
//! processes. A process never holds more units of a key than its policy allows: it fetches at most
//! the units spent.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{LeaseRefill, LeaseSpend, QuotaLease};
use crate::{
    rate_limit::engine::{RateLimitEngine, counter_map::BorrowedCounterId},
    store::{ChargeCommand, ChargeItem, Store},
};

/// Minimum size of a lease for a prefetch. Half of a smaller one is hardly worth a call.
const MIN_PREFETCHED_LEASE: u32 = 32;

/// Maximum time in which half of a lease is spent: some round trips to a nearby store.
const MAX_HALF_SPEND_TIME: Duration = Duration::from_millis(25);

impl QuotaLease {
    /// Returns the number of units to prefetch now. The lease then counts as refilling, and the
    /// caller must start the refill.
    pub(super) fn start_prefetch(
        &mut self,
        max_units: u32,
        process_count: u64,
        now: Instant,
    ) -> Option<u32> {
        let half = u64::from(max_units / 2);
        if max_units < MIN_PREFETCHED_LEASE || self.units > half || self.refilling {
            return None;
        }
        // One attempt for each refill. If it fails, the next request without a unit refills the
        // lease.
        self.filled_at.take().filter(|filled_at| now - *filled_at <= MAX_HALF_SPEND_TIME)?;
        let missing_units = max_units - u32::try_from(self.units).unwrap_or(max_units);
        let units = missing_units.min(self.max_refill(process_count, now));
        self.refilling = units > 1;
        self.refilling.then_some(units)
    }
}

impl RateLimitEngine {
    /// Refills a lease without a waiting request. A shutdown waits for it, and returns the units.
    pub(super) fn prefetch_lease(
        self: &Arc<Self>,
        store: &Store,
        counter_id: BorrowedCounterId<'_>,
        item: Option<ChargeItem>,
        units: u32,
    ) {
        let (refill, work_guard) =
            (LeaseRefill::new(self, counter_id), self.background_work.start());
        let charge = ChargeCommand {
            tag: counter_id.tag.clone(),
            items: item.into_iter().collect(),
            repetitions: units,
        };
        let store_handle = store.clone();
        store.spawn_background(async move {
            match refill.fetch(&store_handle, charge).await {
                Ok(Some(LeaseSpend { unit: Some(unit), .. })) => refill.return_unit(&unit),
                Ok(_) => {}
                Err(error) => tracing::debug!(%error, "prefetch of a quota lease failed"),
            }
            drop(work_guard);
        });
    }
}
