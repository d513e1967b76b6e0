//! Gauges of the store and of this process, set before an export.

use std::time::Duration;

use metrics::{Label, gauge};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::{queue_gauges::QueueGauges, queue_labels::QueueLabels};
use crate::{defer::DeferStats, error::Error, store::Store};

/// Time for which gauges of the store are not read again. Each of the processes exports them, and
/// several scrapers may ask each process.
const STORE_GAUGES_TTL: Duration = Duration::from_secs(5);

/// What the last collections of a store handle have set.
#[derive(Default)]
struct LastCollection {
    /// Queues of the workers of this process.
    worker_queues: Mutex<QueueLabels>,
    /// Time of the last collection from the store, and its queues. The mutex is held during one, so
    /// that concurrent callers share it.
    store_gauges: tokio::sync::Mutex<(Option<Instant>, QueueLabels)>,
}

/// Sets the gauges of this process, and those of the store if the last collection is 5 s old.
///
/// Gauges of the store are the same in every process: aggregate them by `max`, not by `sum`. While
/// the store does not answer, they keep their last values.
///
/// Cancel safe: it changes nothing but gauges.
pub async fn collect(store: &Store) {
    let last_collection = store.extension::<LastCollection>();
    collect_process_gauges(store);
    collect_worker_gauges(store, &mut last_collection.worker_queues.lock());
    let mut store_gauges = last_collection.store_gauges.lock().await;
    let (collected_at, queues) = &mut *store_gauges;
    if collected_at.is_some_and(|at| at.elapsed() < STORE_GAUGES_TTL) {
        return;
    }
    if let Err(error) = collect_store_gauges(store, queues).await {
        crate::throttle::throttled!(warn, %error, "gauges of the store were not collected");
    }
    *collected_at = Some(Instant::now());
}

fn collect_process_gauges(store: &Store) {
    set("lockgate_build_info", &[("version", env!("CARGO_PKG_VERSION"))], 1);
    set("lockgate_locks_held", &[], store.stats().locks_held);
    set("lockgate_lock_waiters", &[], crate::lock::waiter_count(store) as u64);
    set("lockgate_undo_pending", &[], store.pending_undo_count() as u64);
    set("lockgate_store_breaker_open", &[], store.backend().has_open_breaker().into());
}

fn collect_worker_gauges(store: &Store, queues: &mut QueueLabels) {
    let workers = store.counters().workers();
    let slots = workers.iter().map(|worker| {
        let queue = worker.queue.as_deref().unwrap_or("deferred requests");
        let busy = worker.busy();
        let free = if store.is_drained() { 0 } else { worker.slots - busy };
        (queue.to_owned(), (busy as u64, free as u64))
    });
    let slots_by_queue =
        queues.merge(slots, |sum, (busy, free)| *sum = (sum.0 + busy, sum.1 + free));
    for (queue, (busy, free)) in slots_by_queue {
        for (state, slots) in [("busy", busy), ("free", free)] {
            set("lockgate_worker_slots", &[("queue", &queue), ("state", state)], slots);
        }
    }
}

async fn collect_store_gauges(store: &Store, queue_labels: &mut QueueLabels) -> Result<(), Error> {
    let jobs = store.deferred_jobs();
    let (stats, paused, workers, queues) = tokio::try_join!(
        jobs.stats(),
        jobs.is_paused(),
        store.backend().count_live_workers(),
        store.queues()
    )?;
    set_job_gauges(&stats);
    set("lockgate_deferred_paused", &[], paused.into());
    set("lockgate_deferred_workers", &[], workers);
    let gauges = queues.iter().map(|queue| (queue.name.clone(), QueueGauges::new(queue)));
    for (queue, gauges) in queue_labels.merge(gauges, QueueGauges::merge) {
        gauges.export(&queue);
    }
    Ok(())
}

fn set_job_gauges(stats: &DeferStats) {
    let set_state = |state, count| set("lockgate_deferred_jobs", &[("state", state)], count);
    set_state("queued", stats.pending.saturating_sub(stats.delayed));
    set_state("delayed", stats.delayed);
    set_state("dead", stats.dead);
    set_state("done", stats.done);
    set("lockgate_deferred_bytes", &[], stats.bytes);
}

#[expect(clippy::cast_precision_loss, reason = "counts are far below 2^53")]
pub(super) fn set(name: &'static str, labels: &[(&'static str, &str)], value: u64) {
    gauge!(name, to_labels(labels)).set(value as f64);
}

pub(super) fn to_labels(labels: &[(&'static str, &str)]) -> Vec<Label> {
    labels.iter().map(|(name, value)| Label::new(*name, (*value).to_owned())).collect()
}
