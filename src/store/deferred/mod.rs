//! Steps of deferred requests: what goes in, and what comes out.
//!
//! A job is queued in the line of its lock, or *late* (it waits for a time outside of any line: a delay, a
//! retry that others may pass), or running, or has ended. Each step is the script of the same name.

mod enqueue_command;
mod claimed_run;
mod job_backend;
mod job_view;

pub use self::enqueue_command::OnFailure;
pub(crate) use self::{
    enqueue_command::{
        BeginDirectOutcome, WebhookJobSpec, StorageLimits, DirectRunCommand, ENDED_JOB_OVERHEAD, EnqueueCommand, EnqueueOutcome, SMALL_OWNER_JOBS, SMALL_OWNER_BYTES_PART, OWNERLESS_RESERVED_PART, JobPolicy,
        MergePolicy, RESERVED_PART, SHORT_QUEUE_JOBS, SHORT_QUEUE_BYTES_PART, MergeMode,
    },
    claimed_run::{ClaimCommand, ClaimOutcome, NextClaim, ClaimedRun, ActiveRun, SettleCommand, SettleOutcome, Settlement},
    job_backend::JobBackend,
    job_view::{Heartbeat, DueLocks, JobView, JobListPage, EndedFilter, JobHistory, PendingCursor, ShardStats},
};
