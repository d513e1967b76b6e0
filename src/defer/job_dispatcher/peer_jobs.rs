//! What is left to other workers: what there is no room for, and what this one can't run.

use tokio::time::Instant;

use super::{super::ready_queue::FORWARD_DELAY, JobDispatcher, MAX_DUE_LOCKS, RETRY_DELAY};
use crate::{
    key::Key,
    store::{JobId, WakeupMessage},
};

/// A job for another worker.
pub(super) struct PeerJob {
    pub(super) until: Instant,
    /// One was told.
    pub(super) announced: bool,
}

impl JobDispatcher {
    /// A watcher that has no room tells others what waits in its shards, all of it or what nobody was told in time. It
    /// visits them itself all the same, if it has room first.
    pub(super) fn forward_ready_locks(&mut self, all: bool) {
        for (key, head) in self.ready_queues.next_to_forward(MAX_DUE_LOCKS, all, Instant::now()) {
            if self.owned_shards.contains(&key.shard()) {
                self.notify_random_peer(key, head);
            }
        }
    }

    /// What only came due has been told to nobody else: the others hear of what has waited for too long.
    pub(super) fn forward_stuck_locks(&mut self) {
        if !self.peers.is_empty() {
            self.forward_ready_locks(false);
        }
        self.forward_at = Some(Instant::now() + FORWARD_DELAY);
    }

    /// Tells a worker chosen at random that this lock has something to do. False if there is none.
    pub(super) fn notify_random_peer(&self, key: Key, id: Option<JobId>) -> bool {
        if self.peers.is_empty() {
            return false;
        }
        let random = uuid::Uuid::new_v4().as_u64_pair().1 % self.peers.len() as u64;
        let Some(other) = usize::try_from(random).ok().and_then(|at| self.peers.get(at)) else {
            return false;
        };
        let other = other.clone();
        let id = id.unwrap_or_else(|| JobId::new(&key));
        let store = self.worker.store.clone();
        let tell = async move {
            if let Err(error) =
                store.backend().send_wakeup(other, WakeupMessage::JobOffer(key, id)).await
            {
                tracing::debug!(%error, "no other worker was told");
            }
        };
        self.worker.store.spawn_background(tell);
        true
    }

    /// Tells the workers beside this one, on the same store handle. It hears it itself, too.
    fn notify_local_workers(&self, key: &Key, id: &JobId) -> bool {
        let hints = self.worker.store.wakeups();
        let others = hints.job_worker_count() > 1;
        if others {
            hints.deliver(WakeupMessage::JobOffer(key.clone(), id.clone()));
        }
        others
    }

    /// Whether another worker was told of a job that this one can't run. A little later it is this worker's turn
    /// again: the other one may have gone.
    pub(super) fn leave_to_peer(&mut self, key: &Key, id: &JobId, now: Instant) -> bool {
        let Some(foreign) = self.peer_jobs.remove(id).filter(|foreign| now < foreign.until) else {
            return false;
        };
        if !foreign.announced
            && !(self.notify_random_peer(key.clone(), Some(id.clone()))
                | self.notify_local_workers(key, id))
        {
            return false;
        }
        // It comes by an offer and by a look, and is left to the other one by both.
        let until = if foreign.announced { foreign.until } else { now + RETRY_DELAY };
        self.peer_jobs.insert(id.clone(), PeerJob { until, announced: true });
        true
    }
}
