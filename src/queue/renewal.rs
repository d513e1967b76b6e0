//! Renewal of the leases of current runs.

use std::time::Duration;

use tokio::time::Instant;

use super::{queue_worker::QueueWorker, queue_worker_loop::QueueWorkerLoop};
use crate::{
    key::Key,
    store::{MAX_TASKS_PER_STEP, RunToken, Store},
};

/// Runs with true if they still belong to this worker; the time of the request; and true if every
/// call was answered.
pub(super) type TaskRenewals = (Vec<(RunToken, bool)>, Instant, bool);

impl QueueWorkerLoop {
    /// Cancels lost runs, and renews the others unless a renewal is in flight.
    pub(super) fn renew_leases(&mut self) {
        let now = Instant::now();
        let lost: Vec<_> = self.running.values().filter(|run| run.lease_until <= now).collect();
        let lost: Vec<_> = lost.iter().map(|run| run.token.clone()).collect();
        lost.iter().for_each(|token| self.cancel_run(token));
        let runs: Vec<_> = self.running.values().map(|run| run.token.clone()).collect();
        if !runs.is_empty() && self.pending_renewal.is_none() {
            let QueueWorker { store, queue, lease, .. } = &self.worker;
            let (store, queue, lease) = (store.clone(), queue.clone(), *lease);
            self.pending_renewal = Some(Box::pin(renew_runs(store, queue, runs, lease)));
        }
    }

    pub(super) fn apply_renewals(&mut self, (runs, since, answered): TaskRenewals) {
        let lease = self.worker.lease;
        for (token, held) in runs {
            let run = self.running.get_mut(&token.id).filter(|run| run.token == token);
            match (run, held) {
                (Some(run), true) => run.lease_until = since + lease,
                (Some(_), false) => self.cancel_run(&token),
                (None, _) => {}
            }
        }
        let pause = if answered { lease / 3 } else { lease / 12 };
        let first = self.running.values().map(|run| run.lease_until).min();
        let next = Instant::now() + pause;
        self.renew_at = first.map_or(next, |first| renewal_time(first, lease).min(next));
    }

    pub(super) fn cancel_run(&mut self, token: &RunToken) {
        if let Some(run) = self.running.remove(&token.id) {
            tracing::warn!(task = ?token.id, "run lost: its lease ended");
            run.abort_handle.abort();
        }
    }
}

/// Returns the time of the next renewal of a lease that ends at `until`: after a third of its
/// remaining time, which leaves time for retries. Little may remain if the reply that granted it
/// was late. The interval is at least 1/48 of the lease, so that retries do not accelerate without
/// bound.
pub(super) fn renewal_time(until: Instant, lease: Duration) -> Instant {
    let now = Instant::now();
    let left = until.saturating_duration_since(now).min(lease);
    now + (left / 3).max(lease / 48).min(left)
}

async fn renew_runs(
    store: Store,
    queue: Key,
    runs: Vec<RunToken>,
    lease: Duration,
) -> TaskRenewals {
    let (since, mut out, mut answered) = (Instant::now(), Vec::with_capacity(runs.len()), true);
    for some in runs.chunks(MAX_TASKS_PER_STEP) {
        match store.backend().renew_runs(queue.clone(), some.to_vec(), lease).await {
            Ok(held) => out.extend(some.iter().cloned().zip(held)),
            Err(_) => answered = false,
        }
    }
    (out, since, answered)
}
