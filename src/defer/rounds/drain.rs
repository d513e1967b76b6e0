//! The end of a worker: it is handed nothing more, and what runs may end.

use std::{future::Future, pin::pin, time::Duration};

use super::{AGAIN, Rounds};
use crate::defer::visit::Stop;

/// Longest time for giving back what a drain has cut off: a call or two each, within the store's deadline.
const GIVE_BACK: Duration = Duration::from_secs(2);

/// How long the store is asked to hear that a worker without runs leaves.
const LEAVE: Duration = Duration::from_secs(2);

impl Rounds {
    /// Gives the shards up, until the store has heard of it: the others would wait for the lease.
    fn leave(&self, mut left: bool) -> impl Future<Output = ()> + Send + use<> {
        let store = self.worker.store.clone();
        async move {
            while !left {
                tokio::time::sleep(AGAIN).await;
                left = store.backend().heartbeat(store.node().clone(), Duration::ZERO).await.is_ok();
            }
        }
    }

    pub(super) async fn drain(mut self) {
        let node = self.worker.store.node().clone();
        tracing::info!(%node, running = self.visits.len(), "worker stops");
        self.stop.send_replace(Stop::Drain);
        // First of all: no more offers to this worker. Where another one goes on in this process, they are its own,
        // and so are the shards.
        let left =
            self.worker.store.wakeups().job_worker_count() > 0 || self.send_beat(Duration::ZERO).await.is_ok();
        let leave = self.leave(left);
        let ended = async { while self.visits.join_next().await.is_some() {} };
        let ended = async {
            let (mut leave, mut ended) = (pin!(leave), pin!(ended));
            tokio::select! {
                () = &mut leave => ended.await,
                // Of a store that is away nobody is kept waiting: the watch ends by itself.
                () = &mut ended => drop(tokio::time::timeout(LEAVE, leave).await),
            }
        };
        if tokio::time::timeout(self.worker.drain, ended).await.is_err() {
            self.stop.send_replace(Stop::Now);
            let ended = async { while self.visits.join_next().await.is_some() {} };
            let _ = tokio::time::timeout(GIVE_BACK, ended).await;
        }
        tracing::info!(%node, left = self.visits.len(), "worker stopped");
    }
}
