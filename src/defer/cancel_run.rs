//! Cancellation of a run by an operator: the end of its grace, and its settlement.

use super::{
    abort_run::drained_settlement, claim_and_settle::StartedRun, job_chain::JobChain,
    jobs::CANCELLED_RETENTION,
};
use crate::{gate::ReplayMarker, store::Settlement};

impl StartedRun {
    /// Resolves when the run was cancelled and its handler has had its time to stop. Never resolves
    /// for a run in another process, which cannot be dropped: it ends with its response.
    pub(super) async fn wait_for_cut_off(&self, marker: &ReplayMarker) {
        self.cancellation.wait_for_grace().await;
        if marker.is_running_remotely() {
            std::future::pending::<()>().await;
        }
    }

    /// Returns the settlement of a run that may have been cancelled. A run that has succeeded keeps
    /// its response. All others end as cancelled: a handler that stops early answers with an error,
    /// and that run must not be repeated.
    pub(super) fn apply_cancellation(&self, settlement: Settlement) -> Settlement {
        let has_succeeded = matches!(
            settlement,
            Settlement::Done { .. } | Settlement::WebhookSettled { response: Some(_), .. }
        );
        if has_succeeded || !self.cancellation.is_cancelled() {
            return settlement;
        }
        Settlement::Cancelled { retention: CANCELLED_RETENTION }
    }
}

impl JobChain {
    /// Waits for the end of a cancelled run, whose future was dropped, and returns its settlement.
    ///
    /// Unlike a worker that stops, it waits as long as the handler needs: a lock that is left to
    /// its lease would let the job run again.
    pub(super) async fn drop_cancelled_run(
        &self,
        marker: &ReplayMarker,
        started: &StartedRun,
        may_rerun: bool,
    ) -> Option<Settlement> {
        // A run that has not reached its lock has not started a handler, and never will.
        if marker.try_abandon() {
            return Some(drained_settlement());
        }
        self.await_handler_exit(marker, started, may_rerun, drained_settlement()).await
    }
}
