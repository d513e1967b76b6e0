//! Drain of a worker of deferred requests: it receives no new jobs, and current runs may end. At
//! a stop the worker ends afterwards; an operator's drain of its process can be ended.

use std::{future::Future, pin::pin, time::Duration};

use tokio::time::Instant;

use super::{JobDispatcher, RETRY_DELAY};
use crate::defer::job_chain::ShutdownPhase;

/// Time for returning the aborted jobs: one or two calls each, within the store's call timeout.
const ABORT_TIMEOUT: Duration = Duration::from_secs(2);

/// Time for telling the store that a worker without runs leaves.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(2);

impl JobDispatcher {
    /// Starts no more runs, or starts some again, as an operator has ordered for this process. What
    /// runs goes on. The heartbeat that follows gives up the shards or takes some.
    pub(super) fn apply_process_drain(&mut self) {
        let (node, is_drained) = (self.worker.store.node(), self.worker.store.is_drained());
        tracing::info!(%node, is_drained, "an operator has drained or resumed this worker");
        if is_drained {
            self.forward_ready_locks(true);
        }
        self.next_heartbeat = Instant::now();
    }

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

    /// Lets current runs end until `cut_off` resolves, then aborts them and returns their jobs.
    pub(super) async fn drain(mut self, cut_off: impl Future<Output = ()>) {
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
        let is_cut_off = tokio::select! {
            biased;
            () = releasing_and_joining => false,
            () = cut_off => true,
        };
        if is_cut_off {
            self.shutdown.send_replace(ShutdownPhase::Aborting);
            let joining = async { while self.chain_tasks.join_next().await.is_some() {} };
            let _ = tokio::time::timeout(ABORT_TIMEOUT, joining).await;
        }
        self.log_stop();
    }

    fn log_stop(&self) {
        let store = &self.worker.store;
        let (node, left) = (store.node(), self.chain_tasks.len());
        // Another worker of this process runs them.
        let is_last_worker = store.wakeups().job_worker_count() == 0;
        let lost = if is_last_worker { store.backend().volatile_job_count() } else { 0 };
        if lost > 0 {
            tracing::warn!(
                %node, left, lost,
                "worker stopped; the deferred requests that have not run are lost when this process \
                 ends, since they are in its memory; connect the store to a server by \
                 Store::connect(..)"
            );
        } else {
            tracing::info!(%node, left, "worker stopped");
        }
    }
}
