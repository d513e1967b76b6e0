//! Actions on one process of the service.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use super::{admin_error::AdminError, admin_handle::Admin};
use crate::store::{NodeId, WakeupMessage};

/// Most times that a process is asked. The message that asks it may be lost.
const MAX_REQUESTS: usize = 4;

/// Time between two requests. A look at the fleet ends earlier if the process is known to hang.
const REQUEST_INTERVAL: Duration = Duration::from_millis(500);

impl Admin {
    /// Drains one process: its workers of deferred requests and of queues start nothing more, and
    /// finish what runs. Peers take over its shards at once, and tasks that are due. The process
    /// goes on to serve requests, and to store those that it defers.
    ///
    /// `node` is the id of the process, see [`ProcessReport::node`](crate::ProcessReport::node). A
    /// process that starts again is not drained; [`resume_process`](Self::resume_process) ends the
    /// drain before.
    ///
    /// It returns when the process has confirmed the order. Its report says
    /// [`draining`](crate::ProcessReport::draining), and shows how many runs are left.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use lockgate::{Store, admin::{Operator, Permission}};
    ///
    /// let store = Store::memory();
    /// # let _guard = store.lock("order:7").acquire().await?;
    /// let admin = store.admin(Operator::new("ada", Permission::Act));
    /// let node = store.fleet().await?.processes[0].node.clone();
    /// admin.drain_process(&node, "it is being replaced").await?;
    /// assert!(store.fleet().await?.processes[0].draining);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`AdminError::NotPossible`] if the process has not confirmed it after about two seconds: it
    /// has gone, hangs, or is of an older version. Others as in [`AdminError`].
    pub async fn drain_process(&self, node: &str, reason: &str) -> Result<(), AdminError> {
        self.act("drain-process", node, reason, self.request_process_drain(node, true)).await
    }

    /// Ends the drain of a process: its workers start runs and tasks again.
    ///
    /// # Errors
    ///
    /// As for [`drain_process`](Self::drain_process).
    pub async fn resume_process(&self, node: &str, reason: &str) -> Result<(), AdminError> {
        self.act("resume-process", node, reason, self.request_process_drain(node, false)).await
    }

    /// Asks a process until its report confirms the state.
    async fn request_process_drain(&self, node: &str, is_drained: bool) -> Result<(), AdminError> {
        let invalid = || AdminError::Invalid("give the id of a process".to_owned());
        let id = NodeId::parse(node).ok_or_else(invalid)?;
        let mut has_answered = false;
        for _ in 0..MAX_REQUESTS {
            let next_request_at = Instant::now() + REQUEST_INTERVAL;
            let message = WakeupMessage::ProcessDrain(is_drained);
            self.store.backend().send_wakeup(id.clone(), message).await?;
            let fleet = self.store.fleet().await?;
            let report = fleet.process(node);
            if report.is_some_and(|report| report.draining == is_drained) {
                return Ok(());
            }
            has_answered |= report.is_some();
            sleep_until(next_request_at).await;
        }
        Err(AdminError::NotPossible(match has_answered {
            true => "the process has not confirmed it; it may be of an older version".to_owned(),
            false => "no process with this id answers".to_owned(),
        }))
    }
}
