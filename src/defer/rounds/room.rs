//! Visits, as far as there is room for them.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use tokio::time::Instant;

use super::{Rounds, others::Foreign};
use crate::{
    defer::{
        hosts::CallRoom,
        slots::{Slot, Slots},
        visit::{Next, Visit},
        waiting::PATIENCE,
    },
    key::Key,
    store::JobId,
};

/// Visits for each run that there is room for: those beyond are settled, and no more begin while the store is too slow
/// for it.
const VISITS: usize = 2;

/// That for lines of requests, or for those of callbacks. Neither has the other's: requests may run for long, or wait for leave
/// to run for hours, and whom a callback is for may take his time.
pub(super) struct Room {
    slots: Arc<Slots>,
    visits: usize,
    /// Others wait for it.
    crowded: Arc<AtomicBool>,
}

impl Room {
    pub(super) fn new(most: usize) -> Self {
        Self { slots: Slots::new(most), visits: 0, crowded: Arc::default() }
    }

    fn is_free(&self) -> bool {
        self.slots.is_free() && self.visits < VISITS.saturating_mul(self.slots.most())
    }

    fn enter(&mut self) -> Slot {
        self.visits += 1;
        self.slots.take()
    }

    fn leave(&mut self) {
        self.visits = self.visits.saturating_sub(1);
    }

    pub(super) fn most(&self) -> usize {
        self.slots.most()
    }

    /// As of its slots.
    pub(super) async fn freed(&self) {
        self.slots.freed().await;
    }
}

impl Rounds {
    fn room(&mut self, key: &Key) -> &mut Room {
        if key.is_of_callback() { &mut self.calls } else { &mut self.requests }
    }

    /// For another line like this one.
    pub(super) fn has_room_for(&self, key: &Key) -> bool {
        let room = if key.is_of_callback() { &self.calls } else { &self.requests };
        room.is_free()
    }

    /// Visits those that wait, as far as there is room. While the queue is paused they wait in the due index.
    pub(super) fn serve(&mut self) {
        if self.paused.load(Ordering::Relaxed) {
            self.waiting.clear();
        }
        self.look_up_owners();
        while self.calls.is_free() {
            let Some((key, head)) = self.next_call() else { break };
            self.visit(key, head);
        }
        while self.requests.is_free() {
            let Some((key, head)) = self.waiting.pop_request() else { break };
            self.visit(key, head);
        }
        let stuck_at = self.stuck_at.unwrap_or_else(|| Instant::now() + PATIENCE);
        self.stuck_at = Some(stuck_at).filter(|_| !self.waiting.is_empty());
        self.calls.crowded.store(self.waiting.has_calls(), Ordering::Relaxed);
        self.requests.crowded.store(self.waiting.has_requests(), Ordering::Relaxed);
    }

    fn next_call(&mut self) -> Option<(Key, Option<JobId>)> {
        let crowded = self.waiting.calls.waiting().len() > 1;
        let turns = self.hosts.turns(CallRoom { most: self.calls.most(), crowded });
        self.waiting.calls.pop(&turns)
    }

    /// Unless one is under way.
    fn visit(&mut self, key: Key, id: Option<JobId>) {
        if self.under_way.contains_key(&key) {
            return;
        }
        self.under_way.insert(key.clone(), None);
        let room = self.room(&key);
        let (slot, crowded) = (room.enter(), Arc::clone(&room.crowded));
        let visit = Visit {
            worker: Arc::clone(&self.worker),
            key,
            slot,
            stop: self.stop.subscribe(),
            crowded,
            paused: Arc::clone(&self.paused),
            hosts: Arc::clone(&self.hosts),
        };
        self.visits.spawn(visit.run(id));
    }

    pub(super) fn ended(&mut self, key: &Key, next: Next) {
        let (shard, now) = (key.shard(), Instant::now());
        self.room(key).leave();
        let told = self.under_way.remove(key).flatten();
        if let Some(id) = told {
            self.waiting.entering(key).push(key.clone(), Some(id));
        }
        self.waiting.calls.changed();
        self.serve();
        match next {
            Next::WhenTold => {}
            Next::After(wait) => self.look_at(shard, now + wait),
            Next::Others(id, wait) => {
                self.foreign.insert(id, Foreign { until: now + 2 * wait, told: false });
                self.look_at(shard, now + wait);
            }
        }
    }
}
