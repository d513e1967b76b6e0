//! Log records about a job whose lock was held by a process that has gone: by a request before its
//! first run, or by its own last run.

use std::{sync::atomic::Ordering, time::Duration};

use super::{claim_and_settle::StartedRun, job_chain::JobChain, worker::WorkerSettings};
use crate::{
    durations::{saturating_micros, saturating_millis},
    instruments::RunResult,
    store::ClaimedRun,
};

/// Time after a gap in a worker's watch after which the shard of a new job is watched, by this
/// worker or by a peer: the shards of a process that has died are taken over by then.
const MIN_WATCH_TIME: Duration = Duration::from_secs(15);

impl WorkerSettings {
    /// Records that shards may be without a watch: the jobs are paused, or a heartbeat failed or
    /// was late.
    pub(super) fn record_watch_gap(&self) {
        self.watched_since_us.store(self.store.backend().estimated_now_us(), Ordering::Relaxed);
    }
}

impl JobChain {
    /// Logs that the last holder of the lock did not release it, if this run shows that: a release
    /// would have offered the lock to the job.
    ///
    /// While no worker watches the shard, a release offers nothing. So jobs are left out that were
    /// accepted within `MIN_WATCH_TIME` of the start of the worker or of a gap in its watch.
    pub(super) fn warn_lost_holder(&self, run: &ClaimedRun) {
        let WorkerSettings { store, watched_since_us, .. } = &*self.worker;
        let watched_since_us = watched_since_us.load(Ordering::Relaxed);
        let known_since_us = watched_since_us.saturating_add(saturating_micros(MIN_WATCH_TIME));
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

    /// Logs that the last run of this job did not end before the lease of its lock, if this run
    /// repeats such a run, and counts that run: its own process may have gone.
    pub(super) fn report_crashed_run(&self, started: &StartedRun) {
        let StartedRun { run, label, .. } = started;
        let Some(age) = run.crashed_run_age else { return };
        self.count_run(label.route(), RunResult::Lost, None);
        if self.key.is_webhook() {
            return;
        }
        let store = &self.worker.store;
        tracing::warn!(
            node = %store.node(), lock = %store.log_name(&self.key), job = %run.id.log_prefix(),
            attempt = run.attempt, method = label.method(), route = label.route(),
            held_ms = saturating_millis(age),
            "lock taken over: the last run of this job has had it since `held_ms` and did not end; \
             that process has gone or stalled, or has lost the lock, and the job runs again"
        );
    }
}
