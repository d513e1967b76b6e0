//! Shorthands for steps in a mode, and for those that change hands.

use std::time::Duration;

use super::store_harness::{StoreHarness, try_acquire_command, wait_command};
use crate::{
    Key,
    store::backend::{
        AcquireCommand, AcquireReply, GrantRefresh, LeaseRenewal, LockMode, LockToken,
        ReleaseOutcome,
    },
};

pub(super) fn try_acquire_command_as(mode: LockMode, key: &Key, me: &LockToken) -> AcquireCommand {
    AcquireCommand { mode, ..try_acquire_command(key, me) }
}

pub(super) fn wait_command_as(mode: LockMode, key: &Key, me: &LockToken) -> AcquireCommand {
    AcquireCommand { mode, ..wait_command(key, me) }
}

pub(super) fn renewal_command_as(
    mode: LockMode,
    key: &Key,
    me: &LockToken,
    lease: Duration,
) -> LeaseRenewal {
    LeaseRenewal { key: key.clone(), token: me.clone(), mode, lease, job: None }
}

impl StoreHarness {
    /// The fence.
    pub(super) async fn acquire_as(&self, mode: LockMode, key: &Key, me: &LockToken) -> u64 {
        match self.acquire(try_acquire_command_as(mode, key, me)).await {
            AcquireReply::Granted { fence, .. } => fence,
            other => panic!("expected the lock, got {other:?}"),
        }
    }

    /// Holds it for so long alone.
    pub(super) async fn acquire_with_lease(
        &self,
        mode: LockMode,
        key: &Key,
        me: &LockToken,
        lease: Duration,
    ) {
        let held =
            self.acquire(AcquireCommand { lease, ..try_acquire_command_as(mode, key, me) }).await;
        assert!(matches!(held, AcquireReply::Granted { .. }), "{held:?}");
    }

    /// The sequence of the place.
    pub(super) async fn join_queue_as(&self, mode: LockMode, key: &Key, me: &LockToken) -> u64 {
        match self.acquire(wait_command_as(mode, key, me)).await {
            AcquireReply::Busy { seq, .. } if seq > 0 => seq,
            other => panic!("expected a place in the line, got {other:?}"),
        }
    }

    /// How long it will be busy.
    pub(super) async fn expect_busy_as(
        &self,
        mode: LockMode,
        key: &Key,
        me: &LockToken,
    ) -> Duration {
        match self.acquire(try_acquire_command_as(mode, key, me)).await {
            AcquireReply::Busy { lease_remaining: left, seq: 0, .. } => left,
            other => panic!("expected it to be busy, got {other:?}"),
        }
    }

    pub(super) async fn release_as(
        &self,
        mode: LockMode,
        key: &Key,
        me: &LockToken,
    ) -> ReleaseOutcome {
        self.backend().release(key.clone(), me.clone(), mode).await.unwrap()
    }

    /// Gives back, and asks for the next of the same process.
    pub(super) async fn release_and_reacquire(
        &self,
        me: &LockToken,
        mode: LockMode,
        next: AcquireCommand,
    ) -> (ReleaseOutcome, AcquireReply) {
        self.backend().release_and_reacquire(me.clone(), mode, next).await.unwrap()
    }

    pub(super) async fn refresh_grant(&self, key: &Key, me: &LockToken) -> Option<GrantRefresh> {
        self.backend().refresh_grant(key.clone(), me.clone()).await.unwrap()
    }

    pub(super) async fn downgrade(&self, key: &Key, me: &LockToken, lease: Duration) -> bool {
        self.backend().downgrade(key.clone(), me.clone(), lease).await.unwrap()
    }
}

/// What it is held with.
pub(super) fn granted_fence(reply: &AcquireReply) -> u64 {
    match reply {
        AcquireReply::Granted { fence, .. } => *fence,
        other => panic!("expected the lock, got {other:?}"),
    }
}

/// The sequence of a place, which this call made or kept.
pub(super) fn queued_sequence(reply: &AcquireReply) -> u64 {
    match reply {
        AcquireReply::Busy { seq, .. } if *seq > 0 => *seq,
        other => panic!("expected a place in the line, got {other:?}"),
    }
}
