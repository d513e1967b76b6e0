//! Visits, as far as there is room for them.

use std::sync::{Arc, atomic::Ordering};

use tokio::time::Instant;

use super::{Rounds, others::Foreign};
use crate::{
    defer::{
        slots::Slots,
        visit::{Next, Visit},
        waiting::PATIENCE,
    },
    key::Key,
    store::JobId,
};

/// Visits for each run, or callback, that there is room for: those beyond are settled, and no more begin while the store
/// is too slow for it.
const VISITS: usize = 2;

impl Rounds {
    /// For another line like this one. Neither requests nor callbacks have the other's room.
    pub(super) fn has_room_for(&self, key: &Key) -> bool {
        if key.is_of_callback() { self.has_room_for_calls() } else { self.has_room() }
    }

    fn has_room(&self) -> bool {
        let visits = self.visits.len().saturating_sub(self.call_visits);
        self.slots.is_free() && visits < VISITS.saturating_mul(self.slots.most())
    }

    /// More than are made at once: one that finds no room to be made in goes back for a while, and does not stand before
    /// the others here.
    fn has_room_for_calls(&self) -> bool {
        self.call_visits < VISITS.saturating_mul(self.most_calls)
    }

    /// Visits those that wait, as far as there is room. While the queue is paused they wait in the due index.
    pub(super) fn serve(&mut self) {
        if self.paused.load(Ordering::Relaxed) {
            self.waiting.clear();
        }
        while self.has_room_for_calls() {
            let Some((key, head)) = self.waiting.pop_call() else { break };
            self.visit(key, head);
        }
        while self.has_room() {
            let Some((key, head)) = self.waiting.pop_request() else { break };
            self.visit(key, head);
        }
        let stuck_at = self.stuck_at.unwrap_or_else(|| Instant::now() + PATIENCE);
        self.stuck_at = Some(stuck_at).filter(|_| !self.waiting.is_empty());
        self.crowded.store(self.waiting.is_crowded(), Ordering::Relaxed);
    }

    /// Unless one is under way.
    fn visit(&mut self, key: Key, id: Option<JobId>) {
        if self.under_way.contains_key(&key) {
            return;
        }
        self.under_way.insert(key.clone(), None);
        // A callback takes none of the requests' slots, which may be held for long: by runs, and by visits that wait for
        // leave to run.
        let slot = if key.is_of_callback() {
            self.call_visits += 1;
            Slots::new(1).take()
        } else {
            self.slots.take()
        };
        let visit = Visit {
            worker: Arc::clone(&self.worker),
            key,
            slot,
            calls: Arc::clone(&self.calls),
            stop: self.stop.subscribe(),
            crowded: Arc::clone(&self.crowded),
            paused: Arc::clone(&self.paused),
        };
        self.visits.spawn(visit.run(id));
    }

    pub(super) fn ended(&mut self, key: &Key, next: Next) {
        let (shard, now) = (key.shard(), Instant::now());
        if key.is_of_callback() {
            self.call_visits = self.call_visits.saturating_sub(1);
        }
        let told = self.under_way.remove(key).flatten();
        if let Some(id) = told {
            self.waiting.of_mut(key).push(key.clone(), Some(id));
        }
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
