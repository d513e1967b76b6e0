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
        if self.lock_shards().get(&COMMON_SHARD).is_some_and(|part| part.unavailable) {
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
            .filter(|(_, part)| part.unavailable)
            .map(|(part, _)| *part)
            .collect()
    }

    /// Records that a part has answered a probe.
    pub(super) fn record_probe_success(&self, part: u16) {
        let now = Instant::now();
        let since = match self.lock_shards().get_mut(&part) {
            Some(found) if found.unavailable => *found.healthy_since.get_or_insert(now),
            _ => return,
        };
        if now - since < RECOVERY_PERIOD {
            return;
        }
        // Requests admitted here are not charged in the store. Limiters in use stay, in case the
        // store fails again at once: otherwise each failure would allow another burst. There may be
        // many, so `retain` runs before the lock is taken, for which requests wait.
        self.limiters.retain(|_, _, alone| !alone.is_full());
        let mut parts = self.lock_shards();
        self.clear_shard(&mut parts, part);
        if !parts.values().any(|part| part.unavailable) {
            tracing::info!("quotas are counted in the store again");
        }
    }

    pub(super) fn record_probe_failure(&self, part: u16) {
        if let Some(part) = self.lock_shards().get_mut(&part) {
            part.healthy_since = None;
        }
    }

    fn lock_shards(&self) -> MutexGuard<'_, HashMap<u16, ShardOutage>> {
        self.shards.lock()
    }

    fn clear_shard(&self, parts: &mut HashMap<u16, ShardOutage>, part: u16) {
        parts.remove(&part);
        self.has_failures.store(!parts.is_empty(), Ordering::Release);
    }
}

impl RateLimitEngine {
    /// Returns true if this process should decide about keys of this tag, as far as their policies
    /// allow.
    pub(super) fn is_store_unavailable(&self, store: &Store, tag: &Key) -> bool {
        let gone = || {
            self.outage
                .lock_shards()
                .get(&outage_shard(store, tag))
                .is_some_and(|part| part.unavailable)
        };
        self.outage.has_failures.load(Ordering::Acquire) && gone()
    }

    /// Records that a charge was answered.
    pub(super) fn record_charge_success(&self, store: &Store, tag: &Key) {
        if !self.outage.has_failures.load(Ordering::Relaxed) {
            return;
        }
        let (part, mut parts) = (outage_shard(store, tag), self.outage.lock_shards());
        if parts.get(&part).is_some_and(|part| !part.unavailable) {
            self.outage.clear_shard(&mut parts, part);
        }
    }

    /// Records that a charge has failed. Errors of other kinds prove that the store answers.
    pub(super) fn record_charge_failure(&self, store: &Store, tag: &Key, error: &Error) {
        if !matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Timeout) {
            return;
        }
        let mut parts = self.outage.lock_shards();
        let first = !parts.values().any(|part| part.unavailable);
        let found = parts.entry(outage_shard(store, tag)).or_default();
        self.outage.has_failures.store(true, Ordering::Release);
        found.failures = found.failures.saturating_add(1);
        let gone = error.kind() == ErrorKind::Unavailable || found.failures >= FAILURE_THRESHOLD;
        // Without the background task, nothing detects the recovery, so each request has to try.
        if !gone || found.unavailable || !self.has_background_task() {
            return;
        }
        (found.unavailable, found.healthy_since) = (true, None);
        drop(parts);
        if first {
            tracing::warn!(%error, "quotas are counted in this process: the store is unavailable");
        }
        self.wake_background_task();
    }

    /// Decides by this process's share of the quota. A refusal reports the remaining units of the
    /// share and the minimum wait.
    pub(super) fn decide_locally(
        &self,
        ask: &CheckRequest,
        question: &PolicyCheck,
    ) -> Result<(), QuotaReading> {
        let processes = self.outage.process_count();
        let share = QuotaShare::for_process(question, processes);
        let seen = self.last_reading(ask, question);
        // The store counts leased units as spent, but this process alone can spend them.
        let units = self.leased_units(ask.counter_ref(question));
        let cost = NonZeroU32::new(saturating_u32(question.cost)).unwrap_or(NonZeroU32::MIN);
        let decided = self.outage.limiters.with_or_insert(
            ask.counter_ref(question),
            || OutageLimiter::new(share),
            |alone| {
                alone.set_share(share);
                if let Some(seen) = seen {
                    let left = seen
                        .remaining
                        .map(|left| saturating_u32((left / processes).saturating_add(units)));
                    alone.apply_answer(seen.sent_at, left);
                }
                alone.try_admit(cost).map_err(|retry| alone.refusal_reading(retry))
            },
        );
        decided.unwrap_or(Ok(()))
    }
}
