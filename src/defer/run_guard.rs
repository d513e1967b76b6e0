//! Runs that nobody waits for any more, and which may go on all the same, in another thread or process.

use std::time::Duration;

use super::job_chain::JobChain;
use crate::{
    gate::ReplayMarker,
    store::{HoldState, Settlement},
};

/// How long a handler in another thread has to be dropped, once its worker has stopped: that thread may be busy.
const HANDLER_DROP_TIMEOUT: Duration = Duration::from_secs(1);

impl JobChain {
    /// What becomes of a run that the end of its worker has cut off. `None`: it can't be ended.
    pub(super) async fn abort_run(
        &self,
        marker: &ReplayMarker,
        idempotent: bool,
    ) -> Option<Settlement> {
        // What has not come to its lock has not come to its handler, and never will.
        if marker.try_abandon() {
            return Some(drained_settlement());
        }
        // It is over when it has been dropped, not before: the next run on this lock must not overlap it.
        if marker.is_running_remotely() {
            tracing::warn!(
                job = ?marker.job().id, "a run in another process may go on: its lock is left to its lease"
            );
            return None;
        }
        if tokio::time::timeout(HANDLER_DROP_TIMEOUT, marker.wait_until_ended()).await.is_err() {
            tracing::error!(
                job = ?marker.job().id, "a handler does not let go of its thread: its lock is left to its lease"
            );
            return None;
        }
        Some(if idempotent {
            drained_settlement()
        } else {
            let retention = self.worker.settlement_rules.dead_retention;
            Settlement::Dead { reason: "drained, may have run", retention }
        })
    }
}

/// A run that somebody waits for. However that ends, no handler begins after it; and if one is still under way, its
/// lock is not given back: others come when the lease ends, as if this process had died.
pub(super) struct RunGuard<'a> {
    replay: &'a ReplayMarker,
    hold: &'a HoldState,
}

impl<'a> RunGuard<'a> {
    pub(super) fn new(marker: &'a ReplayMarker, hold: &'a HoldState) -> Self {
        Self { replay: marker, hold }
    }
}

impl Drop for RunGuard<'_> {
    fn drop(&mut self) {
        if !self.replay.try_abandon() && self.replay.is_in_flight() {
            self.hold.let_expire_on_drop();
        }
    }
}

pub(super) fn drained_settlement() -> Settlement {
    Settlement::ReturnToQueue { delay: Duration::from_millis(1), reason: "drained" }
}
