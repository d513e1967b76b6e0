//! What a process that pushes or runs jobs is told, and what it tells. Those in Node read and write the
//! same (`benches/node/plan.mjs`), so all of it is plain numbers; times are nanoseconds.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Kind, Setting};
use crate::clock;

/// Of the body of every job, as JSON.
pub(crate) const BYTES: usize = 1024;

/// Without any progress for this long nothing more is expected.
const PATIENCE: Duration = Duration::from_secs(6);

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Plan {
    pub(crate) kind: Kind,
    pub(crate) role: Role,
    /// Of the process, among those of a fleet.
    pub(crate) number: u64,
    /// Of the Redis.
    pub(crate) port: u16,
    /// How many push or run at once.
    pub(crate) tasks: usize,
    /// How many are pushed, 0 for as many as there is time for; how many are to run.
    pub(crate) jobs: u64,
    /// In which pushes are counted, if there is no number of them.
    pub(crate) window: u64,
    /// After each push.
    pub(crate) pause: u64,
    /// Milliseconds between pushing a job and its run.
    pub(crate) delay: u64,
    /// Jobs in one call.
    pub(crate) bulk: u64,
    pub(crate) bytes: usize,
    /// Whether every moment is told.
    pub(crate) keep: bool,
    pub(crate) patience: u64,
    /// Resources among which requests are divided, if they are about resources.
    pub(crate) resources: u64,
    #[serde(flatten)]
    pub(crate) setting: Setting,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Role {
    Push,
    Run,
}

impl Plan {
    pub(crate) fn push(kind: Kind, port: u16, tasks: usize) -> Self {
        Self {
            kind,
            role: Role::Push,
            number: 0,
            port,
            tasks,
            jobs: 0,
            window: 0,
            pause: 0,
            delay: 0,
            bulk: 1,
            bytes: BYTES,
            keep: false,
            patience: clock::nanos(PATIENCE),
            resources: 1,
            setting: Setting::BEST,
        }
    }

    pub(crate) fn run(kind: Kind, port: u16, concurrency: usize, jobs: u64) -> Self {
        Self { role: Role::Run, jobs, ..Self::push(kind, port, concurrency) }
    }
}

/// What a process has pushed.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Pushed {
    /// Jobs whose push was answered, the warm-up's too.
    pub(crate) pushed: u64,
    /// Those of them within the window.
    pub(crate) counted: u64,
    pub(crate) failed: u64,
    pub(crate) first_failure: Option<String>,
    pub(crate) began: u64,
    pub(crate) ended: u64,
    /// Of a call, in milliseconds.
    pub(crate) p50: f64,
    pub(crate) p99: f64,
    /// When each job was asked for, if moments are told. Of requests that wait for a lock: when the lock
    /// was let go.
    pub(crate) asked: Vec<u64>,
}

/// What a process has run.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Ran {
    /// Different jobs.
    pub(crate) ran: u64,
    /// Runs of jobs that had run before.
    pub(crate) twice: u64,
    /// Runs of what nobody has pushed, or not like this.
    pub(crate) strange: u64,
    /// The moments of the first and the last start.
    pub(crate) first: u64,
    pub(crate) last: u64,
    /// When each job was first started, if moments are told; 0 for those that were not.
    pub(crate) starts: Vec<u64>,
}
