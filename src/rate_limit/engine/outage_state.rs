//! Outage state: the parts of the store that are unavailable, and the limits of this process
//! meanwhile.

use std::{
    collections::HashMap,
    num::NonZeroU32,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::Duration,
};

use parking_lot::{Mutex, MutexGuard};
use tokio::time::Instant;

use super::{
    RateLimitEngine,
    check_request::{CheckRequest, PolicyCheck},
    counter_map::CounterMap,
    outage_limiter::{OutageLimiter, QuotaShare, saturating_u32},
};
use crate::{
    error::{Error, ErrorKind},
    key::{COMMON_SHARD, Key},
    rate_limit::decision::QuotaReading,
    store::Store,
};

/// Time for which the store must have answered before it decides again. With an unstable store,
/// each key would otherwise be limited by the store and by this process in turn.
const RECOVERY_PERIOD: Duration = Duration::from_secs(1);

/// Number of consecutive timeouts after which a part of the store counts as unavailable.
const FAILURE_THRESHOLD: u32 = 3;

/// Availability of the store, and the limiters of this process.
#[derive(Default)]
pub(super) struct OutageState {
    /// True if `shards` has an entry. Otherwise no request takes the lock.
    has_failures: AtomicBool,
    shards: Mutex<HashMap<u16, ShardOutage>>,
    processes: AtomicU64,
    limiters: CounterMap<OutageLimiter>,
}

/// Failures of a part of the store: a shard of a cluster, since other cluster nodes may still
/// answer, or else the whole store. A healthy part has no entry.
#[derive(Default)]
struct ShardOutage {
    failures: u32,
    /// Requests are decided in this process.
    unavailable: bool,
    /// Start of the current series of successful probes.
    healthy_since: Option<Instant>,
}

/// Returns the part of the store that has this tag. The processes are counted in `COMMON_SHARD`.
fn outage_shard(store: &Store, tag: &Key) -> u16 {
    if store.backend().is_clustered() { tag.shard() } else { COMMON_SHARD }
}

impl OutageState {
    /// Returns the last known number of processes that share the quotas, including this one.
    pub(super) fn process_count(&self) -> u64 {
        self.processes.load(Ordering::Relaxed).max(1)
    }

    /// Records the number of processes. It also proves that `COMMON_SHARD` has answered.
    pub(super) fn set_process_count(&self, processes: usize) {
        self.record_probe_success(COMMON_SHARD);
        let processes = processes as u64;
        if self.lock_shards().get(&COMMON_SHARD).is_some_and(|shard| shard.unavailable) {
            // The number must not fall yet: a process that was cut off is counted again only after
            // its next heartbeat.
            self.processes.fetch_max(processes, Ordering::Relaxed);
        } else {
            self.processes.store(processes, Ordering::Relaxed);
        }
    }

    /// Returns the parts that are unavailable.
    pub(super) fn unavailable_shards(&self) -> Vec<u16> {
        self.lock_shards()
            .iter()
            .filter(|(_, shard)| shard.unavailable)
            .map(|(shard, _)| *shard)
            .collect()
    }

    /// Records that a part has answered a probe.
    pub(super) fn record_probe_success(&self, shard: u16) {
        let now = Instant::now();
        let healthy_since = match self.lock_shards().get_mut(&shard) {
            Some(shard_outage) if shard_outage.unavailable => {
                *shard_outage.healthy_since.get_or_insert(now)
            }
            _ => return,
        };
        if now - healthy_since < RECOVERY_PERIOD {
            return;
        }
        // Requests admitted here are not charged in the store. Limiters in use stay, in case the
        // store fails again at once: otherwise each failure would allow another burst. There may be
        // many, so `retain` runs before the lock is taken, for which requests wait.
        self.limiters.retain(|_, _, limiter| !limiter.is_full());
        let mut shards = self.lock_shards();
        self.clear_shard(&mut shards, shard);
        if !shards.values().any(|shard| shard.unavailable) {
            tracing::info!("quotas are counted in the store again");
        }
    }

