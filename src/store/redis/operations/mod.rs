//! Operations of the backend traits as script calls: typed arguments in, typed reply out.
//!
//! The files `*_backend_impl.rs` and `backend_impl.rs` implement the traits. Each other file has
//! the calls of one or a few operations.

mod adjust_and_reset_quota_counters;
mod audit_log;
mod backend_impl;
mod batched_charge;
mod block_counters;
mod cancel_redrive_purge_pause_tasks;
mod claim_and_settle_jobs;
mod cluster_heartbeat;
mod enqueue_job;
mod fleet_reports;
#[cfg(any(test, feature = "fsck"))]
#[path = "../../fsck/redis_shard_and_queue_fsck.rs"]
mod fsck;
#[cfg(any(test, feature = "fsck"))]
#[path = "../../fsck/redis_key_scan_fsck.rs"]
mod fsck_key_scan;
mod heartbeat_and_shard_assignment;
mod idempotent_direct_run;
mod idle_poll_and_run_renewal;
mod inspect_lock;
mod inspect_tasks;
mod inspection_backend_impl;
mod job_admin;
mod job_backend_impl;
mod job_lookup;
mod lock_operations;
mod notify_job_workers;
mod pause_jobs;
mod ping_and_identify;
mod policy_changes;
mod poll_due_locks;
mod push_task;
mod queue_names;
mod register_limiter;
mod settle_and_poll_tasks;
mod shard_watch_plan;
mod task_backend_impl;

use self::backend_impl::{ScriptArgs, number_arg};
pub(crate) use self::batched_charge::BatchedCharge;
