//! [`StoreCounters`]: what the process does through one store handle, as plain counters.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use super::{
    outcomes::{
        DecisionOutcome, EnqueueResult, LockRequestOutcome, PushResult, RunResult, TaskResult,
    },
    policy_registry::PolicyRegistry,
    worker_slots::{WorkerSlotRegistry, WorkerSlots},
};

/// Counters by outcome.
#[derive(Debug)]
pub(super) struct OutcomeCounters<const N: usize>([AtomicU64; N]);

impl<const N: usize> Default for OutcomeCounters<N> {
    fn default() -> Self {
        Self(std::array::from_fn(|_| AtomicU64::new(0)))
    }
}

impl<const N: usize> OutcomeCounters<N> {
    pub(super) fn increment(&self, index: usize) {
        if let Some(counter) = self.0.get(index) {
            // Only sums are read, so no other memory has to be in order.
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(super) fn get(&self, index: usize) -> u64 {
        self.0.get(index).map_or(0, |counter| counter.load(Ordering::Relaxed))
    }
}

/// Counters of a store handle, read by [`Store::stats`](crate::Store::stats).
#[derive(Debug, Default)]
pub(crate) struct StoreCounters {
    pub(super) lock_requests: OutcomeCounters<{ LockRequestOutcome::LABELS.len() }>,
    pub(super) lock_losses: AtomicU64,
    pub(super) decisions: OutcomeCounters<{ DecisionOutcome::LABELS.len() }>,
    pub(super) accepted: OutcomeCounters<{ EnqueueResult::LABELS.len() }>,
    pub(super) runs: OutcomeCounters<{ RunResult::LABELS.len() }>,
    pub(super) pushes: OutcomeCounters<{ PushResult::LABELS.len() }>,
    pub(super) task_runs: OutcomeCounters<{ TaskResult::LABELS.len() }>,
    workers: WorkerSlotRegistry,
    policies: PolicyRegistry,
}

impl StoreCounters {
    /// Registers a worker for as long as the returned value exists. `queue` is the name of its task
    /// queue.
    pub(crate) fn add_worker(
        &self,
        queue: Option<String>,
        slots: usize,
        busy: impl Fn() -> usize + Send + Sync + 'static,
    ) -> Arc<WorkerSlots> {
        self.workers.add(queue, slots, busy)
    }

    /// Returns the policies of this process.
    pub(crate) fn policies(&self) -> &PolicyRegistry {
        &self.policies
    }

    /// Returns the workers of this process.
    pub(crate) fn workers(&self) -> Vec<Arc<WorkerSlots>> {
        self.workers.list()
    }
}
