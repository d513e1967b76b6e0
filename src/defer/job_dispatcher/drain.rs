//! The end of a worker: it is handed nothing more, and what runs may end.

use std::{future::Future, pin::pin, time::Duration};

use super::{JobDispatcher, RETRY_DELAY};
use crate::defer::job_chain::ShutdownPhase;

/// Longest time for giving back what a drain has cut off: a call or two each, within the store's deadline.
const ABORT_TIMEOUT: Duration = Duration::from_secs(2);

/// How long the store is asked to hear that a worker without runs leaves.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(2);

impl JobDispatcher {
    /// Gives the shards up, until the store has heard of it: the others would wait for the lease.
    fn release_shards(&self, mut left: bool) -> impl Future<Output = ()> + Send + use<> {
        let store = self.worker.store.clone();
        async move {
            while !left {
                tokio::time::sleep(RETRY_DELAY).await;
                left =
                    store.backend().heartbeat(store.node().clone(), Duration::ZERO).await.is_ok();
            }
        }
    }

    pub(super) async fn drain(mut self) {
        let node = self.worker.store.node().clone();
        tracing::info!(%node, running = self.chain_tasks.len(), "worker stops");
        self.shutdown.send_replace(ShutdownPhase::Draining);
        // First of all: no more offers to this worker. Where another one goes on in this process, they are its own,
        // and so are the shards.
        let left = self.worker.store.wakeups().job_worker_count() > 0
            || self.send_heartbeat(Duration::ZERO).await.is_ok();
        let leave = self.release_shards(left);
        let ended = async { while self.chain_tasks.join_next().await.is_some() {} };
        let ended = async {
            let (mut leave, mut ended) = (pin!(leave), pin!(ended));
            tokio::select! {
                () = &mut leave => ended.await,
                // Of a store that is away nobody is kept waiting: the watch ends by itself.
                () = &mut ended => drop(tokio::time::timeout(LEAVE_TIMEOUT, leave).await),
            }
        };
        if tokio::time::timeout(self.worker.drain_timeout, ended).await.is_err() {
            self.shutdown.send_replace(ShutdownPhase::Aborting);
            let ended = async { while self.chain_tasks.join_next().await.is_some() {} };
            let _ = tokio::time::timeout(ABORT_TIMEOUT, ended).await;
        }
        tracing::info!(%node, left = self.chain_tasks.len(), "worker stopped");
    }
}
