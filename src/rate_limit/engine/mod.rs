//! Engine of the rate limits, one for each store handle: it decides, and caches decisions.
//!
//! The modules, in the order in which a check meets them:
//!
//! - [`refusal_cache`] may refuse at once.
//! - [`quota_lease`] may have a unit that was charged in advance.
//! - [`rate_check`] asks the store. It records in a [`charge_receipt`] the charges that may have to
//!   be refunded or adjusted, which [`pending_settlement`] does.
//! - [`outage_state`] and [`outage_limiter`] decide in this process while the store is unavailable.
//! - [`background_task`] does the work that no check triggers.

mod background_task;
mod background_work;
mod charge_receipt;
mod check_request;
mod counter_map;
mod outage_limiter;
mod outage_state;
mod pending_settlement;
mod quota_lease;
mod rate_check;
mod refusal_cache;

use std::{
    fmt,
    sync::{Arc, OnceLock, atomic::AtomicBool},
};

use tokio::sync::Notify;

use self::{
    background_work::BackgroundWork, outage_state::OutageState, quota_lease::QuotaLease,
    refusal_cache::RefusalCacheEntry,
};
use crate::{error::Error, store::Store};

pub(super) use self::{
    charge_receipt::ChargeReceipt,
    check_request::{CheckRequest, PolicyCheck},
    counter_map::{CounterMap, CounterRef, CounterState},
    pending_settlement::PendingSettlement,
    rate_check::RateCheckOutcome,
};

#[derive(Default)]
pub(super) struct RateLimitEngine {
    refusal_cache: CounterMap<RefusalCacheEntry>,
    leases: CounterMap<QuotaLease>,
    outage: OutageState,
    background_work: BackgroundWork,
    background_task: BackgroundTaskState,
    /// Set once the store is known; true if the store has a manual clock. The times of this engine
    /// follow the process's clock, so with a manual clock no refusal is cached and no unit is
    /// leased.
    manual_clock: OnceLock<bool>,
}

/// State of the background task.
#[derive(Default)]
struct BackgroundTaskState {
    running: AtomicBool,
    /// True if there were checks since the task's last tick.
    used_since_tick: AtomicBool,
    wake: Arc<Notify>,
}

impl RateLimitEngine {
    /// Returns the engine of this store handle.
    pub(super) fn for_store(store: &Store) -> Arc<Self> {
        let engine = store.extension::<Self>();
        engine.manual_clock.get_or_init(|| {
            let weak = Arc::downgrade(&engine);
            store.on_shutdown(move |store| {
                let engine = weak.upgrade();
                Box::pin(async move {
                    if let Some(engine) = engine {
                        engine.shut_down(store).await;
                    }
                })
            });
            store.backend().has_manual_clock()
        });
        engine
    }

    fn has_manual_clock(&self) -> bool {
        self.manual_clock.get() == Some(&true)
    }

    /// Resets the usage of these counters.
    pub(super) async fn reset_counters(
        &self,
        store: &Store,
        ask: &CheckRequest,
    ) -> Result<(), Error> {
        for question in &ask.checks {
            // Leased units are part of the usage to be reset, whatever quota they were charged by.
            self.leases.for_each_quota(ask.counter_ref(question), QuotaLease::invalidate);
            let Some(counter) = question.counter() else { continue };
            let _forgets = InvalidateOnDrop(self, ask.counter_ref(question));
            store.backend().reset_counters(ask.tag(question).clone(), vec![counter]).await?;
        }
        Ok(())
    }
}

/// Invalidates everything cached or leased before a reset. It does so when dropped, even if the
/// reset has failed or was cancelled: the store may have run it.
struct InvalidateOnDrop<'a>(&'a RateLimitEngine, CounterRef<'a>);

impl Drop for InvalidateOnDrop<'_> {
    fn drop(&mut self) {
        // Units fetched meanwhile are included: only the store knows if they were charged before
        // the reset.
        self.0.leases.for_each_quota(self.1, QuotaLease::invalidate);
        self.0.invalidate_all_quotas(self.1);
    }
}

impl fmt::Debug for RateLimitEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimitEngine")
            .field("away", &self.outage.unavailable_shards())
            .finish_non_exhaustive()
    }
}
