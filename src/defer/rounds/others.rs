//! What is left to other workers: what there is no room for, and what this one can't run.

use tokio::time::Instant;

use super::{super::waiting::PATIENCE, AGAIN, MOST_NAMES, Rounds};
use crate::{
    key::Key,
    store::{WakeupMessage, JobId},
};

/// A job for another worker.
pub(super) struct Foreign {
    pub(super) until: Instant,
    /// One was told.
    pub(super) told: bool,
}

impl Rounds {
    /// A watcher that has no room tells others what waits in its shards, all of it or what nobody was told in time. It
    /// visits them itself all the same, if it has room first.
    pub(super) fn pass_on(&mut self, all: bool) {
        for (key, head) in self.waiting.next_to_tell(MOST_NAMES, all, Instant::now()) {
            if self.mine.contains(&key.shard()) {
                self.tell_another(key, head);
            }
        }
    }

    /// What only came due has been told to nobody else: the others hear of what has waited for too long.
    pub(super) fn stuck(&mut self) {
        if !self.others.is_empty() {
            self.pass_on(false);
        }
        self.stuck_at = Some(Instant::now() + PATIENCE);
    }

    /// Tells a worker chosen at random that this lock has something to do. False if there is none.
    pub(super) fn tell_another(&self, key: Key, id: Option<JobId>) -> bool {
        if self.others.is_empty() {
            return false;
        }
        let random = uuid::Uuid::new_v4().as_u64_pair().1 % self.others.len() as u64;
        let Some(other) = usize::try_from(random).ok().and_then(|at| self.others.get(at)) else {
            return false;
        };
        let other = other.clone();
        let id = id.unwrap_or_else(|| JobId::new(&key));
        let store = self.worker.store.clone();
        let tell = async move {
            if let Err(error) = store.backend().send_wakeup(other, WakeupMessage::JobOffer(key, id)).await {
                tracing::debug!(%error, "no other worker was told");
            }
        };
        self.worker.store.spawn_background(tell);
        true
    }

    /// Tells the workers beside this one, on the same store handle. It hears it itself, too.
    fn tell_beside(&self, key: &Key, id: &JobId) -> bool {
        let hints = self.worker.store.wakeups();
        let others = hints.job_worker_count() > 1;
        if others {
            hints.deliver(WakeupMessage::JobOffer(key.clone(), id.clone()));
        }
        others
    }

    /// Whether another worker was told of a job that this one can't run. A little later it is this worker's turn
    /// again: the other one may have gone.
    pub(super) fn is_for_another(&mut self, key: &Key, id: &JobId, now: Instant) -> bool {
        let Some(foreign) = self.foreign.remove(id).filter(|foreign| now < foreign.until) else {
            return false;
        };
        if !foreign.told
            && !(self.tell_another(key.clone(), Some(id.clone())) | self.tell_beside(key, id))
        {
            return false;
        }
        // It comes by an offer and by a look, and is left to the other one by both.
        let until = if foreign.told { foreign.until } else { now + AGAIN };
        self.foreign.insert(id.clone(), Foreign { until, told: true });
        true
    }
}
