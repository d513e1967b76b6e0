//! [`QueueGauges`]: gauges of one value of the label `queue`.

use std::time::Duration;

use metrics::gauge;

use super::collector::{set, to_labels};
use crate::queue::QueueInfo;

/// Gauges of a task queue, or of all queues that share a label.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct QueueGauges {
    due: u64,
    delayed: u64,
    running: u64,
    dead: u64,
    bytes: u64,
    is_paused: bool,
    oldest_due: Duration,
}

impl QueueGauges {
    pub(super) fn new(queue: &QueueInfo) -> Self {
        let stats = &queue.stats;
        Self {
            due: stats.due,
            delayed: stats.waiting.saturating_sub(stats.due),
            running: stats.running,
            dead: stats.dead_letters,
            bytes: stats.bytes,
            is_paused: stats.paused,
            oldest_due: queue.oldest_due.unwrap_or_default(),
        }
    }

    /// Adds another queue: counts are summed, and one late or paused queue makes all of them so.
    pub(super) fn merge(&mut self, other: Self) {
        self.due += other.due;
        self.delayed += other.delayed;
        self.running += other.running;
        self.dead += other.dead;
        self.bytes += other.bytes;
        self.is_paused |= other.is_paused;
        self.oldest_due = self.oldest_due.max(other.oldest_due);
    }

    pub(super) fn export(&self, queue: &str) {
        let labels = [("queue", queue)];
        let set_state = |state, count| {
            set("lockgate_queue_tasks", &[("queue", queue), ("state", state)], count);
        };
        set_state("due", self.due);
        set_state("delayed", self.delayed);
        set_state("running", self.running);
        set_state("dead", self.dead);
        set("lockgate_queue_bytes", &labels, self.bytes);
        set("lockgate_queue_paused", &labels, self.is_paused.into());
        let oldest_due = self.oldest_due.as_secs_f64();
        gauge!("lockgate_queue_oldest_due_seconds", to_labels(&labels)).set(oldest_due);
    }
}
