//! `RateLimitEngine`: the state that all rate limiters of a store handle share.

use std::{
    fmt,
    sync::{Arc, OnceLock, atomic::AtomicBool},
};

use tokio::sync::Notify;

use super::{
    background_work::BackgroundWork,
    check_request::CheckRequest,
    counter_map::{BorrowedCounterId, CounterMap},
    outage_state::OutageState,
    policy_follower::PolicyFollower,
    quota_lease::QuotaLease,
    refusal_cache::RefusalCacheEntry,
};
use crate::{error::Error, store::Store};

#[derive(Default)]
pub(in super::super) struct RateLimitEngine {
    pub(super) refusal_cache: CounterMap<RefusalCacheEntry>,
    pub(super) leases: CounterMap<QuotaLease>,
    pub(super) outage: OutageState,
    pub(super) follower: PolicyFollower,
    pub(super) background_work: BackgroundWork,
    pub(super) background_task: BackgroundTaskState,
    /// Set once the store is known; true if the store has a manual clock. The times of this engine
    /// follow the process's clock, so with a manual clock no refusal is cached and no unit is
    /// leased.
    manual_clock: OnceLock<bool>,
}

/// State of the background task.
#[derive(Default)]
pub(super) struct BackgroundTaskState {
    pub(super) running: AtomicBool,
    /// True if there were checks since the task's last tick.
    pub(super) used_since_tick: AtomicBool,
    pub(super) wake: Arc<Notify>,
}

impl RateLimitEngine {
    /// Returns the engine of this store handle.
    pub(in super::super) fn for_store(store: &Store) -> Arc<Self> {
        let engine = store.extension::<Self>();
        engine.manual_clock.get_or_init(|| {
            let weak_engine = Arc::downgrade(&engine);
            store.on_shutdown(move |store| {
                let engine = weak_engine.upgrade();
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

    pub(super) fn has_manual_clock(&self) -> bool {
        self.manual_clock.get() == Some(&true)
    }

    /// Resets the usage of these counters.
    pub(in super::super) async fn reset_counters(
        &self,
        store: &Store,
        request: &CheckRequest,
    ) -> Result<(), Error> {
        for check in &request.checks {
            // Leased units are part of the usage to be reset, whatever quota they were charged by.
            self.leases.for_each_quota(request.borrowed_counter_id(check), QuotaLease::invalidate);
            let Some(counter) = check.counter() else { continue };
            let _invalidation =
                InvalidateAfterReset { engine: self, counter: request.borrowed_counter_id(check) };
            store.backend().reset_counters(request.tag(check).clone(), vec![counter]).await?;
        }
        Ok(())
    }
}

/// Invalidates everything cached or leased before a reset. It does so when dropped, even if the
/// reset has failed or was cancelled: the store may have run it.
pub(super) struct InvalidateAfterReset<'a> {
    engine: &'a RateLimitEngine,
    counter: BorrowedCounterId<'a>,
}

impl Drop for InvalidateAfterReset<'_> {
    fn drop(&mut self) {
        // Units fetched meanwhile are included: only the store knows if they were charged before
        // the reset.
        self.engine.leases.for_each_quota(self.counter, QuotaLease::invalidate);
        self.engine.invalidate_all_quotas(self.counter);
    }
}

impl fmt::Debug for RateLimitEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimitEngine")
            .field("unavailable_shards", &self.outage.unavailable_shards())
            .finish_non_exhaustive()
    }
}
