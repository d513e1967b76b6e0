//! Abort of a run at a shutdown: its settlement, and the guard that stops later starts of its
//! handler.
//!
//! An aborted run may continue in another thread or process.

use std::time::Duration;

use super::job_chain::JobChain;
use crate::{
    gate::ReplayMarker,
    store::{HoldState, Settlement},
};

/// Time for a handler in another thread to be dropped after its worker has stopped. The thread may
/// be busy.
const HANDLER_DROP_TIMEOUT: Duration = Duration::from_secs(1);

impl JobChain {
    /// Returns the settlement of a run that a shutdown has cut off; `None` if the run can't be
    /// ended.
    pub(super) async fn abort_run(
        &self,
        marker: &ReplayMarker,
        may_rerun: bool,
    ) -> Option<Settlement> {
        // A run that has not reached its lock has not started a handler, and never will.
        if marker.try_abandon() {
            return Some(drained_settlement());
        }
        // The run ends when the handler has been dropped: the next run on this lock must not
        // overlap it.
        if marker.is_running_remotely() {
            tracing::warn!(
                job = %marker.job().id.log_prefix(), "a remote run may continue; its lock is left to its lease"
            );
            return None;
        }
        if tokio::time::timeout(HANDLER_DROP_TIMEOUT, marker.wait_until_ended()).await.is_err() {
            tracing::error!(
                job = %marker.job().id.log_prefix(), "a handler blocks its thread; its lock is left to its lease"
            );
            return None;
        }
        Some(if may_rerun {
            drained_settlement()
        } else {
            let retention = self.worker.settlement_rules.dead_retention;
            Settlement::Dead { reason: "drained, may have run", retention }
        })
    }
}

/// Guard of a run that its chain waits for.
///
/// After it is dropped no handler starts. If a handler is still active then, the lock is not
/// released: it expires with its lease, as if this process had died.
pub(super) struct AbandonOnDrop<'a> {
    marker: &'a ReplayMarker,
    hold: &'a HoldState,
}

impl<'a> AbandonOnDrop<'a> {
    pub(super) fn new(marker: &'a ReplayMarker, hold: &'a HoldState) -> Self {
        Self { marker, hold }
    }
}

impl Drop for AbandonOnDrop<'_> {
    fn drop(&mut self) {
        if !self.marker.try_abandon() && self.marker.is_in_flight() {
            self.hold.let_expire_on_drop();
        }
    }
}

pub(super) fn drained_settlement() -> Settlement {
    Settlement::ReturnToQueue { delay: Duration::from_millis(1), reason: "drained" }
}
