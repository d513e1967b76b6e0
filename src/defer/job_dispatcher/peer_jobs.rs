//! Work left to peers: locks without a free slot here, and jobs that this worker can't run.

use tokio::time::Instant;

use super::{super::ready_queue::FORWARD_DELAY, JobDispatcher, MAX_DUE_LOCKS, RETRY_DELAY};
use crate::{
    key::Key,
    store::{JobId, WakeupMessage},
};

/// A job that is left to a peer.
pub(super) struct PeerJob {
    pub(super) until: Instant,
    /// A peer has been notified.
    pub(super) announced: bool,
}

impl JobDispatcher {
    /// Forwards ready locks of owned shards to peers: all of them, or those that no peer was
    /// notified of in time. They stay in the queues here too, and start here if a slot is free
    /// first.
    pub(super) fn forward_ready_locks(&mut self, all: bool) {
        for (key, head) in self.ready_queues.next_to_forward(MAX_DUE_LOCKS, all, Instant::now()) {
            if self.owned_shards.contains(&key.shard()) {
                self.notify_random_peer(key, head);
            }
        }
    }

    /// Forwards locks that have waited here for too long. No peer knows of a lock that only came
    /// due.
    pub(super) fn forward_stuck_locks(&mut self) {
        if !self.peers.is_empty() {
            self.forward_ready_locks(false);
        }
        self.forward_at = Some(Instant::now() + FORWARD_DELAY);
    }

    /// Sends a wake-up for this lock to a random peer. Returns false if there is no peer.
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
                tracing::debug!(%error, "no other worker was notified");
            }
        };
        self.worker.store.spawn_background(tell);
        true
    }

    /// Notifies the other workers of this process on the same store. This worker receives the
    /// wake-up too.
    fn notify_local_workers(&self, key: &Key, id: &JobId) -> bool {
        let hints = self.worker.store.wakeups();
        let others = hints.job_worker_count() > 1;
        if others {
            hints.deliver(WakeupMessage::JobOffer(key.clone(), id.clone()));
        }
        others
    }

    /// Returns true if a peer was notified of a job that this worker can't run. After `RETRY_DELAY`
    /// this worker tries the job again, since the peer may have stopped.
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
        // The job comes up twice, by an offer and by a due poll; both leave it to the peer.
        let until = if foreign.announced { foreign.until } else { now + RETRY_DELAY };
        self.peer_jobs.insert(id.clone(), PeerJob { until, announced: true });
        true
    }
}
