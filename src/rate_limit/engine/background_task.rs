//! Background task of a limiter in use. It registers this process, probes an unavailable store, and
//! returns idle leases.

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
    pub(super) fn ensure_background_task(self: &Arc<Self>, store: &Store, ask: &CheckRequest) {
        let needs = |(_, question): (usize, &PolicyCheck)| {
            question.policy.outage() == RateLimitOutage::Local || question.lease_size().is_some()
        };
        if self.background_task.used_since_tick.load(Ordering::Relaxed) {
            store.agent().ensure_started();
            return;
        }
        if !ask.enforced_checks().any(needs) {
            return;
        }
        self.background_task.used_since_tick.store(true, Ordering::Relaxed);
        if self.background_task.running.swap(true, Ordering::AcqRel) {
            return;
        }
        let guard = BackgroundTaskGuard(Arc::downgrade(self));
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
        let looks =
            self.outage.unavailable_shards().into_iter().filter(|part| *part != COMMON_SHARD).map(
                async |part| match store.backend().ping_shard(part).await {
                    Ok(()) => self.outage.record_probe_success(part),
                    Err(_) => self.outage.record_probe_failure(part),
                },
            );
        join_all(looks).await;
    }

    /// Returns the leases unused since `unused_since`, and resolves when the calls have ended.
    pub(super) async fn return_idle_leases(self: &Arc<Self>, store: &Store, unused_since: Instant) {
        let now = Instant::now();
        let mut idle = Vec::new();
        self.leases.retain(|counter, quota, lease| {
            if lease.last_used > unused_since {
                return true;
            }
            if lease.units > 0 && lease.valid_until > now {
                idle.push((counter.with_quota(quota), lease.units, lease.window));
                lease.units = 0;
            }
            lease.is_refilling()
        });
        if idle.is_empty() {
            return;
        }
        let mut calls = Vec::new();
        for (place, units, window) in &idle {
            // An outage that begins now starts with these units, too.
            self.record_refund(place.to_ref(), *units);
            calls.extend(
                place.settle_command(AdjustmentKind::Refund { units: *units, window: *window }),
            );
        }
        self.settle_charges(store, calls).wait().await;
        // A refused request may be admitted now, also by a policy of this name without a lease.
        idle.iter().for_each(|(place, ..)| self.invalidate_counter(place.to_ref()));
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
struct BackgroundTaskGuard(Weak<RateLimitEngine>);

impl Drop for BackgroundTaskGuard {
    fn drop(&mut self) {
        if let Some(engine) = self.0.upgrade() {
            // In this order: a check between the two stores starts a new task, or leaves that to
            // the next check.
            engine.background_task.running.store(false, Ordering::Release);
            engine.background_task.used_since_tick.store(false, Ordering::Release);
        }
    }
}

async fn run_background_task(running: BackgroundTaskGuard, store: WeakStore) {
    let mut used = Instant::now();
    let mut beat = Instant::now();
    loop {
        let Some((engine, store)) = running.0.upgrade().zip(store.upgrade()) else { return };
        if engine.background_task.used_since_tick.swap(false, Ordering::Relaxed) {
            used = Instant::now();
        }
        if used.elapsed() > ENGINE_IDLE_TIME && engine.outage.unavailable_shards().is_empty() {
            return;
        }
        if beat <= Instant::now() {
            engine.heartbeat(&store).await;
            beat = Instant::now()
                + if engine.outage.unavailable_shards().is_empty() {
                    HEARTBEAT_INTERVAL
                } else {
                    PROBE_INTERVAL
                };
        }
        if let Some(unused) = Instant::now().checked_sub(LEASE_IDLE_TIME) {
            engine.return_idle_leases(&store, unused).await;
        }
        let pause = if engine.has_leases() { LEASE_IDLE_TIME } else { HEARTBEAT_INTERVAL }
            .min(beat - Instant::now());
        let wake = Arc::clone(&engine.background_task.wake);
        drop((engine, store));
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = wake.notified() => beat = Instant::now() + PROBE_INTERVAL,
        }
    }
}
