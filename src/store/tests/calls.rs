//! A step of any kind, and its reply.

use std::time::Duration;

use super::rig::{Looked, Rig};
use crate::{
    Key,
    store::backend::{
        AcquireCommand, AcquireReply, ChargeCommand, ChargeOutcome, ClaimCommand, ClaimOutcome,
        EnqueueCommand, EnqueueOutcome, GrantRefresh, Heartbeat, JobId, JobState, LeaseRenewal,
        LockMode, LockToken, NodeId, ReleaseOutcome, SettleCommand, SettleOutcome,
    },
};

/// A move with everything looked up.
#[derive(Debug, Clone)]
pub(super) enum Call {
    Acquire(AcquireCommand),
    Release(Key, LockToken, LockMode),
    /// Gives back and asks for the next, in one call.
    HandOn(LockToken, LockMode, AcquireCommand),
    Still(Key, LockToken),
    Downgrade(Key, LockToken, Duration),
    Renew(LeaseRenewal),
    Enqueue(EnqueueCommand),
    Claim(ClaimCommand),
    Settle(SettleCommand),
    Cancel(JobId),
    Charge(ChargeCommand),
    Beat(NodeId, Duration),
    Pause(bool),
    Unclaim(Key, LockToken, Option<JobId>),
    Redrive(JobId),
    Purge(JobId),
    Due(u16),
    Pass(Duration),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Reply {
    Acquired(AcquireReply),
    GaveBack(ReleaseOutcome),
    HandedOn(ReleaseOutcome, AcquireReply),
    Still(Option<GrantRefresh>),
    Downgraded(bool),
    Renewed(Vec<bool>),
    Enqueued(EnqueueOutcome),
    Claimed(ClaimOutcome),
    Settled(SettleOutcome),
    Cancelled(Option<JobState>),
    Charged(ChargeOutcome),
    Beaten(Heartbeat),
    Paused,
    Unclaimed(bool),
    Redriven(Option<JobState>),
    Purged(bool),
    Looked(Looked),
    Passed,
}

impl Call {
    pub(super) async fn on(self, rig: &Rig) -> Reply {
        match self {
            Self::Acquire(call) => Reply::Acquired(rig.acquire(call).await),
            Self::Release(key, me, mode) => Reply::GaveBack(rig.release_as(mode, &key, &me).await),
            Self::HandOn(me, mode, next) => {
                let (gave_back, acquired) = rig.hand_on(&me, mode, next).await;
                Reply::HandedOn(gave_back, acquired)
            }
            Self::Still(key, me) => Reply::Still(rig.still(&key, &me).await),
            Self::Downgrade(key, me, lease) => {
                Reply::Downgraded(rig.downgrade(&key, &me, lease).await)
            }
            Self::Renew(item) => Reply::Renewed(rig.renew(vec![item]).await),
            Self::Enqueue(call) => Reply::Enqueued(rig.enqueue(call).await),
            Self::Claim(call) => Reply::Claimed(rig.claim(call).await),
            Self::Settle(call) => Reply::Settled(rig.settle_and_run(call).await),
            Self::Cancel(id) => Reply::Cancelled(rig.cancel(&id).await),
            Self::Charge(call) => Reply::Charged(rig.charge(call).await),
            Self::Beat(node, lease) => {
                let mut beat = rig.beat(&node, lease).await;
                beat.peers.sort_unstable_by(|a, b| a.as_str().cmp(b.as_str()));
                Reply::Beaten(beat)
            }
            Self::Pause(paused) => {
                rig.pause(paused).await;
                Reply::Paused
            }
            Self::Unclaim(key, me, id) => {
                Reply::Unclaimed(rig.unclaim(&key, &me, id.as_ref()).await)
            }
            Self::Redrive(id) => Reply::Redriven(rig.redrive(&id).await),
            Self::Purge(id) => Reply::Purged(rig.purge(&id).await),
            Self::Due(shard) => Reply::Looked(rig.due(shard, 10).await),
            Self::Pass(time) => {
                rig.advance(time).await;
                Reply::Passed
            }
        }
    }
}
