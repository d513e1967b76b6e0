//! A run: it is claimed, and settled.

use std::time::Duration;

use bytes::Bytes;

use crate::{
    key::Key,
    store::{backend::LockToken, job_id::JobId},
};

/// `claim.lua`.
#[derive(Debug, Clone)]
pub(crate) struct ClaimCommand {
    pub(crate) key: Key,
    pub(crate) id: JobId,
    pub(crate) token: LockToken,
    pub(crate) lease: Duration,
    pub(crate) retention: Duration,
}

#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(clippy::enum_variant_names, reason = "the words of the script")]
pub(crate) enum ClaimOutcome {
    Claimed(ClaimedRun),
    Busy(Duration),
    NotDue(Duration),
    NotFirst(JobId),
    QueueEmpty,
    /// Its worker died, or its time was over: it has ended, and another one is first now.
    Ended(JobId),
}

/// A run that has begun.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ClaimedRun {
    pub(crate) id: JobId,
    pub(crate) fence: u64,
    pub(crate) attempt: u32,
    pub(crate) envelope: Bytes,
    pub(crate) accepted_us: u64,
    /// Another job stood behind it then.
    pub(crate) has_next: bool,
}

/// A run that is under way, on a lock that is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ActiveRun {
    pub(crate) attempt: u32,
    /// The first fence that the run was given; that of every earlier run is smaller.
    pub(crate) first_fence: u64,
}

/// `settle.lua`.
#[derive(Debug, Clone)]
pub(crate) struct SettleCommand {
    pub(crate) key: Key,
    pub(crate) id: JobId,
    pub(crate) token: LockToken,
    pub(crate) settlement: Settlement,
    /// The caller has room for the next job of this line, if it is its turn: claims it in the same step.
    pub(crate) next_claim: Option<NextClaim>,
}

/// The claim that goes along with a settlement.
#[derive(Debug, Clone)]
pub(crate) struct NextClaim {
    pub(crate) token: LockToken,
    pub(crate) lease: Duration,
    pub(crate) retention: Duration,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SettleOutcome {
    /// The run had been lost: nothing was written.
    RunLost,
    /// The verdict stands; the run of the next job, if it was asked for and there is one.
    Settled(Option<ClaimedRun>),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Settlement {
    Done {
        response: Bytes,
        /// Of that response, for who is told.
        status: u16,
        retention: Duration,
    },
    Dead {
        reason: &'static str,
        retention: Duration,
    },
    Retry {
        delay: Duration,
        reason: &'static str,
    },
    /// Not charged as an attempt, and to be tried again after this time, as a retry is: where others may pass one
    /// that waits, they do. The reason `busy` is counted apart.
    Postpone {
        delay: Duration,
        reason: &'static str,
    },
    /// As `Postpone`, for whoever comes next: nothing is the matter with the job, and so nobody passes it.
    ReturnToQueue {
        delay: Duration,
        reason: &'static str,
    },
    /// Of a call: it ends. Unless another end than the one it was about is to be told by now: then it goes back, and
    /// tells of that, with all attempts to come.
    WebhookSettled {
        /// When that one was.
        ended_us: u64,
        /// The response, and its status: it is done. `None`: it is dead.
        response: Option<(Bytes, u16)>,
        /// Of a dead one.
        reason: &'static str,
        retention: Duration,
    },
}
