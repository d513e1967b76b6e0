//! Background task of a limiter in use: it registers this process by heartbeats, probes an
//! unavailable store, and returns idle leases.

use std::{
    sync::{Arc, Weak, atomic::Ordering},
    time::Duration,
};

use futures_util::future::join_all;
use tokio::time::Instant;

use super::{
    RateLimitEngine,
    check_request::{CheckRequest, PolicyCheck},
    refusal_cache::add_capped,
};
use crate::{
    key::COMMON_SHARD,
    outage::RateLimitOutage,
    store::{AdjustmentKind, Store, WeakStore},
};

/// Time between two heartbeats, which count the processes.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(5);

/// Time after the last heartbeat for which a process is counted.
const PROCESS_TTL: Duration = Duration::from_secs(15);

/// Time between two probes of an unavailable store.
const PROBE_INTERVAL: Duration = Duration::from_millis(250);

/// Maximum idle time of a lease, and the time between two searches for idle leases.
const LEASE_IDLE_TIME: Duration = Duration::from_secs(1);

/// Time without checks after which the task ends.
const ENGINE_IDLE_TIME: Duration = Duration::from_secs(30);

impl RateLimitEngine {
    /// Starts the task if it is not running and the policies need it.
    pub(super) fn ensure_background_task(self: &Arc<Self>, store: &Store, request: &CheckRequest) {
        let needs_background_task = |(_, check): (usize, &PolicyCheck)| {
            check.policy.outage() == RateLimitOutage::Local || check.lease_size().is_some()
        };
        if self.background_task.used_since_tick.load(Ordering::Relaxed) {
            store.agent().ensure_started();
            return;
        }
        if !request.enforced_checks().any(needs_background_task) {
            return;
        }
        self.background_task.used_since_tick.store(true, Ordering::Relaxed);
        if self.background_task.running.swap(true, Ordering::AcqRel) {
            return;
        }
        let guard = MarkTaskEndedOnDrop(Arc::downgrade(self));
        store.spawn_long_running(run_background_task(guard, store.downgrade()));
    }

    pub(super) fn has_background_task(&self) -> bool {
        self.background_task.running.load(Ordering::Acquire)
    }

    pub(super) fn wake_background_task(&self) {
        self.background_task.wake.notify_one();
    }

    /// Registers this process, and probes the unavailable shards.
    async fn heartbeat(&self, store: &Store) {
        match store.backend().register_limiter(store.node().clone(), PROCESS_TTL).await {
            Ok(processes) => self.outage.set_process_count(processes),
            Err(_) => self.outage.record_probe_failure(COMMON_SHARD),
        }
        let probes = self
            .outage
            .unavailable_shards()
            .into_iter()
            .filter(|shard| *shard != COMMON_SHARD)
            .map(async |shard| match store.backend().ping_shard(shard).await {
                Ok(()) => self.outage.record_probe_success(shard),
                Err(_) => self.outage.record_probe_failure(shard),
            });
        join_all(probes).await;
    }

    /// Returns the leases unused since `unused_since`, and resolves when the calls have ended.
    pub(super) async fn return_idle_leases(self: &Arc<Self>, store: &Store, unused_since: Instant) {
        let now = Instant::now();
        let mut idle_leases = Vec::new();
        self.leases.retain(|counter, quota, lease| {
            if lease.last_used > unused_since {
                return true;
            }
            if lease.units > 0 && lease.valid_until > now {
                idle_leases.push((counter.with_quota(quota), lease.units, lease.window));
                lease.units = 0;
            }
            lease.is_refilling()
        });
        if idle_leases.is_empty() {
            return;
        }
        let mut commands = Vec::new();
        for (counter_id, units, window) in &idle_leases {
            // An outage that begins now starts with these units, too.
            self.record_refund(counter_id.to_ref(), *units);
            commands.extend(
                counter_id
                    .settle_command(AdjustmentKind::Refund { units: *units, window: *window }),
            );
        }
        self.settle_charges(store, commands).wait().await;
        // A refused request may be admitted now, also by a policy of this name without a lease.
        idle_leases
            .iter()
            .for_each(|(counter_id, ..)| self.invalidate_counter(counter_id.to_ref()));
    }

    /// Ends the engine's work in the store; `Store::shutdown` waits for it.
    pub(super) async fn shut_down(self: Arc<Self>, store: Store) {
        // Units of refills in flight arrive in the leases first.
        self.background_work.wait_until_idle().await;
        self.return_idle_leases(&store, add_capped(Instant::now(), ENGINE_IDLE_TIME)).await;
        if self.has_background_task() {
            let _ = store.backend().register_limiter(store.node().clone(), Duration::ZERO).await;
        }
        self.background_work.wait_until_idle().await;
    }
}

/// Marks the task as ended when dropped, even if the runtime has ended.
struct MarkTaskEndedOnDrop(Weak<RateLimitEngine>);

impl Drop for MarkTaskEndedOnDrop {
    fn drop(&mut self) {
        if let Some(engine) = self.0.upgrade() {
            // In this order: a check between the two stores starts a new task, or leaves that to
            // the next check.
            engine.background_task.running.store(false, Ordering::Release);
            engine.background_task.used_since_tick.store(false, Ordering::Release);
        }
    }
}

async fn run_background_task(guard: MarkTaskEndedOnDrop, store: WeakStore) {
    let mut last_used = Instant::now();
    let mut next_heartbeat = Instant::now();
    loop {
        let Some((engine, store)) = guard.0.upgrade().zip(store.upgrade()) else { return };
        if engine.background_task.used_since_tick.swap(false, Ordering::Relaxed) {
            last_used = Instant::now();
        }
        if last_used.elapsed() > ENGINE_IDLE_TIME && engine.outage.unavailable_shards().is_empty() {
            return;
        }
        if next_heartbeat <= Instant::now() {
            engine.heartbeat(&store).await;
            next_heartbeat = Instant::now()
                + if engine.outage.unavailable_shards().is_empty() {
                    HEARTBEAT_INTERVAL
                } else {
                    PROBE_INTERVAL
                };
        }
        if let Some(unused_since) = Instant::now().checked_sub(LEASE_IDLE_TIME) {
            engine.return_idle_leases(&store, unused_since).await;
        }
        let wait = if engine.has_leases() { LEASE_IDLE_TIME } else { HEARTBEAT_INTERVAL }
            .min(next_heartbeat - Instant::now());
        let wake = Arc::clone(&engine.background_task.wake);
        drop((engine, store));
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            () = wake.notified() => next_heartbeat = Instant::now() + PROBE_INTERVAL,
        }
    }
}
