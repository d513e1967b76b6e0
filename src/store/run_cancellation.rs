//! [`RunCancellation`]: the request of an operator to end a run.

use std::{sync::Arc, time::Duration};

use tokio::{sync::watch, time::Instant};

/// Time that a handler has to stop by itself, before its future is dropped.
///
/// Enough to finish a call to a database or to another service and to undo its effects, and short
/// enough for an operator to wait for it.
const CANCELLATION_GRACE: Duration = Duration::from_secs(5);

/// Tells a handler that an operator cancels its run. Clones tell the same.
///
/// A handler that waits for it can stop in order, with an error. A run that does not end within 5 s
/// is dropped at its next await. Outside of a run, such as in a request that was not deferred, it
/// never fires.
///
/// ```
/// # use lockgate::{RunCancellation, queue::{Task, TaskFailure}};
/// async fn import(task: Task<Vec<u32>>) -> Result<(), TaskFailure> {
///     let cancellation: &RunCancellation = task.cancellation();
///     for row in &task.payload {
///         if cancellation.is_cancelled() {
///             return Err(TaskFailure::new("cancelled"));
///         }
///         println!("importing {row}");
///     }
///     Ok(())
/// }
/// ```
#[derive(Debug, Clone, Default)]
pub struct RunCancellation {
    requested_at: Arc<watch::Sender<Option<Instant>>>,
}

impl RunCancellation {
    /// Returns true once an operator has cancelled the run.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.requested_at.borrow().is_some()
    }

    /// Resolves when an operator cancels the run, at once if that has happened. Cancel safe.
    pub async fn cancelled(&self) {
        self.wait_for_request().await;
    }

    /// Resolves when the handler has had its time to stop. Cancel safe.
    pub(crate) async fn wait_for_grace(&self) {
        let requested_at = self.wait_for_request().await;
        tokio::time::sleep_until(requested_at + CANCELLATION_GRACE).await;
    }

    async fn wait_for_request(&self) -> Instant {
        let mut requested_at = self.requested_at.subscribe();
        let requested = requested_at.wait_for(Option::is_some).await.ok().and_then(|at| *at);
        match requested {
            Some(at) => at,
            // Unreachable: `self` keeps the sender.
            None => std::future::pending().await,
        }
    }

    pub(super) fn signal(&self) -> &Arc<watch::Sender<Option<Instant>>> {
        &self.requested_at
    }

    /// Cancels a run. A repeated request changes nothing.
    pub(super) fn request(signal: &watch::Sender<Option<Instant>>) {
        signal.send_if_modified(|requested_at| {
            let is_first = requested_at.is_none();
            requested_at.get_or_insert_with(Instant::now);
            is_first
        });
    }
}
