//! Operations on deferred requests: their commands and outcomes, and the trait `JobBackend`.
//!
//! A job is queued behind its lock, delayed, running, or ended. A delayed job waits for a time
//! outside of any queue: for its delay, or for a retry that other jobs may overtake.

mod claimed_run;
mod enqueue_command;
mod job_backend;
mod job_view;

pub use self::enqueue_command::OnFailure;
pub(crate) use self::{
    claimed_run::{
        ActiveRun, ClaimCommand, ClaimOutcome, ClaimedRun, NextClaim, SettleCommand, SettleOutcome,
        Settlement,
    },
    enqueue_command::{
        BeginDirectOutcome, DirectRunCommand, ENDED_JOB_OVERHEAD, EnqueueCommand, EnqueueOutcome,
        JobPolicy, MergeMode, MergePolicy, OWNERLESS_RESERVED_PART, RESERVED_PART,
        SHORT_QUEUE_BYTES_PART, SHORT_QUEUE_JOBS, SMALL_OWNER_BYTES_PART, SMALL_OWNER_JOBS,
        StorageLimits, WebhookJobSpec,
    },
    job_backend::JobBackend,
    job_view::{
        DueLocks, EndedFilter, Heartbeat, JobHistory, JobListPage, JobView, PendingCursor,
        ShardStats,
    },
};
