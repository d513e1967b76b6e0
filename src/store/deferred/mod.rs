//! Operations on deferred requests: their commands and outcomes, and the trait `JobBackend`.
//!
//! A job is queued behind its lock, delayed, running, or ended. A delayed job waits for a time
//! outside of any queue: for its delay, or for a retry that other jobs may overtake.

mod claim_and_settle_command;
mod direct_run_command;
mod enqueue_command;
mod heartbeat_reply_and_due_locks;
mod job_backend;
mod job_list_page;
mod job_view;
mod shard_stats;
mod storage_limits;

pub use self::enqueue_command::OnFailure;
pub(crate) use self::{
    claim_and_settle_command::{
        ActiveRun, ClaimCommand, ClaimOutcome, ClaimedRun, NextClaim, SettleCommand, SettleOutcome,
        Settlement,
    },
    direct_run_command::{BeginDirectOutcome, DirectRunCommand},
    enqueue_command::{
        EnqueueCommand, EnqueueOutcome, JobPolicy, MergeMode, MergePolicy, WebhookJobSpec,
    },
    heartbeat_reply_and_due_locks::{DueLocks, HeartbeatReply, SHARD_VACANCY_GRACE},
    job_backend::JobBackend,
    job_list_page::{EndedJobFilter, JobListPage, PendingCursor},
    job_view::{JobHistory, JobView},
    shard_stats::ShardStats,
    storage_limits::{
        ENDED_JOB_OVERHEAD, OWNERLESS_RESERVED_PART, RESERVED_PART, SHORT_QUEUE_BYTES_PART,
        SHORT_QUEUE_JOBS, SMALL_OWNER_BYTES_PART, SMALL_OWNER_JOBS, StorageLimits,
    },
};
