//! Drain of a worker of deferred requests: it receives no new jobs, and current runs may end.

use std::{future::Future, pin::pin, time::Duration};

use super::{JobDispatcher, RETRY_DELAY};
use crate::defer::job_chain::ShutdownPhase;

/// Time for returning the aborted jobs: one or two calls each, within the store's call timeout.
const ABORT_TIMEOUT: Duration = Duration::from_secs(2);

/// Time for telling the store that a worker without runs leaves.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(2);

impl JobDispatcher {
    /// Releases the shards, repeated until the store replies. Otherwise peers would wait for the
    /// lease.
    fn release_shards(&self, mut released: bool) -> impl Future<Output = ()> + Send + use<> {
        let store = self.worker.store.clone();
        async move {
            while !released {
                tokio::time::sleep(RETRY_DELAY).await;
                released =
                    store.backend().heartbeat(store.node().clone(), Duration::ZERO).await.is_ok();
            }
        }
    }

    pub(super) async fn drain(mut self) {
        let node = self.worker.store.node().clone();
        tracing::info!(%node, running = self.chain_tasks.len(), "worker is draining");
        self.shutdown.send_replace(ShutdownPhase::Draining);
        // First, so that this worker receives no more offers. If another worker of this process
        // remains, offers and shards stay with it.
        let released = self.worker.store.wakeups().job_worker_count() > 0
            || self.send_heartbeat(Duration::ZERO).await.is_ok();
        let releasing = self.release_shards(released);
        let joining = async { while self.chain_tasks.join_next().await.is_some() {} };
        let releasing_and_joining = async {
            let (mut releasing, mut joining) = (pin!(releasing), pin!(joining));
            tokio::select! {
                () = &mut releasing => joining.await,
                // An unavailable store does not delay the end of the worker: the shard leases
                // expire.
                () = &mut joining => drop(tokio::time::timeout(LEAVE_TIMEOUT, releasing).await),
            }
        };
        if tokio::time::timeout(self.worker.drain_timeout, releasing_and_joining).await.is_err() {
            self.shutdown.send_replace(ShutdownPhase::Aborting);
            let joining = async { while self.chain_tasks.join_next().await.is_some() {} };
            let _ = tokio::time::timeout(ABORT_TIMEOUT, joining).await;
        }
        tracing::info!(%node, left = self.chain_tasks.len(), "worker stopped");
    }
}
