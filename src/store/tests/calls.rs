//! A step of any kind, and its reply.

use std::time::Duration;

use super::rig::Rig;
use crate::{
    Key,
    store::backend::{
        Acquire, Acquired, Charge, Charged, Claim, Claimed, Enqueue, Enqueued, GaveBack, JobId,
        JobState, Mode, Node, Renewal, Settle, Token,
    },
};

/// A move with everything looked up.
#[derive(Debug, Clone)]
pub(super) enum Call {
    Acquire(Acquire),
    Release(Key, Token, Mode),
    /// Gives back and asks for the next, in one call.
    HandOn(Token, Mode, Acquire),
    Downgrade(Key, Token, Duration),
    Renew(Renewal),
    Enqueue(Enqueue),
    Claim(Claim),
    Settle(Settle),
    Cancel(JobId),
    Charge(Charge),
    Watch(Node, Duration, usize),
    Present(Node, Duration),
    Pass(Duration),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Reply {
    Acquired(Acquired),
    GaveBack(GaveBack),
    HandedOn(GaveBack, Acquired),
    Downgraded(bool),
    Renewed(Vec<bool>),
    Enqueued(Enqueued),
    Claimed(Claimed),
    Settled(bool),
    Cancelled(Option<JobState>),
    Charged(Charged),
    Watched(Vec<u16>),
    Present(usize),
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
            Self::Downgrade(key, me, lease) => {
                Reply::Downgraded(rig.downgrade(&key, &me, lease).await)
            }
            Self::Renew(item) => Reply::Renewed(rig.renew(vec![item]).await),
            Self::Enqueue(call) => Reply::Enqueued(rig.enqueue(call).await),
            Self::Claim(call) => Reply::Claimed(rig.claim(call).await),
            Self::Settle(call) => Reply::Settled(rig.settle(call).await),
            Self::Cancel(id) => Reply::Cancelled(rig.cancel(&id).await),
            Self::Charge(call) => Reply::Charged(rig.charge(call).await),
            Self::Watch(node, lease, most) => Reply::Watched(rig.watch(&node, lease, most).await),
            Self::Present(node, lease) => Reply::Present(rig.present(&node, lease).await),
            Self::Pass(time) => {
                rig.advance(time).await;
                Reply::Passed
            }
        }
    }
}
