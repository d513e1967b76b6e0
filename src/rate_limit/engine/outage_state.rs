//! While the store is away: a limit in this process alone, at its share of the quota.

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

/// So long the store must have answered before it is asked again: a store that comes and goes would have
/// every key limited by both, in turns.
const RECOVERY_PERIOD: Duration = Duration::from_secs(1);

/// Failures without a success between them, after which the store counts as away.
const FAILURE_THRESHOLD: u32 = 3;

/// Whether the store is away, and what is decided meanwhile.
#[derive(Default)]
pub(super) struct OutageState {
    /// Some part of it is not well; otherwise nobody has to look for one.
    has_failures: AtomicBool,
    shards: Mutex<HashMap<u16, ShardOutage>>,
    processes: AtomicU64,
    limiters: CounterMap<OutageLimiter>,
}

/// What goes away by itself: a shard of a cluster, whose other nodes are still there, or else the whole store. One that
/// is well has no entry.
#[derive(Default)]
struct ShardOutage {
    failures: u32,
    /// Requests are decided here.
    unavailable: bool,
    /// Since when it has answered again.
    healthy_since: Option<Instant>,
}

/// The part that a key is of. The processes are counted in the first one.
fn outage_shard(store: &Store, tag: &Key) -> u16 {
    if store.backend().is_clustered() { tag.shard() } else { COMMON_SHARD }
}

impl OutageState {
    /// How many processes share the quotas, this one included, as far as is known.
    pub(super) fn process_count(&self) -> u64 {
        self.processes.load(Ordering::Relaxed).max(1)
    }

    /// So many have been counted: the part in which they are has answered.
    pub(super) fn set_process_count(&self, processes: usize) {
        self.record_probe_success(COMMON_SHARD);
        let processes = processes as u64;
        if self.lock_shards().get(&COMMON_SHARD).is_some_and(|part| part.unavailable) {
            // Who was away for long is not counted any more until he has told that he is there, too.
            self.processes.fetch_max(processes, Ordering::Relaxed);
        } else {
            self.processes.store(processes, Ordering::Relaxed);
        }
    }

    /// The parts that are away.
    pub(super) fn unavailable_shards(&self) -> Vec<u16> {
        self.lock_shards()
            .iter()
            .filter(|(_, part)| part.unavailable)
            .map(|(part, _)| *part)
            .collect()
    }

    /// This part has answered a call that is made every now and then.
    pub(super) fn record_probe_success(&self, part: u16) {
        let now = Instant::now();
        let since = match self.lock_shards().get_mut(&part) {
            Some(found) if found.unavailable => *found.healthy_since.get_or_insert(now),
            _ => return,
        };
        if now - since < RECOVERY_PERIOD {
            return;
        }
        // What was let in here is not charged there. It still counts here, should the store go again at once:
        // else each time it comes and goes would be another burst. They are many: not while requests look.
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
    /// Whether policies that can do without the store should, for keys of this tag.
    pub(super) fn is_store_unavailable(&self, store: &Store, tag: &Key) -> bool {
        let gone = || {
            self.outage
                .lock_shards()
                .get(&outage_shard(store, tag))
                .is_some_and(|part| part.unavailable)
        };
        self.outage.has_failures.load(Ordering::Acquire) && gone()
    }

    /// A charge was answered.
    pub(super) fn record_charge_success(&self, store: &Store, tag: &Key) {
        if !self.outage.has_failures.load(Ordering::Relaxed) {
            return;
        }
        let (part, mut parts) = (outage_shard(store, tag), self.outage.lock_shards());
        if parts.get(&part).is_some_and(|part| !part.unavailable) {
            self.outage.clear_shard(&mut parts, part);
        }
    }

    /// A charge has failed. Whoever complains of it is there.
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
        // Without anybody to find out that it is back, each request has to.
        if !gone || found.unavailable || !self.has_background_task() {
            return;
        }
        (found.unavailable, found.healthy_since) = (true, None);
        drop(parts);
        if first {
            tracing::warn!(%error, "quotas are counted in this process alone: the store is away");
        }
        self.wake_background_task();
    }

    /// Decides by this process's share of the quota. A refusal says what is left of that, and how long it lasts at least.
    pub(super) fn decide_locally(
        &self,
        ask: &CheckRequest,
        question: &PolicyCheck,
    ) -> Result<(), QuotaReading> {
        let processes = self.outage.process_count();
        let share = QuotaShare::for_process(question, processes);
        let seen = self.last_reading(ask, question);
        // The store has counted them as spent. They are of this process alone, and nobody spends them meanwhile.
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
