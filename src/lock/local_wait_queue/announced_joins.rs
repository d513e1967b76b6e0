//! `AnnouncedJoins`: joins of the store's queue that were announced during an acquire, for the
//! snapshot that it returns.

use std::time::Duration;

use tokio::time::Instant;

use super::queue_snapshot::QueueSnapshot;
use crate::store::Contenders;

/// Joins that were announced while an acquire was in flight.
///
/// The store may have executed the acquire before a join and have announced the join before the
/// answer arrived, so the answer may lack it.
#[derive(Debug, Clone, Copy)]
pub(super) struct AnnouncedJoins {
    joined: Contenders,
    /// Time of the last announcement.
    last_announced_at: Instant,
}

impl AnnouncedJoins {
    /// Adds a join to the existing ones.
    pub(super) fn add(existing: Option<Self>, joined: Contenders) -> Self {
        Self {
            joined: existing.map_or(joined, |joins| joins.joined.merge(joined)),
            last_announced_at: Instant::now(),
        }
    }

    pub(super) fn is_older_than(&self, age: Duration) -> bool {
        self.last_announced_at.elapsed() > age
    }

    /// Adds the joins to a snapshot. A snapshot that was requested after the last join contains
    /// them already.
    pub(super) fn apply_to(self, snapshot: &mut QueueSnapshot) {
        if self.last_announced_at >= snapshot.requested_at() {
            snapshot.add(self.joined);
        }
    }
}
