//! [`WorkerSlots`]: the slots of one worker of this process.

use std::{
    fmt,
    sync::{Arc, Weak},
};

use parking_lot::Mutex;

/// Slots of a worker, registered for as long as the worker exists.
pub(crate) struct WorkerSlots {
    /// Name of its task queue; `None` for deferred requests.
    pub(crate) queue: Option<String>,
    /// Number of runs that it executes at the same time.
    pub(crate) slots: usize,
    busy: Box<dyn Fn() -> usize + Send + Sync>,
}

impl WorkerSlots {
    /// Returns the number of slots with a run.
    pub(crate) fn busy(&self) -> usize {
        (self.busy)().min(self.slots)
    }
}

impl fmt::Debug for WorkerSlots {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("WorkerSlots")
            .field("queue", &self.queue)
            .field("slots", &self.slots)
            .finish_non_exhaustive()
    }
}

/// Workers of a store handle.
#[derive(Debug, Default)]
pub(super) struct WorkerSlotRegistry(Mutex<Vec<Weak<WorkerSlots>>>);

impl WorkerSlotRegistry {
    pub(super) fn add(
        &self,
        queue: Option<String>,
        slots: usize,
        busy: impl Fn() -> usize + Send + Sync + 'static,
    ) -> Arc<WorkerSlots> {
        let worker = Arc::new(WorkerSlots { queue, slots, busy: Box::new(busy) });
        let mut workers = self.0.lock();
        workers.retain(|worker| worker.strong_count() > 0);
        workers.push(Arc::downgrade(&worker));
        worker
    }

    pub(super) fn list(&self) -> Vec<Arc<WorkerSlots>> {
        self.0.lock().iter().filter_map(Weak::upgrade).collect()
    }
}
