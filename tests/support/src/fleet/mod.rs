//! Histories under random faults: processes on one server or cluster, the faults that hit them,
//! and the checks that all domains share.
//!
//! [`run_history`] runs one. The processes run the same program, `lockgate-faults`. A `FleetDomain`
//! supplies the work and the records of its processes, its own checks and its figures.
//! `DomainRules` list its faults and their weights. Shared by all of them:
//!
//! | module | content |
//! |---|---|
//! | `process_fleet`, `child_process` | start, replacement, kill and stop of processes, each behind its own proxy |
//! | `injected_fault`, `fault_injection` | the faults, and the injection of each one |
//! | `fault_schedule` | the schedule of faults by seed, and the measurements of a soak |
//! | `disturbance_log`, `stall_monitor` | times at which a fault or the machine disturbed a process |
//! | `process_control`, `event_log`, `run_recorder` | inside a process: its commands, and the events that it records |
//! | `closing_checks` | N1: the store is empty, and no process makes a call |

mod child_process;
pub(crate) mod clock;
mod closing_checks;
mod disturbance_log;
pub(crate) mod event_log;
mod fault_injection;
mod fault_schedule;
mod fleet_domain;
mod history_report;
mod injected_fault;
pub(crate) mod process_control;
mod process_fleet;
mod redis_topology;
pub(crate) mod register_client;
pub(crate) mod run_recorder;
pub(crate) mod seeded_rng;
pub(crate) mod stall_monitor;

use std::{path::PathBuf, time::Duration};

pub use self::{
    child_process::ChildProcess, fleet_domain::run_history, history_report::HistoryReport,
    process_control::ProcessArgs, process_fleet::ProcessFleet, redis_topology::RedisTopology,
};
pub(crate) use self::{
    closing_checks::ClosingChecks,
    disturbance_log::DisturbanceLog,
    fleet_domain::{DomainRules, FleetDomain, SOAK_FAULT_WEIGHTS},
    injected_fault::InjectedFault,
};

/// Time after a fault in which its effects on runs are excused: a lease and the time to detect its
/// end.
pub(crate) const LEASE_GRACE_PERIOD: Duration = Duration::from_secs(4);

/// Settings of a history.
#[derive(Debug, Clone)]
pub struct HistoryPlan {
    /// Program that the processes run: `lockgate-faults`.
    pub program: PathBuf,
    /// Duration of the run, including the final period without faults.
    pub duration: Duration,
    /// Seed of all random choices.
    pub seed: u64,
    /// Makes the run a soak: all faults, on a server with an append-only file. At this interval all
    /// processes pause and are measured, and growth is a violation.
    pub soak_interval: Option<Duration>,
}
