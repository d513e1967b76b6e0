//! Faults of deferral, by the rows of the table in FAULTS.md: each ends with a look into the books.

#[path = "deferral/cancel.rs"]
mod cancel;
#[path = "deferral/clock.rs"]
mod clock;
#[path = "deferral/cluster.rs"]
mod cluster;
#[path = "deferral/crash.rs"]
mod crash;
#[path = "deferral/crowd.rs"]
mod crowd;
#[path = "deferral/drain.rs"]
mod drain;
#[path = "deferral/limits.rs"]
mod limits;
#[path = "deferral/lost.rs"]
mod lost;
#[path = "deferral/memory.rs"]
mod memory;
#[path = "deferral/mixed.rs"]
mod mixed;
#[path = "deferral/newer.rs"]
mod newer;
#[path = "deferral/options.rs"]
mod options;
#[path = "deferral/poison.rs"]
mod poison;
#[path = "deferral/restart.rs"]
mod restart;
#[path = "deferral/sealed.rs"]
mod sealed;
#[path = "deferral/stopped.rs"]
mod stopped;
#[path = "deferral/wake.rs"]
mod wake;

use std::{path::Path, time::Duration};

use lockgate_tests::{
    Framework,
    fleet::{Plan, conduct},
    ledger::{Books, Fleet, Setup},
};

const PROGRAM: &str = env!("CARGO_BIN_EXE_lockgate-faults");

const SECOND: Duration = Duration::from_secs(1);

/// A part of `cargo xtask faults deferred`.
#[tokio::test]
async fn a_short_history_is_good() {
    let seed = u64::from(uuid::Uuid::new_v4().as_fields().0);
    // The last eight are without faults.
    let plan = Plan { program: PROGRAM.into(), time: 14 * SECOND, seed, soak: None };
    let verdict = conduct::<Books>(&plan).await;
    assert!(verdict.wrong.is_empty(), "{verdict}");
    println!("{verdict}");
}

async fn fleet() -> Fleet {
    Fleet::new(Path::new(PROGRAM)).await
}

/// A lease that a loaded machine does not let end, and that a test can wait for.
const LEASE: Duration = Duration::from_secs(5);

/// A node with a worker.
fn steady(framework: Framework) -> Setup {
    Setup { lease: LEASE, ..Setup::new(framework) }
}

/// A fleet of one node without a worker, whose requests others run.
async fn with_web(framework: Framework) -> (Fleet, usize) {
    let mut fleet = fleet().await;
    let web = fleet.join(steady(framework).web_only()).await;
    (fleet, web)
}

const BOTH: [Framework; 2] = [Framework::Axum, Framework::Actix];
