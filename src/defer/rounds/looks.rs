//! Looks at the due index: when, of which shards, and what becomes of what they find.

use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::time::Instant;

use super::{AGAIN, MOST_NAMES, Rounds};
use crate::{
    error::Error,
    key::Key,
    store::{DueLocks, JobId},
};

/// Locks of requests that wait for room, below which more are looked up: enough for the time of a look.
const FEW_WAITING: usize = 50;

/// Where more than that wait, a look is put off so long: what only comes due has no message, and its turn too.
const PATIENCE: Duration = Duration::from_secs(1);

/// What a look has found.
pub(super) struct Looked {
    /// Those that were asked, and since when they were due.
    shards: Vec<(u16, Instant)>,
    found: Result<Vec<DueLocks>, Error>,
}

impl Rounds {
    pub(super) fn next_look(&self) -> Option<Instant> {
        let few = self.waiting.requests() < FEW_WAITING;
        let patience = if few { Duration::ZERO } else { PATIENCE };
        let first = self.looks.values().min().filter(|_| self.looking.is_none());
        first.map(|at| *at + patience)
    }

    pub(super) fn look_at(&mut self, shard: u16, at: Instant) {
        if self.mine.contains(&shard) {
            let look = self.looks.entry(shard).or_insert(at);
            *look = at.min(*look);
        }
    }

    /// Those whose time has come, the longest ago first.
    fn overdue(&self, now: Instant) -> Vec<(u16, Instant)> {
        let looks = self.looks.iter().map(|(&shard, &at)| (shard, at));
        let mut due: Vec<_> = looks.filter(|(_, at)| *at <= now).collect();
        due.sort_unstable_by_key(|(_, at)| *at);
        due
    }

    /// Asks the shards whose time has come what is due, in the background.
    pub(super) fn look(&mut self) {
        let shards = self.overdue(Instant::now());
        for (shard, _) in &shards {
            self.looks.remove(shard);
        }
        let store = self.worker.store.clone();
        self.looking = Some(Box::pin(async move {
            let asked = shards.iter().map(|(shard, _)| *shard).collect();
            let found = store.backend().poll_due(asked, MOST_NAMES).await;
            Looked { shards, found }
        }));
    }

    pub(super) fn looked(&mut self, Looked { shards, found }: Looked) {
        let now = Instant::now();
        let Ok(found) = found else {
            let again = now + AGAIN;
            return shards.into_iter().for_each(|(shard, _)| self.look_at(shard, again));
        };
        for ((shard, since), due) in shards.into_iter().zip(found) {
            let unknown = |key: &Key| {
                let known = self.under_way.contains_key(key) || self.waiting.contains(key);
                !known && (!key.is_of_callback() || self.waiting.takes(key))
            };
            let least = match &due.locks[..] {
                // There was no room for its names: it comes first the next time.
                [] => since,
                names if names.iter().any(|(key, _)| unknown(key)) => now,
                // What is known and can't be visited yet is no reason to look again and again.
                _ => now + AGAIN,
            };
            if let Some(next) = due.next_due_in {
                self.look_at(shard, if next.is_zero() { least } else { now + next });
            }
            due.locks.into_iter().for_each(|(key, head)| self.due(&key, head, now));
        }
        self.serve();
    }

    fn due(&mut self, key: &Key, head: Option<JobId>, now: Instant) {
        if self.under_way.contains_key(key) {
            return;
        }
        if head.as_ref().is_some_and(|head| self.is_for_another(key, head, now)) {
            self.look_at(key.shard(), now + AGAIN);
        } else if self.waiting.takes(key) {
            self.waiting.entering(key).push_due(key, head);
        } else if !key.is_of_callback() {
            // That of a callback comes again by itself.
            self.look_at(key.shard(), now);
        }
    }
}

/// Until the look that is under way has ended; for ever if none is.
pub(super) async fn under_way(looking: &mut Option<BoxFuture<'static, Looked>>) -> Looked {
    let Some(look) = looking else { return std::future::pending().await };
    let looked = look.await;
    *looking = None;
    looked
}
