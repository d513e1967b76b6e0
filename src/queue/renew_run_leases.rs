//! Renewal of the leases of a worker's current runs.

use std::time::Duration;

use tokio::time::Instant;

use super::{queue_worker::QueueWorker, queue_worker_loop::QueueWorkerLoop};
use crate::{
    key::Key,
    store::{MAX_TASKS_PER_STEP, RunToken, Store},
};

/// Replies to the renewals of several runs.
pub(super) struct RunRenewals {
    /// Runs with a reply, with true if the run still belongs to this worker.
    renewed: Vec<(RunToken, bool)>,
    requested_at: Instant,
    all_answered: bool,
}

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

    pub(super) fn apply_renewals(&mut self, renewals: RunRenewals) {
        let lease = self.worker.lease;
        for (token, is_held) in renewals.renewed {
            let run = self.running.get_mut(&token.id).filter(|run| run.token == token);
            match (run, is_held) {
                (Some(run), true) => run.lease_until = renewals.requested_at + lease,
                (Some(_), false) => self.cancel_run(&token),
                (None, _) => {}
            }
        }
        let interval = if renewals.all_answered { lease / 3 } else { lease / 12 };
        let first_expiry = self.running.values().map(|run| run.lease_until).min();
        let latest = Instant::now() + interval;
        self.renew_at =
            first_expiry.map_or(latest, |expiry| renewal_time(expiry, lease).min(latest));
    }

    /// Cancels a lost run. The poll that takes it back counts it, in this process or in another
    /// one.
    pub(super) fn cancel_run(&mut self, token: &RunToken) {
        if let Some(run) = self.running.remove(&token.id) {
            tracing::warn!(task = %token.id.log_prefix(), "run lost: its lease ended");
            run.abort_handle.abort();
        }
    }
}

/// Returns the time of the next renewal of a lease that ends at `lease_until`: after a third of its
/// remaining time, which leaves time for retries. Little may remain if the reply that granted it
/// was late. The interval is at least 1/48 of the lease, so that retries do not accelerate without
/// bound.
pub(super) fn renewal_time(lease_until: Instant, lease: Duration) -> Instant {
    let now = Instant::now();
    let remaining = lease_until.saturating_duration_since(now).min(lease);
    now + (remaining / 3).max(lease / 48).min(remaining)
}

async fn renew_runs(store: Store, queue: Key, runs: Vec<RunToken>, lease: Duration) -> RunRenewals {
    let mut renewals = RunRenewals {
        renewed: Vec::with_capacity(runs.len()),
        requested_at: Instant::now(),
        all_answered: true,
    };
    for chunk in runs.chunks(MAX_TASKS_PER_STEP) {
        match store.backend().renew_runs(queue.clone(), chunk.to_vec(), lease).await {
            Ok(are_held) => renewals.renewed.extend(chunk.iter().cloned().zip(are_held)),
            Err(_) => renewals.all_answered = false,
        }
    }
    renewals
}
