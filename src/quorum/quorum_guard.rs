//! `QuorumGuard`: guard of a lock that a majority of stores holds.

use std::{sync::Arc, time::Duration};

use futures_util::stream::{FuturesUnordered, StreamExt as _};
use tokio::time::Instant;

use super::quorum_hold::QuorumHold;
use crate::{
    key::Key,
    lock::ReleaseStatus,
    store::{LockLoss, OwnedHold, ReleaseOutcome},
};

/// Lock held by a majority of stores, and renewed, until the guard is dropped or released.
///
/// Dropping the guard never waits and needs no runtime: the lease agent of each store releases the
/// lease of that store. If the process dies, the lock ends with its lease.
#[derive(Debug)]
#[must_use = "the lock is released when the guard is dropped"]
pub struct QuorumGuard(Arc<QuorumHold>);

/// Outcome of the release on one node.
#[derive(Clone, Copy, PartialEq, Eq)]
enum NodeRelease {
    Released,
    Lost,
    Unknown,
}

impl QuorumGuard {
    pub(super) fn new(hold: Arc<QuorumHold>) -> Self {
        Self(hold)
    }

    #[cfg(test)]
    pub(super) fn quorum_hold(&self) -> &QuorumHold {
        &self.0
    }

    /// Returns the fence of this grant. It is larger than that of every earlier grant of this lock,
    /// whichever nodes granted it, as long as no node has lost its data.
    #[must_use]
    pub fn fence(&self) -> u64 {
        self.0.fence
    }

    /// Returns the lock's key.
    #[must_use]
    pub fn key(&self) -> &Key {
        &self.0.key
    }

    /// Returns how long a majority is certain to be held if no renewal succeeds from now on.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        // First, because it removes the nodes that have reported a loss.
        if self.loss().is_some() {
            return Duration::ZERO;
        }
        let valid_until = self.0.valid_until();
        valid_until.map_or(Duration::ZERO, |at| at.saturating_duration_since(Instant::now()))
    }

    /// Returns the reason of the loss, if the lock was lost.
    #[must_use]
    pub fn loss(&self) -> Option<LockLoss> {
        self.0.check_loss()
    }

    /// Resolves when no majority is held any more, with the reason; that is final. Cancel safe.
    pub async fn lost(&self) -> LockLoss {
        match self.0.await_end().await {
            Some(loss) => loss,
            // Released, which consumes the guard: no caller is left.
            None => std::future::pending().await,
        }
    }

    /// Releases the lock on all nodes, and returns the status as soon as a majority has answered.
    /// If the future is dropped, the release continues in the background.
    ///
    /// - [`ReleaseStatus::Released`]: a majority held the lock to the end.
    /// - [`ReleaseStatus::AlreadyLost`]: no majority held it, and another holder may have had the
    ///   lock.
    /// - [`ReleaseStatus::Unknown`]: too few nodes have answered. The release is repeated in the
    ///   background until their leases have ended.
    pub async fn release(self) -> ReleaseStatus {
        if self.loss().is_some() {
            return ReleaseStatus::AlreadyLost;
        }
        let majority = self.0.majority();
        // Sent to all nodes now, so that dropping this future does not stop the release.
        let mut releases: FuturesUnordered<_> =
            self.0.close().into_values().map(release_node).collect();
        let (mut released, mut unknown) = (0, 0);
        while released < majority && released + unknown + releases.len() >= majority {
            match releases.next().await {
                Some(NodeRelease::Released) => released += 1,
                Some(NodeRelease::Unknown) => unknown += 1,
                Some(NodeRelease::Lost) => {}
                None => break,
            }
        }
        if released >= majority {
            ReleaseStatus::Released
        } else if released + unknown >= majority {
            ReleaseStatus::Unknown
        } else {
            ReleaseStatus::AlreadyLost
        }
    }
}

fn release_node(hold: OwnedHold) -> impl Future<Output = NodeRelease> {
    let (state, store) = (Arc::clone(hold.state()), hold.store().clone());
    let reply = hold.send_release();
    async move {
        match store.await_reply(reply).await {
            Some(Ok(ReleaseOutcome::Released)) => NodeRelease::Released,
            // The first of two calls may have released it: within the lease, no other call can
            // have.
            Some(Ok(ReleaseOutcome::NotFoundOnRetry)) if state.valid_until() > Instant::now() => {
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
