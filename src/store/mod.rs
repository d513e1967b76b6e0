//! The store: where locks, lines, quotas and deferred requests live. The only room that knows Redis.
//!
//! [`Store`] is a cheap handle that all three layers, and code beneath them, share. It is one of two
//! things behind one trait: Redis (or Valkey), for more than one process, or [`Store::memory`], the
//! same steps in this process. What every request is promised here: an answer within the deadline.

mod lease_agent;
mod grant_attempt;
mod backend;
mod charge_future;
mod deferred;
mod direct_run_counter;
mod record_completion;
mod hold_state;
#[cfg(any(test, feature = "fsck"))]
mod fsck;
mod store_handle;
mod wakeups;
mod lock_hold;
mod job_id;
mod job_watch;
#[cfg(any(feature = "redis", test))]
mod key_names;
mod lock_lease;
mod memory;
mod rate;
#[cfg(feature = "redis")]
mod redis;
mod renewal_scheduler;
mod agent_runtime;
mod tasks;
#[cfg(test)]
mod tests;

pub(crate) use self::backend::{
    OFFER_TIMEOUT, AcquireCommand, AcquireReply, Heartbeat, BeginDirectOutcome, WebhookJobSpec, StorageLimits, ChargeFuture, ClaimCommand, ClaimOutcome, DirectRunCommand,
    DueLocks, EnqueueCommand, EnqueueOutcome, ReleaseOutcome, JobPolicy, JobView, EndedFilter, MergePolicy, LockMode, NextClaim, NodeId,
    Contenders, PendingCursor, ClaimedRun, SPARE_FENCES, SettleCommand, SettleOutcome, ShardStats, LockToken, Settlement, MergeMode,
    random_hex_id,
};
#[cfg(any(test, feature = "fsck"))]
pub use self::fsck::{StoreCheck, CheckReport, CheckFinding, FindingKind};
pub(crate) use self::wakeups::{WakeupMessage, JoinListener};
pub(crate) use self::job_watch::{JobWatch, PollFreshness};
#[cfg(test)]
pub(crate) use self::key_names::{KeyNames, CounterKeyKind};
#[cfg(any(test, feature = "test-kit"))]
pub(crate) use self::memory::MemoryBackend;
#[cfg(test)]
pub(crate) use self::rate::Algorithm;
pub(crate) use self::rate::{
    AdjustmentKind, ChargeCommand, ChargeOutcome, CounterName, ChargeItem, Penalty, QuotaRule, SettleChargeCommand, ChargeAdjustment, QuotaSnapshot, QuotaSnapshots, ChargedWindow,
};
#[cfg(feature = "redis")]
pub use self::redis::StoreBuilder;
pub(crate) use self::tasks::{
    TaskSettlement, TaskOutcome, DeadLetterLimits, TaskRunLimits, MAX_TASKS_PER_STEP, MAX_BYTES_PER_STEP, TaskPushCommand, TaskPushOutcome, MAX_REASON_BYTES, TaskRecord,
    RunToken, StartedTask, TaskView, TaskPollCommand, TaskPollOutcome, UniqueKey,
};
#[cfg(test)]
pub(crate) use self::tests::{Fault, Faults, Log, elsewhere, faulty, faulty_with_clock, spawn};
#[cfg(all(test, feature = "redis"))]
pub(crate) use self::tests::{Front, says};
pub(crate) use self::{
    grant_attempt::GrantAttempt,
    direct_run_counter::{DirectRunPermit, DirectRunCounter},
    record_completion::{RecordOutcome, RecordCompletion},
    hold_state::HoldState,
    store_handle::WeakStore,
    lock_hold::LockHold,
    lock_lease::{LockLease, LossWatcher, LeaseTerms, ensure_replicated},
};
pub use self::{deferred::OnFailure, hold_state::LockLoss};
pub use self::{
    store_handle::Store,
    job_id::{JobId, JobState},
    tasks::{QueueStats, TaskFault, TaskId, TaskState},
};
