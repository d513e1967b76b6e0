//! `StoreCall` and `StoreReply`: an operation of any kind, and its reply.

use std::time::Duration;

use super::store_harness::{DuePoll, StoreHarness};
use crate::{
    Key,
    store::backend::{
        AcquireCommand, AcquireReply, ChargeCommand, ChargeOutcome, ClaimCommand, ClaimOutcome,
        EnqueueCommand, EnqueueOutcome, GrantRefresh, HeartbeatReply, JobId, JobState,
        LeaseRenewal, LockMode, LockToken, NodeId, ReleaseOutcome, SettleCommand, SettleOutcome,
    },
};

/// An operation with all arguments resolved.
#[derive(Debug, Clone)]
pub(super) enum StoreCall {
    Acquire(AcquireCommand),
    Release(Key, LockToken, LockMode),
    /// Releases, and acquires for a sibling token, in one call.
    ReleaseAndReacquire(LockToken, LockMode, AcquireCommand),
    RefreshGrant(Key, LockToken),
    Downgrade(Key, LockToken, Duration),
    ForceRelease(Key),
    Renew(LeaseRenewal),
    Enqueue(EnqueueCommand),
    Claim(ClaimCommand),
    Settle(SettleCommand),
    Cancel(JobId),
    Charge(ChargeCommand),
    Heartbeat(NodeId, Duration),
    SetPaused(bool),
    Unclaim(Key, LockToken, Option<JobId>),
    Redrive(JobId),
    Purge(JobId),
    PollDue(u16),
    AdvanceTime(Duration),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum StoreReply {
    Acquired(AcquireReply),
    Released(ReleaseOutcome),
    ReleasedAndReacquired(ReleaseOutcome, AcquireReply),
    GrantRefreshed(Option<GrantRefresh>),
    Downgraded(bool),
    /// Number of holders.
    ForceReleased(usize),
    Renewed(Vec<bool>),
    Enqueued(EnqueueOutcome),
    Claimed(ClaimOutcome),
    Settled(SettleOutcome),
    Cancelled(Option<JobState>),
    Charged(ChargeOutcome),
    Heartbeat(HeartbeatReply),
    PauseChanged,
    Unclaimed(bool),
    Redriven(Option<JobState>),
    Purged(bool),
    DuePolled(DuePoll),
    TimeAdvanced,
}

impl StoreCall {
    pub(super) async fn run_on(self, rig: &StoreHarness) -> StoreReply {
        match self {
            Self::Acquire(call) => StoreReply::Acquired(rig.acquire(call).await),
            Self::Release(key, token, mode) => {
                StoreReply::Released(rig.release_as(mode, &key, &token).await)
            }
            Self::ReleaseAndReacquire(token, mode, next) => {
                let (released, acquired) = rig.release_and_reacquire(&token, mode, next).await;
                StoreReply::ReleasedAndReacquired(released, acquired)
            }
            Self::RefreshGrant(key, token) => {
                StoreReply::GrantRefreshed(rig.refresh_grant(&key, &token).await)
            }
            Self::Downgrade(key, token, lease) => {
                StoreReply::Downgraded(rig.downgrade(&key, &token, lease).await)
            }
            Self::ForceRelease(key) => {
                StoreReply::ForceReleased(rig.backend().force_release(key).await.unwrap())
            }
            Self::Renew(item) => StoreReply::Renewed(rig.renew(vec![item]).await),
            Self::Enqueue(call) => StoreReply::Enqueued(rig.enqueue(call).await),
            Self::Claim(call) => StoreReply::Claimed(rig.claim(call).await),
            Self::Settle(call) => StoreReply::Settled(rig.settle_and_claim(call).await),
            Self::Cancel(id) => StoreReply::Cancelled(rig.cancel(&id).await),
            Self::Charge(call) => StoreReply::Charged(rig.charge(call).await),
            Self::Heartbeat(node, lease) => {
                let mut heartbeat = rig.heartbeat(&node, lease).await;
                heartbeat.peers.sort_unstable_by(|a, b| a.as_str().cmp(b.as_str()));
                StoreReply::Heartbeat(heartbeat)
            }
            Self::SetPaused(paused) => {
                rig.set_jobs_paused(paused).await;
                StoreReply::PauseChanged
            }
            Self::Unclaim(key, token, id) => {
                StoreReply::Unclaimed(rig.unclaim(&key, &token, id.as_ref()).await)
            }
            Self::Redrive(id) => StoreReply::Redriven(rig.redrive(&id).await),
            Self::Purge(id) => StoreReply::Purged(rig.purge(&id).await),
            Self::PollDue(shard) => StoreReply::DuePolled(rig.poll_due(shard, 10).await),
            Self::AdvanceTime(time) => {
                rig.advance(time).await;
                StoreReply::TimeAdvanced
            }
        }
    }
}
