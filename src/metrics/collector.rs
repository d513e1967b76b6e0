//! Gauges of the store and of this process, set before an export.

use std::time::Duration;

use metrics::{Label, gauge};
use tokio::{sync::Mutex, time::Instant};

use crate::{defer::DeferStats, error::Error, queue::QueueInfo, store::Store};

/// Time for which gauges of the store are not read again. Each of the processes exports them, and
/// several scrapers may ask each process.
const STORE_GAUGES_TTL: Duration = Duration::from_secs(5);

/// Time of the last collection. The mutex is held during one, so that concurrent callers share it.
#[derive(Default)]
struct LastCollection(Mutex<Option<Instant>>);

/// Sets the gauges of this process, and those of the store if the last collection is 5 s old.
///
/// Gauges of the store are the same in every process: aggregate them by `max`, not by `sum`. While
/// the store does not answer, they keep their last values.
///
/// Cancel safe: it changes nothing but gauges.
pub async fn collect(store: &Store) {
    collect_process_gauges(store);
    let last_collection = store.extension::<LastCollection>();
    let mut collected_at = last_collection.0.lock().await;
    if collected_at.is_some_and(|at| at.elapsed() < STORE_GAUGES_TTL) {
        return;
    }
    if let Err(error) = collect_store_gauges(store).await {
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
    for worker in store.counters().workers() {
        let queue = worker.queue.as_deref().unwrap_or("deferred requests");
        let busy = worker.busy();
        let set_slots = |state, slots: usize| {
            set("lockgate_worker_slots", &[("queue", queue), ("state", state)], slots as u64);
        };
        set_slots("busy", busy);
        set_slots("free", worker.slots - busy);
    }
}

async fn collect_store_gauges(store: &Store) -> Result<(), Error> {
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
    queues.iter().for_each(set_queue_gauges);
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

fn set_queue_gauges(queue: &QueueInfo) {
    let QueueInfo { name, stats, oldest_due } = queue;
    let labels = [("queue", name.as_str())];
    let set_state = |state, count| {
        set("lockgate_queue_tasks", &[("queue", name), ("state", state)], count);
    };
    set_state("due", stats.due);
    set_state("delayed", stats.waiting.saturating_sub(stats.due));
    set_state("running", stats.running);
    set_state("dead", stats.dead_letters);
    set("lockgate_queue_bytes", &labels, stats.bytes);
    set("lockgate_queue_paused", &labels, stats.paused.into());
    let oldest_due = oldest_due.unwrap_or_default().as_secs_f64();
    gauge!("lockgate_queue_oldest_due_seconds", to_labels(&labels)).set(oldest_due);
}

#[expect(clippy::cast_precision_loss, reason = "counts are far below 2^53")]
fn set(name: &'static str, labels: &[(&'static str, &str)], value: u64) {
    gauge!(name, to_labels(labels)).set(value as f64);
}

fn to_labels(labels: &[(&'static str, &str)]) -> Vec<Label> {
    labels.iter().map(|(name, value)| Label::new(*name, (*value).to_owned())).collect()
}
