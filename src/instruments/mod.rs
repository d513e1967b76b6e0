//! Instruments: counters of each store handle, and metrics of the process behind the feature
//! `metrics`. A call site feeds both with one call.
//!
//! Values of labels come from code: a parameter, a route pattern, a policy, a queue. Values beyond
//! `MAX_LABEL_VALUES` of a metric are counted as `other`.

#![cfg_attr(
    not(all(feature = "metrics", feature = "redis")),
    allow(dead_code, unused_imports, reason = "recorded by metrics, or by Redis stores, only")
)]

mod deployed_policy;
#[cfg(feature = "metrics")]
pub(crate) mod handle_table;
#[cfg(feature = "metrics")]
mod metric_family;
#[cfg(feature = "metrics")]
pub(crate) mod metric_list;
mod outcomes;
mod policy_registry;
mod policy_report;
mod recording;
mod refusal_sketch;
mod refused_subject;
mod refused_subjects;
mod store_counters;
mod store_stats;
mod worker_slots;

pub use self::{
    deployed_policy::DeployedPolicy, policy_report::PolicyReport, refused_subject::RefusedSubject,
    store_stats::StoreStats,
};
pub(crate) use self::{
    outcomes::{
        DecisionOutcome, DecisionSource, EnqueueResult, HandoverVia, LockRequestOutcome,
        PushResult, RunResult, StoreCallOutcome, TaskResult, WebhookResult,
    },
    recording::{
        PolicyResult, record_batch_size, record_deferred_wait, record_handover,
        record_lock_release, record_store_call, record_task_start, record_webhook,
    },
    store_counters::StoreCounters,
    worker_slots::WorkerSlots,
};
