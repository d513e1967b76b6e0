//! `ClaimCommand` and `SettleCommand`: claim of a lock's first job, and settlement of its run.

use std::time::Duration;

use bytes::Bytes;

use crate::{
    key::Key,
    store::{backend::LockToken, job_id::JobId},
};

/// Arguments of `JobBackend::claim`.
#[derive(Debug, Clone)]
pub(crate) struct ClaimCommand {
    pub(crate) key: Key,
    pub(crate) id: JobId,
    pub(crate) token: LockToken,
    pub(crate) lease: Duration,
    pub(crate) retention: Duration,
}

/// Outcome of a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ClaimOutcome {
    Claimed(ClaimedRun),
    Busy(Duration),
    NotDue(Duration),
    NotFirst(JobId),
    QueueEmpty,
    /// The job has ended without another run: its worker crashed, or its deadline passed. Another
    /// job is first now.
    Ended(JobId),
}

/// Run that has started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ClaimedRun {
    pub(crate) id: JobId,
    pub(crate) fence: u64,
    pub(crate) attempt: u32,
    pub(crate) envelope: Bytes,
    pub(crate) accepted_us: u64,
    /// Another job was queued behind it at the start.
    pub(crate) has_next: bool,
    /// The lock was free without an offer to the job: its last holder did not release it, or no
    /// worker watched the shard. Only of a claim.
    pub(crate) was_not_offered: bool,
    /// Time since the start of the job's last run, if that has not ended: its process has gone, or
    /// has lost the lock. Only of a claim.
    pub(crate) crashed_run_age: Option<Duration>,
}

/// Run that is in progress, under a lock that is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ActiveRun {
    pub(crate) attempt: u32,
    /// First fence of the run. All earlier runs had smaller ones.
    pub(crate) first_fence: u64,
}

/// Arguments of `JobBackend::settle`.
#[derive(Debug, Clone)]
pub(crate) struct SettleCommand {
    pub(crate) key: Key,
    pub(crate) id: JobId,
    pub(crate) token: LockToken,
    pub(crate) settlement: Settlement,
    /// Claims the next job of this lock in the same operation, if it may run: the caller has a free
    /// run slot.
    pub(crate) next_claim: Option<NextClaim>,
}

/// Claim that is sent with a settlement.
#[derive(Debug, Clone)]
pub(crate) struct NextClaim {
    pub(crate) token: LockToken,
    pub(crate) lease: Duration,
    pub(crate) retention: Duration,
}

/// Outcome of a settlement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SettleOutcome {
    /// The run had been lost, so nothing was written.
    RunLost,
    /// The settlement is stored. Contains the run of the next job, if it was requested and there is
    /// one.
    Settled(Option<ClaimedRun>),
}

/// Result of a run, by which its job ends or returns to the queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Settlement {
    Done {
        response: Bytes,
        /// Status of the response, for the job's webhook.
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
    /// Retry after `delay`, without charging the attempt. Other jobs may overtake it if they may
    /// overtake a retry. The reason `busy` is counted separately.
    Postpone {
        delay: Duration,
        reason: &'static str,
    },
    /// An operator has cancelled the run. The job ends like a waiting one that is cancelled, and no
    /// other job is claimed.
    Cancelled {
        retention: Duration,
    },
    /// Like `Postpone`, for the next worker. The job is not at fault, so no other job overtakes it.
    ReturnToQueue {
        delay: Duration,
        reason: &'static str,
    },
    /// End of a webhook job. If the reported job has ended again meanwhile, the webhook job returns
    /// to the queue instead, with all its attempts, and reports the new end.
    WebhookSettled {
        /// Time of the end that was reported.
        ended_us: u64,
        /// Response and status, if the job is done. `None`: it is dead.
        response: Option<(Bytes, u16)>,
        /// Reason, if the job is dead.
        reason: &'static str,
        retention: Duration,
    },
}
