//! Forwarding of work to peers: of locks without a free slot here, and of jobs that this worker
//! can't run.

use tokio::time::Instant;

use super::{
    super::ready_lock_forwarding::FORWARD_DELAY, JobDispatcher, MAX_DUE_LOCKS, RETRY_DELAY,
};
use crate::{
    key::Key,
    store::{JobId, WakeupMessage},
};

/// Job that this worker can't run and leaves to a peer.
pub(super) struct PeerJob {
    /// End of the time for which the job is left to the peer.
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
        let Some(peer) = usize::try_from(random).ok().and_then(|index| self.peers.get(index))
        else {
            return false;
        };
        let peer = peer.clone();
        let id = id.unwrap_or_else(|| JobId::new(&key));
        let store = self.worker.store.clone();
        let notify = async move {
            if let Err(error) =
                store.backend().send_wakeup(peer, WakeupMessage::JobOffer(key, id)).await
            {
                tracing::debug!(%error, "no other worker was notified");
            }
        };
        self.worker.store.spawn_background(notify);
        true
    }

    /// Notifies the other workers of this process on the same store. This worker receives the
    /// wake-up too.
    fn notify_local_workers(&self, key: &Key, id: &JobId) -> bool {
        let wakeups = self.worker.store.wakeups();
        let has_local_peers = wakeups.job_worker_count() > 1;
        if has_local_peers {
            wakeups.deliver(WakeupMessage::JobOffer(key.clone(), id.clone()));
        }
        has_local_peers
    }

    /// Returns true if a peer was notified of a job that this worker can't run. After `RETRY_DELAY`
    /// this worker tries the job again, since the peer may have stopped.
    pub(super) fn leave_to_peer(&mut self, key: &Key, id: &JobId, now: Instant) -> bool {
        let Some(peer_job) = self.peer_jobs.remove(id).filter(|peer_job| now < peer_job.until)
        else {
            return false;
        };
        if !peer_job.announced
            && !(self.notify_random_peer(key.clone(), Some(id.clone()))
                | self.notify_local_workers(key, id))
        {
            return false;
        }
        // The job comes up twice, by an offer and by a due poll; both leave it to the peer.
        let until = if peer_job.announced { peer_job.until } else { now + RETRY_DELAY };
        self.peer_jobs.insert(id.clone(), PeerJob { until, announced: true });
        true
    }
}
