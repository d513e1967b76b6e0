//! Embedded store: the operations of `lua/*.lua` on data of this process.
//!
//! An operation locks its shard, reads the clock once, does the same as its script, and unlocks;
//! then its messages are sent. It never waits, so the future that it returns is ready at once. The
//! scripts are the specification:
//!
//! - [`lock_transaction`] is `wait_queue.lua`, [`pending_jobs`] is `job_common.lua`, and
//!   [`ended_job_index`] is `ended_jobs.lua`.
//! - [`lock_commands`], [`enqueue`], [`direct_run`] and [`claim_and_settle`] are the scripts about
//!   one lock.
//! - [`job_admin`] has the scripts about single jobs and their listings.
//! - [`worker_heartbeat`] is the workers' membership, and [`poll_due`] the search for due work.
//! - [`rate_counters`] has the scripts about quotas, and [`tasks`] those about task queues.
//! - The rest is in [`memory_shard`] and [`shard_state`].
//!
//! An expired value is absent at once for every operation; later operations free its memory.

mod backend_impl;
mod claim_and_settle;
mod direct_run;
mod ended_job_index;
mod enqueue;
mod expiring_map;
#[cfg(any(test, feature = "fsck"))]
#[path = "../fsck/memory_shard_fsck.rs"]
mod fsck;
mod idempotency_records;
mod job_admin;
mod job_backend;
mod job_backoffs;
mod job_record;
mod local_pubsub;
mod lock_commands;
mod lock_state;
mod lock_transaction;
mod memory_backend;
mod memory_shard;
#[cfg(test)]
mod model_snapshot;
mod pending_jobs;
mod poll_due;
mod rate_counters;
mod records_per_owner;
mod shard_state;
mod tasks;
mod worker_membership;

pub(crate) use self::memory_backend::MemoryBackend;
use self::memory_backend::{ready_ok, update_live_nodes};
#[cfg(test)]
pub(super) use self::model_snapshot::{ModelNames, PlantedFault};
