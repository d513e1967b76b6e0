//! The guard of a quorum's lock.

use std::{sync::Arc, time::Duration};

use futures_util::stream::{FuturesUnordered, StreamExt as _};
use tokio::time::Instant;

use super::quorum_hold::QuorumHold;
use crate::{
    key::Key,
    lock::ReleaseStatus,
    store::{LockHold, LockLoss, ReleaseOutcome},
};

/// A lock of a majority, held and renewed until this is dropped or released.
///
/// Dropping it never waits and needs no runtime: the background agent of each store gives back what that
/// store has. If the process dies instead, the lock ends with its lease.
#[derive(Debug)]
#[must_use = "the lock is given back when the guard is dropped"]
pub struct QuorumGuard(Arc<QuorumHold>);

/// What a node said of a release.
#[derive(Clone, Copy, PartialEq, Eq)]
enum NodeRelease {
    Released,
    Lost,
    Unknown,
}

impl QuorumGuard {
    pub(super) fn new(held: Arc<QuorumHold>) -> Self {
        Self(held)
    }

    #[cfg(test)]
    pub(super) fn held(&self) -> &QuorumHold {
        &self.0
    }

    /// The number of this grant: larger than that of every earlier grant of this lock, whichever nodes gave
    /// it, as long as no node has lost its data.
    #[must_use]
    pub fn fence(&self) -> u64 {
        self.0.fence
    }

    /// The lock's key.
    #[must_use]
    pub fn key(&self) -> &Key {
        &self.0.key
    }

    /// How long a majority is sure to be held if no renewal succeeds from now on.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        // First: it takes out the nodes that have said that they are another's.
        if self.loss().is_some() {
            return Duration::ZERO;
        }
        let until = self.0.valid_until();
        until.map_or(Duration::ZERO, |until| until.saturating_duration_since(Instant::now()))
    }

    /// Why it was lost, if it was.
    #[must_use]
    pub fn loss(&self) -> Option<LockLoss> {
        self.0.check_loss()
    }

    /// Resolves when no majority is held any more, with the reason; that is final. Cancel safe.
    pub async fn lost(&self) -> LockLoss {
        match self.0.await_end().await {
            Some(loss) => loss,
            // Given back, which takes the guard: nobody is left to ask.
            None => std::future::pending().await,
        }
    }

    /// Gives it back on all nodes, and says how that went as soon as a majority has answered. If this future is
    /// dropped, that happens all the same, in the background.
    ///
    /// [`Released::Released`]: a majority had it to the end. [`Released::AlreadyLost`]: it had not, and somebody
    /// else may have had the lock meanwhile. [`Released::Unknown`]: too few have answered; they are asked
    /// again in the background until their leases have ended.
    pub async fn release(self) -> ReleaseStatus {
        if self.loss().is_some() {
            return ReleaseStatus::AlreadyLost;
        }
        let majority = self.0.majority();
        // Sent now, to all of them: whoever drops this future has released it.
        let mut open: FuturesUnordered<_> =
            self.0.close().into_values().map(release_node).collect();
        let (mut had, mut unknown) = (0, 0);
        while had < majority && had + unknown + open.len() >= majority {
            match open.next().await {
                Some(NodeRelease::Released) => had += 1,
                Some(NodeRelease::Unknown) => unknown += 1,
                Some(NodeRelease::Lost) => {}
                None => break,
            }
        }
        if had >= majority {
            ReleaseStatus::Released
        } else if had + unknown >= majority {
            ReleaseStatus::Unknown
        } else {
            ReleaseStatus::AlreadyLost
        }
    }
}

fn release_node(hold: LockHold) -> impl Future<Output = NodeRelease> {
    let (facts, store) = (Arc::clone(hold.state()), hold.store().clone());
    let told = hold.send_release();
    async move {
        match store.await_reply(told).await {
            Some(Ok(ReleaseOutcome::Released)) => NodeRelease::Released,
            // The first of two calls may have done it: within the lease nobody else can have.
            Some(Ok(ReleaseOutcome::NotFoundOnRetry)) if facts.valid_until() > Instant::now() => {
                NodeRelease::Released
            }
            Some(Ok(ReleaseOutcome::NotFoundOnRetry) | Err(_)) | None => NodeRelease::Unknown,
            Some(Ok(_)) => NodeRelease::Lost,
        }
    }
}

impl Drop for QuorumGuard {
    fn drop(&mut self) {
        drop(self.0.close());
    }
}
