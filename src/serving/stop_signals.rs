//! `StopSignals`: the phases of a server, as its parts see them.

use std::sync::Arc;

use tokio::sync::watch;

/// Phase of a server. A later phase is greater.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum StopPhase {
    /// The server accepts connections, and its workers claim jobs.
    Serving,
    /// No new connections and no new jobs. Open requests and current runs may end.
    Draining,
    /// The drain timeout has passed: open requests get 503, and running jobs return to their
    /// queues.
    CuttingOff,
    /// The connections that are left are closed.
    Closing,
}

/// Receiver of the phases of a [`ServerLifecycle`](super::ServerLifecycle). Cloning is cheap.
///
/// All phases count as reached if the lifecycle was dropped.
#[derive(Debug, Clone)]
pub struct StopSignals {
    /// Shared, since a clone of a receiver changes two counters and each request needs one.
    phase: Arc<watch::Receiver<StopPhase>>,
}

impl StopSignals {
    pub(super) fn new(phase: &watch::Sender<StopPhase>) -> Self {
        Self { phase: Arc::new(phase.subscribe()) }
    }

    /// Resolves when the server has reached this phase.
    pub fn reached(&self, phase: StopPhase) -> impl Future<Output = ()> + Send + use<> {
        let shared = Arc::clone(&self.phase);
        async move {
            let mut receiver = watch::Receiver::clone(&shared);
            // Fails if the lifecycle was dropped, which counts as reached.
            let _ = receiver.wait_for(|current| *current >= phase).await;
        }
    }

    /// Returns true if the shutdown has begun. It takes no lock.
    #[must_use]
    pub fn is_stopping(&self) -> bool {
        self.phase.has_changed().unwrap_or(true)
    }
}
