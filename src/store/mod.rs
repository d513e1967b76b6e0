//! The store: the shared state of locks, wait queues, quotas, task queues and deferred requests.
//!
//! [`Store`] is a cheap handle that all layers, and code beneath them, share. It has one of two
//! backends behind the trait `Backend`: Redis (or Valkey), for several processes, or
//! [`Store::memory`], which implements the same operations inside this process. This is the only
//! module that knows Redis. Every operation ends within the store's deadline.

mod agent_runtime;
mod backend;
mod charge_future;
mod deferred;
#[cfg(any(test, feature = "fsck"))]
mod fsck;
mod grant_attempt;
mod hold_route;
mod hold_state;
mod idempotency_record_completion;
mod inspection;
mod job_id;
#[cfg(any(feature = "redis", test))]
mod key_names;
#[cfg(any(test, feature = "test-kit"))]
mod layer_requests;
mod lease_agent;
mod live_stores;
mod local_direct_run_tracker;
mod lock_commands_and_outcomes;
mod lock_lease;
mod lock_mode;
mod lock_token;
mod log_names;
mod memory;
mod node_id;
mod owned_hold;
mod rate;
#[cfg(feature = "redis")]
mod redis;
mod renewal_scheduler;
mod run_cancellation;
mod shared_job_poll;
mod store_handle;
mod store_trace_propagator;
mod tasks;
#[cfg(test)]
mod tests;
mod wakeup_listeners;
mod wakeup_message;

pub(crate) use self::backend::{
    AcquireCommand, AcquireReply, BeginDirectOutcome, ChargeFuture, ClaimCommand, ClaimOutcome,
    ClaimedRun, Contenders, DirectRunCommand, DueLocks, EndedJobFilter, EnqueueCommand,
    EnqueueOutcome, HeartbeatReply, JobPolicy, JobView, LockMode, LockToken, MergeMode,
    MergePolicy, NextClaim, NodeId, OFFER_TIMEOUT, PendingCursor, ReleaseOutcome, SPARE_FENCES,
    SettleCommand, SettleOutcome, Settlement, ShardStats, StorageLimits, WebhookJobSpec,
    random_hex_id,
};
#[cfg(any(test, feature = "fsck"))]
pub use self::fsck::{CheckFinding, CheckProgress, CheckReport, FindingKind, StoreCheck};
pub(crate) use self::inspection::{HolderKind, LockSnapshot, SnapshotHolder};
#[cfg(test)]
pub(crate) use self::key_names::{CounterKeyKind, KeyNames};
#[cfg(feature = "test-kit")]
pub(crate) use self::layer_requests::layer_request_count;
#[cfg(feature = "serve")]
pub(crate) use self::live_stores::created_store_count;
#[cfg(any(test, feature = "test-kit"))]
pub(crate) use self::memory::MemoryBackend;
pub(crate) use self::rate::{
    AdjustmentKind, Algorithm, ChargeAdjustment, ChargeCommand, ChargeItem, ChargeOutcome,
    ChargedWindow, CounterName, Penalty, QuotaRule, QuotaSnapshot, QuotaSnapshots,
    SettleChargeCommand, StoredPolicyChanges,
};
#[cfg(feature = "redis")]
pub use self::redis::StoreBuilder;
pub(crate) use self::shared_job_poll::{PollFreshness, SharedJobPoll};
pub(crate) use self::tasks::{
    DeadLetterLimits, MAX_BYTES_PER_STEP, MAX_REASON_BYTES, MAX_TASKS_PER_STEP, RunToken,
    StartedTask, TaskOutcome, TaskPollCommand, TaskPollOutcome, TaskPushCommand, TaskPushOutcome,
    TaskRecord, TaskRunLimits, TaskSettlement, TaskView, UniqueKey,
};
#[cfg(test)]
pub(crate) use self::tests::{
    BackendFault, CapturedLog, FaultSchedule, acquire_as_killed_process, faulty_store,
    faulty_store_with_clock, spawn, with_stalled_stores,
};
#[cfg(all(test, feature = "redis"))]
pub(crate) use self::tests::{ScriptedProxy, reply_script};
pub use self::{
    deferred::OnFailure,
    hold_state::LockLoss,
    inspection::{FleetReport, HoldReport, ProcessReport, SilentNode, WaitReport, WorkerReport},
};
pub(crate) use self::{
    grant_attempt::GrantAttempt,
    hold_route::HoldRoute,
    hold_state::HoldState,
    idempotency_record_completion::{IdempotencyRecordCompletion, IdempotencyRecordOutcome},
    live_stores::live_store_count,
    local_direct_run_tracker::{DirectRunPermit, LocalDirectRunTracker},
    lock_lease::{LeaseTerms, LockLease, LossWatcher, ensure_replicated},
    owned_hold::OwnedHold,
    store_handle::WeakStore,
};
pub use self::{
    job_id::{JobId, JobState},
    run_cancellation::RunCancellation,
    store_handle::Store,
    tasks::{QueueStats, TaskFault, TaskFilter, TaskId, TaskState},
};
pub(crate) use self::{wakeup_listeners::JoinListener, wakeup_message::WakeupMessage};
