//! Task queues.

#[cfg(feature = "redis")]
mod backend_equivalence;
mod dead_letters;
mod idle_workers;
mod large_tasks;
mod polling_worker;
mod purge_waiting;
mod push_task;
#[cfg(feature = "redis")]
mod queue_check;
mod run_limits;
mod run_now;
mod run_outcomes;
mod settle_and_start;
mod task_listing;

use super::{on_every_store, store_harness::StoreHarness};
