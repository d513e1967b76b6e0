//! Deciding, and remembering what was decided. One engine for each store handle.
//!
//! In the order in which a check comes by: what is [`known`] may refuse it at once; a [`lease`] may have
//! been charged for it already; else [`check`] asks the store, and notes on a [`receipt`] what may have to be
//! given back or put right ([`settle`]); and while the store is [`away`], this process decides by itself. [`tend`]
//! does what has to be done without being asked.

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
    /// Set once the store knows of it: whether the store's clock is moved by hand. What is kept here goes by this
    /// process's, so nothing is repeated, or charged in advance, beside such a one.
    manual_clock: OnceLock<bool>,
}

/// The task in the background.
#[derive(Default)]
struct BackgroundTaskState {
    running: AtomicBool,
    /// There were checks since it looked last.
    used_since_tick: AtomicBool,
    wake: Arc<Notify>,
}

impl RateLimitEngine {
    /// The one of this store handle.
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

    /// Forgets what was spent.
    pub(super) async fn reset_counters(
        &self,
        store: &Store,
        ask: &CheckRequest,
    ) -> Result<(), Error> {
        for question in &ask.checks {
            // Units of the lease are of what is forgotten, whatever the quota they were charged by.
            self.leases.for_each_quota(ask.counter_ref(question), QuotaLease::invalidate);
            let Some(counter) = question.counter() else { continue };
            let _forgets = InvalidateOnDrop(self, ask.counter_ref(question));
            store.backend().reset_counters(ask.tag(question).clone(), vec![counter]).await?;
        }
        Ok(())
    }
}

/// What was remembered, or charged in advance, before a reset. Whatever became of that, and also if nobody waits
/// for it: the store knows.
struct InvalidateOnDrop<'a>(&'a RateLimitEngine, CounterRef<'a>);

impl Drop for InvalidateOnDrop<'_> {
    fn drop(&mut self) {
        // Also what was fetched meanwhile: whether that was before or after, only the store knows.
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
