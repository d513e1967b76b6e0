//! Histories under random faults: processes on one server or cluster, the faults that strike them, and the checks that
//! every domain shares.
//!
//! [`conduct`] runs one. The processes are processes of the same program, `lockgate-faults`. A `Domain` supplies what
//! its processes do and write down, the checks of its own, and its figures; `Rules` say which faults it meets and how
//! often. Shared by all of them:
//!
//! | | |
//! |---|---|
//! | `processes` | starting, replacing, killing and stopping processes, each behind a proxy of its own |
//! | `fault`, `strike` | the faults, and how each one is made |
//! | `storm` | the schedule of faults by seed, and the measurements of a soak |
//! | `notes`, `stall` | when a fault or the machine has touched a process |
//! | `orders`, `log`, `run` | inside a process: its orders and the lines that it writes |
//! | `left` | N1: nothing is left in the store, and no process makes a call |

pub(crate) mod clock;
pub(crate) mod dice;
mod domain;
mod fault;
mod ground;
mod left;
pub(crate) mod log;
mod notes;
pub(crate) mod orders;
mod process;
mod processes;
pub(crate) mod register;
pub(crate) mod run;
pub(crate) mod stall;
mod storm;
mod strike;
mod verdict;

use std::{path::PathBuf, time::Duration};

pub use self::{
    domain::conduct, ground::Ground, orders::Job, process::Process, processes::Fleet,
    verdict::Verdict,
};
pub(crate) use self::{
    domain::{Domain, Rules, SOAK},
    fault::Fault,
    left::Closing,
    notes::Notes,
};

/// How long after a fault its traces are looked for where runs have leases: a lease and the time to notice.
pub(crate) const AFTERMATH: Duration = Duration::from_secs(4);

/// A history to be run.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The program that the processes run: `lockgate-faults`.
    pub program: PathBuf,
    /// Time of the whole run; it ends with a time without faults.
    pub time: Duration,
    /// Seed of all choices.
    pub seed: u64,
    /// Makes it a soak: all faults, on a server that restarts with its log. In this interval all processes rest and are
    /// measured, and growth is a violation.
    pub soak: Option<Duration>,
}
