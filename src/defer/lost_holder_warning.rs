//! Log record about a job whose lock was held by a process that has gone.

use std::time::Duration;

use super::{job_chain::JobChain, worker::WorkerSettings};
use crate::{
    durations::{saturating_micros, saturating_millis},
    store::ClaimedRun,
};

/// Age of a worker from which on it knows that the shard of a new job was watched, by itself or by
/// a peer: after it the shards of a process that died before are taken over.
const MIN_WORKER_AGE: Duration = Duration::from_secs(15);

impl JobChain {
    /// Logs that the last holder of the lock did not release it, if this run shows that: a release
    /// would have offered the lock to the job.
    ///
    /// While no worker watches the shard, a release offers nothing. So jobs are left out that were
    /// accepted before the worker has reached `MIN_WORKER_AGE`.
    pub(super) fn warn_lost_holder(&self, run: &ClaimedRun) {
        let WorkerSettings { store, created_us, .. } = &*self.worker;
        let known_since_us = created_us.saturating_add(saturating_micros(MIN_WORKER_AGE));
        // The lock of a webhook has no holders but its runs, and is polled instead of offered.
        let is_first_run = run.attempt == 1 && !self.key.is_webhook();
        if !run.was_not_offered || !is_first_run || run.accepted_us < known_since_us {
            return;
        }
        let waited_us = store.backend().estimated_now_us().saturating_sub(run.accepted_us);
        tracing::warn!(
            node = %store.node(), lock = %store.log_name(&self.key), job = %run.id.log_prefix(),
            waited_ms = saturating_millis(Duration::from_micros(waited_us)),
            "lock taken over: its last holder did not release it before its lease ended; that \
             process has gone or stalled, or held the lock for longer than it may"
        );
    }
}
