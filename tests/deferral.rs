//! Faults of deferral, by the rows of the table in FAULTS.md. Each test ends with a check of the
//! recorded history.

#[path = "deferral/cancel_race.rs"]
mod cancel_race;
#[path = "deferral/cluster.rs"]
mod cluster;
#[path = "deferral/crash.rs"]
mod crash;
#[path = "deferral/drain.rs"]
mod drain;
#[path = "deferral/full_memory.rs"]
mod full_memory;
#[path = "deferral/large_backlog.rs"]
mod large_backlog;
#[path = "deferral/local_clock_audit.rs"]
mod local_clock_audit;
#[path = "deferral/lost_replies.rs"]
mod lost_replies;
#[path = "deferral/mixed_frameworks.rs"]
mod mixed_frameworks;
#[path = "deferral/paused_worker.rs"]
mod paused_worker;
#[path = "deferral/poison_job.rs"]
mod poison_job;
#[path = "deferral/route_options.rs"]
mod route_options;
#[path = "deferral/run_limits.rs"]
mod run_limits;
#[path = "deferral/sealed_jobs.rs"]
mod sealed_jobs;
#[path = "deferral/server_restart.rs"]
mod server_restart;
#[path = "deferral/unreadable_requests.rs"]
mod unreadable_requests;
#[path = "deferral/wakeups.rs"]
mod wakeups;

use std::{path::Path, time::Duration};

use lockgate_tests::{
    WebFramework,
    fleet::{HistoryPlan, run_history},
    ledger::{JobDomain, JobFleet, NodeSetup},
};

const FAULTS_BINARY: &str = env!("CARGO_BIN_EXE_lockgate-faults");

const SECOND: Duration = Duration::from_secs(1);

/// Short run of `cargo xtask faults deferred`.
#[tokio::test]
async fn short_job_fault_history_has_no_violations() {
    let seed = u64::from(uuid::Uuid::new_v4().as_fields().0);
    // The last eight seconds are without faults.
    let plan = HistoryPlan {
        program: FAULTS_BINARY.into(),
        duration: 14 * SECOND,
        seed,
        soak_interval: None,
    };
    let report = run_history::<JobDomain>(&plan).await;
    assert!(report.violations.is_empty(), "{report}");
    println!("{report}");
}

async fn start_fleet() -> JobFleet {
    JobFleet::new(Path::new(FAULTS_BINARY)).await
}

/// Lease that outlasts the stalls of a loaded machine and is short enough to wait for in a test.
const LONG_LEASE: Duration = Duration::from_secs(5);

/// Settings of a node with a worker and `LONG_LEASE`.
fn long_lease_setup(framework: WebFramework) -> NodeSetup {
    NodeSetup { lease: LONG_LEASE, ..NodeSetup::new(framework) }
}

/// Starts a fleet with one node that has no worker; other nodes run its jobs.
async fn start_fleet_without_worker(framework: WebFramework) -> (JobFleet, usize) {
    let mut fleet = start_fleet().await;
    let web = fleet.start_node(long_lease_setup(framework).without_worker()).await;
    (fleet, web)
}

const BOTH_FRAMEWORKS: [WebFramework; 2] = [WebFramework::Axum, WebFramework::Actix];
