//! What is done in the background while the limiter is in use: telling the other processes that this one is
//! there, finding out whether the store is back, and giving back leases that nobody uses.

use std::{
    sync::{Arc, Weak, atomic::Ordering},
    time::Duration,
};

use futures_util::future::join_all;
use tokio::time::Instant;

use super::{
    Engine,
    ask::{Ask, Question},
    known::after,
};
use crate::{
    key::COMMON,
    outage::Outage,
    store::{AdjustmentKind, Store, WeakStore},
};

/// How often the processes are counted.
const BEAT: Duration = Duration::from_secs(5);

/// How long a process counts that is not heard of.
const PRESENT: Duration = Duration::from_secs(15);

/// How often the store is asked whether it is back.
const PROBE: Duration = Duration::from_millis(250);

/// How long a lease may lie unused, and how often that is looked after.
const IDLE: Duration = Duration::from_secs(1);

/// A limiter that was not used for so long is not tended.
const UNUSED: Duration = Duration::from_secs(30);

impl Engine {
    /// Sees to it that somebody tends what needs to be.
    pub(super) fn tend(self: &Arc<Self>, store: &Store, ask: &Ask) {
        let needs = |(_, question): (usize, &Question)| {
            question.policy.outage() == Outage::Local || question.leased().is_some()
        };
        if self.tended.used.load(Ordering::Relaxed) {
            store.agent().ensure_started();
            return;
        }
        if !ask.binding().any(needs) {
            return;
        }
        self.tended.used.store(true, Ordering::Relaxed);
        if self.tended.running.swap(true, Ordering::AcqRel) {
            return;
        }
        let guard = Running(Arc::downgrade(self));
        store.spawn_long_running(run(guard, store.downgrade()));
    }

    pub(super) fn is_tended(&self) -> bool {
        self.tended.running.load(Ordering::Acquire)
    }

    pub(super) fn wake(&self) {
        self.tended.wake.notify_one();
    }

    /// Says that this process is there, and looks at what is away.
    async fn beats(&self, store: &Store) {
        match store.backend().register_limiter(store.node().clone(), PRESENT).await {
            Ok(processes) => self.away.counts(processes),
            Err(_) => self.away.heard_ill(COMMON),
        }
        let looks =
            self.away.gone().into_iter().filter(|part| *part != COMMON).map(
                async |part| match store.backend().ping_shard(part).await {
                    Ok(()) => self.away.heard_well(part),
                    Err(_) => self.away.heard_ill(part),
                },
            );
        join_all(looks).await;
    }

    /// Gives back the leases that are not used since. Resolves when it is done.
    pub(super) async fn give_back_leases(self: &Arc<Self>, store: &Store, unused_since: Instant) {
        let now = Instant::now();
        let mut idle = Vec::new();
        self.leases.retain(|counter, quota, lease| {
            if lease.used > unused_since {
                return true;
            }
            if lease.units > 0 && lease.until > now {
                idle.push((counter.place(quota), lease.units, lease.window));
                lease.units = 0;
            }
            lease.is_fetching()
        });
        if idle.is_empty() {
            return;
        }
        let mut calls = Vec::new();
        for (place, units, window) in &idle {
            // An outage that begins now has them, too.
            self.unspend(place.spot(), *units);
            calls.extend(place.settled(AdjustmentKind::Refund { units: *units, window: *window }));
        }
        self.settle(store, calls).wait().await;
        // Who was refused until now may be let in: also by a policy of this name that leases nothing.
        idle.iter().for_each(|(place, ..)| self.forget(place.spot()));
    }

    /// What `Store::shutdown` waits for.
    pub(super) async fn close(self: Arc<Self>, store: Store) {
        // What is fetched ahead comes into the leases.
        self.pending.none().await;
        self.give_back_leases(&store, after(Instant::now(), UNUSED)).await;
        if self.is_tended() {
            let _ = store.backend().register_limiter(store.node().clone(), Duration::ZERO).await;
        }
        self.pending.none().await;
    }
}

/// Says that nobody tends any more, also if the runtime has ended.
struct Running(Weak<Engine>);

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(engine) = self.0.upgrade() {
            // In this order: whoever says in between that it is used finds that nobody runs, or is asked once more.
            engine.tended.running.store(false, Ordering::Release);
            engine.tended.used.store(false, Ordering::Release);
        }
    }
}

async fn run(running: Running, store: WeakStore) {
    let mut used = Instant::now();
    let mut beat = Instant::now();
    loop {
        let Some((engine, store)) = running.0.upgrade().zip(store.upgrade()) else { return };
        if engine.tended.used.swap(false, Ordering::Relaxed) {
            used = Instant::now();
        }
        if used.elapsed() > UNUSED && engine.away.gone().is_empty() {
            return;
        }
        if beat <= Instant::now() {
            engine.beats(&store).await;
            beat = Instant::now() + if engine.away.gone().is_empty() { BEAT } else { PROBE };
        }
        if let Some(unused) = Instant::now().checked_sub(IDLE) {
            engine.give_back_leases(&store, unused).await;
        }
        let pause = if engine.has_leases() { IDLE } else { BEAT }.min(beat - Instant::now());
        let wake = Arc::clone(&engine.tended.wake);
        drop((engine, store));
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = wake.notified() => beat = Instant::now() + PROBE,
        }
    }
}
