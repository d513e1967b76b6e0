//! Embedded store: the operations of `lua/*.lua` on data of this process.
//!
//! An operation locks its shard, reads the clock once, does the same as its script, and unlocks;
//! then its messages are sent. It never waits, so the future that it returns is ready at once. The
//! scripts are the specification:
//!
//! - [`lock_transaction`] is `wait_queue.lua`, [`pending_job_transitions`] is
//!   `pending_job_bookkeeping.lua`, and [`ended_job_index`] is `ended_job_bookkeeping.lua`.
//! - [`lock_commands`], [`enqueue_job`], [`idempotent_direct_run`], [`claim_and_unclaim_job`]
//!   and [`settle_job_and_claim_next`] are the scripts about one lock.
//! - [`job_admin`] has the scripts about single jobs, their listings and their pause.
//! - [`worker_membership`] is the workers' membership with their shards, and [`poll_due_locks`] the
//!   search for due work.
//! - [`rate_counters`] has the scripts about quotas, and [`tasks`] those about task queues.
//! - The rest is in [`memory_shard`] and [`shard_state`].
//!
//! An expired value is absent at once for every operation; later operations free its memory.

mod backend_impl;
mod claim_and_unclaim_job;
mod ended_job_index;
mod enqueue_or_merge_job;
#[cfg(test)]
mod exhaustive_model_support;
mod expiring_map;
#[cfg(any(test, feature = "fsck"))]
#[path = "../fsck/memory_shard_fsck.rs"]
mod fsck;
mod idempotency_record_expiry_and_limit;
mod idempotent_direct_run;
mod inspection_backend_impl;
mod job_admin;
mod job_backend_impl;
mod job_record;
mod local_pubsub;
mod lock_commands;
mod lock_holders_and_queue;
mod lock_inspection;
mod lock_job_backoffs;
mod lock_transaction;
mod memory_backend;
mod memory_shard;
mod pending_job_transitions;
mod poll_due_locks;
mod rate_counters;
mod records_per_owner;
mod schedule_and_enqueue_webhook;
mod settle_job_and_claim_next;
mod shard_state;
mod tasks;
mod worker_membership;

#[cfg(test)]
pub(super) use self::exhaustive_model_support::{ModelClientNumbers, PlantedFault};
pub(crate) use self::memory_backend::MemoryBackend;
use self::memory_backend::{ready_ok, update_live_nodes};
