//! A step of any kind, and its reply.

use std::time::Duration;

use super::rig::{Looked, Rig};
use crate::{
    Key,
    store::backend::{
        Acquire, Acquired, Beat, Charge, Charged, Claim, Claimed, Enqueue, Enqueued, GaveBack,
        JobId, JobState, Mode, Node, Renewal, Settle, SettledRun, Still, Token,
    },
};

/// A move with everything looked up.
#[derive(Debug, Clone)]
pub(super) enum Call {
    Acquire(Acquire),
    Release(Key, Token, Mode),
    /// Gives back and asks for the next, in one call.
    HandOn(Token, Mode, Acquire),
    Still(Key, Token),
    Downgrade(Key, Token, Duration),
    Renew(Renewal),
    Enqueue(Enqueue),
    Claim(Claim),
    Settle(Settle),
    Cancel(JobId),
    Charge(Charge),
    Beat(Node, Duration),
    Pause(bool),
    Unclaim(Key, Token, Option<JobId>),
    Redrive(JobId),
    Purge(JobId),
    Due(u16),
    Pass(Duration),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Reply {
    Acquired(Acquired),
    GaveBack(GaveBack),
    HandedOn(GaveBack, Acquired),
    Still(Option<Still>),
    Downgraded(bool),
    Renewed(Vec<bool>),
    Enqueued(Enqueued),
    Claimed(Claimed),
    Settled(SettledRun),
    Cancelled(Option<JobState>),
    Charged(Charged),
    Beaten(Beat),
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
                beat.others.sort_unstable_by(|a, b| a.as_str().cmp(b.as_str()));
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