    pub(super) fn record_probe_failure(&self, shard: u16) {
        if let Some(shard) = self.lock_shards().get_mut(&shard) {
            shard.healthy_since = None;
        }
    }

    fn lock_shards(&self) -> MutexGuard<'_, HashMap<u16, ShardOutage>> {
        self.shards.lock()
    }

    fn clear_shard(&self, shards: &mut HashMap<u16, ShardOutage>, shard: u16) {
        shards.remove(&shard);
        self.has_failures.store(!shards.is_empty(), Ordering::Release);
    }
}

impl RateLimitEngine {
    /// Returns true if this process should decide about keys of this tag, as far as their policies
    /// allow.
    pub(super) fn is_store_unavailable(&self, store: &Store, tag: &Key) -> bool {
        let is_unavailable = || {
            self.outage
                .lock_shards()
                .get(&outage_shard(store, tag))
                .is_some_and(|shard| shard.unavailable)
        };
        self.outage.has_failures.load(Ordering::Acquire) && is_unavailable()
    }

    /// Records that a charge was answered.
    pub(super) fn record_charge_success(&self, store: &Store, tag: &Key) {
        if !self.outage.has_failures.load(Ordering::Relaxed) {
            return;
        }
        let (shard, mut shards) = (outage_shard(store, tag), self.outage.lock_shards());
        if shards.get(&shard).is_some_and(|shard| !shard.unavailable) {
            self.outage.clear_shard(&mut shards, shard);
        }
    }

    /// Records that a charge has failed. Errors of other kinds prove that the store answers.
    pub(super) fn record_charge_failure(&self, store: &Store, tag: &Key, error: &Error) {
        if !matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Timeout) {
            return;
        }
        let mut shards = self.outage.lock_shards();
        let is_first = !shards.values().any(|shard| shard.unavailable);
        let shard_outage = shards.entry(outage_shard(store, tag)).or_default();
        self.outage.has_failures.store(true, Ordering::Release);
        shard_outage.failures = shard_outage.failures.saturating_add(1);
        let is_unavailable =
            error.kind() == ErrorKind::Unavailable || shard_outage.failures >= FAILURE_THRESHOLD;
        // Without the background task, nothing detects the recovery, so each request has to try.
        if !is_unavailable || shard_outage.unavailable || !self.has_background_task() {
            return;
        }
        (shard_outage.unavailable, shard_outage.healthy_since) = (true, None);
        drop(shards);
        if is_first {
            tracing::warn!(%error, "quotas are counted in this process: the store is unavailable");
        }
        self.wake_background_task();
    }

    /// Decides by this process's share of the quota. A refusal reports the remaining units of the
    /// share and the minimum wait.
    pub(super) fn decide_locally(
        &self,
        request: &CheckRequest,
        check: &PolicyCheck,
    ) -> Result<(), QuotaReading> {
        let processes = self.outage.process_count();
        let share = QuotaShare::for_process(check, processes);
        let last_reading = self.last_reading(request, check);
        // The store counts leased units as spent, but this process alone can spend them.
        let units = self.leased_units(request.borrowed_counter_id(check));
        let cost = NonZeroU32::new(saturating_u32(check.cost)).unwrap_or(NonZeroU32::MIN);
        let result = self.outage.limiters.with_or_insert(
            request.borrowed_counter_id(check),
            || OutageLimiter::new(share),
            |limiter| {
                limiter.set_share(share);
                if let Some(last_reading) = last_reading {
                    let remaining = last_reading.remaining.map(|remaining| {
                        saturating_u32((remaining / processes).saturating_add(units))
                    });
                    limiter.apply_answer(last_reading.sent_at, remaining);
                }
                limiter.try_admit(cost).map_err(|retry_after| limiter.refusal_reading(retry_after))
            },
        );
        result.unwrap_or(Ok(()))
    }
}
