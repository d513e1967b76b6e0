//! Operations in a lock mode, for the test harness.

use std::time::Duration;

use super::store_harness::{StoreHarness, try_acquire_command, wait_command};
use crate::{
    Key,
    store::backend::{
        AcquireCommand, AcquireReply, GrantRefresh, LeaseRenewal, LockMode, LockToken,
        ReleaseOutcome,
    },
};

pub(super) fn try_acquire_command_as(
    mode: LockMode,
    key: &Key,
    token: &LockToken,
) -> AcquireCommand {
    AcquireCommand { mode, ..try_acquire_command(key, token) }
}

pub(super) fn wait_command_as(mode: LockMode, key: &Key, token: &LockToken) -> AcquireCommand {
    AcquireCommand { mode, ..wait_command(key, token) }
}

pub(super) fn renewal_command_as(
    mode: LockMode,
    key: &Key,
    token: &LockToken,
    lease: Duration,
) -> LeaseRenewal {
    LeaseRenewal { key: key.clone(), token: token.clone(), mode, lease, job: None }
}

impl StoreHarness {
    /// Acquires the lock. Returns the fence.
    pub(super) async fn acquire_as(&self, mode: LockMode, key: &Key, token: &LockToken) -> u64 {
        match self.acquire(try_acquire_command_as(mode, key, token)).await {
            AcquireReply::Granted { fence, .. } => fence,
            other => panic!("expected the lock, got {other:?}"),
        }
    }

    /// Acquires the lock with this lease.
    pub(super) async fn acquire_with_lease(
        &self,
        mode: LockMode,
        key: &Key,
        token: &LockToken,
        lease: Duration,
    ) {
        let held = self
            .acquire(AcquireCommand { lease, ..try_acquire_command_as(mode, key, token) })
            .await;
        assert!(matches!(held, AcquireReply::Granted { .. }), "{held:?}");
    }

    /// Joins the queue. Returns the sequence of the queue entry.
    pub(super) async fn join_queue_as(&self, mode: LockMode, key: &Key, token: &LockToken) -> u64 {
        match self.acquire(wait_command_as(mode, key, token)).await {
            AcquireReply::Busy { seq, .. } if seq > 0 => seq,
            other => panic!("expected a queue entry, got {other:?}"),
        }
    }

    /// Expects the lock to be busy. Returns the remaining lease.
    pub(super) async fn expect_busy_as(
        &self,
        mode: LockMode,
        key: &Key,
        token: &LockToken,
    ) -> Duration {
        match self.acquire(try_acquire_command_as(mode, key, token)).await {
            AcquireReply::Busy { lease_remaining, seq: 0, .. } => lease_remaining,
            other => panic!("expected it to be busy, got {other:?}"),
        }
    }

    pub(super) async fn release_as(
        &self,
        mode: LockMode,
        key: &Key,
        token: &LockToken,
    ) -> ReleaseOutcome {
        self.backend().release(key.clone(), token.clone(), mode).await.unwrap()
    }

    /// Releases, and acquires for the next waiter of the same process.
    pub(super) async fn release_and_reacquire(
        &self,
        token: &LockToken,
        mode: LockMode,
        next: AcquireCommand,
    ) -> (ReleaseOutcome, AcquireReply) {
        self.backend().release_and_reacquire(token.clone(), mode, next).await.unwrap()
    }

    pub(super) async fn refresh_grant(&self, key: &Key, token: &LockToken) -> Option<GrantRefresh> {
        self.backend().refresh_grant(key.clone(), token.clone()).await.unwrap()
    }

    pub(super) async fn downgrade(&self, key: &Key, token: &LockToken, lease: Duration) -> bool {
        self.backend().downgrade(key.clone(), token.clone(), lease).await.unwrap()
    }
}

/// Returns the fence of a grant.
pub(super) fn granted_fence(reply: &AcquireReply) -> u64 {
    match reply {
        AcquireReply::Granted { fence, .. } => *fence,
        other => panic!("expected the lock, got {other:?}"),
    }
}

/// Returns the sequence of a queue entry that the call created or renewed.
pub(super) fn queued_sequence(reply: &AcquireReply) -> u64 {
    match reply {
        AcquireReply::Busy { seq, .. } if *seq > 0 => *seq,
        other => panic!("expected a queue entry, got {other:?}"),
    }
}
