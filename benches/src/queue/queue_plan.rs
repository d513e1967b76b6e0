//! Plan and reports of a process that pushes or runs jobs. The Node scripts use the same JSON
//! (`benches/node/plan.mjs`), so all values are plain numbers. Times are nanoseconds unless noted.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{PeerSettings, QueueKind};
use crate::clock;

/// Length of the body of every job as JSON.
pub(crate) const BODY_BYTES: usize = 1024;

/// Time without progress after which a worker expects no more runs.
const IDLE_TIMEOUT: Duration = Duration::from_secs(6);

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct QueuePlan {
    pub(crate) kind: QueueKind,
    pub(crate) role: ProcessRole,
    /// Number of the process within a fleet.
    pub(crate) process_number: u64,
    pub(crate) redis_port: u16,
    /// Producers, or runs in parallel.
    pub(crate) concurrency: usize,
    /// Jobs to push or to run; 0 pushes for the length of `window`.
    pub(crate) jobs: u64,
    /// Length of the window in which pushes are counted, if `jobs` is 0.
    pub(crate) window: u64,
    /// Pause of a producer after each push.
    pub(crate) pause: u64,
    /// Milliseconds from the push of a job to its due time.
    pub(crate) delay: u64,
    /// Jobs per push call.
    pub(crate) batch_size: u64,
    pub(crate) body_bytes: usize,
    /// Records the time of every push or start.
    pub(crate) record_times: bool,
    pub(crate) idle_timeout: u64,
    /// Number of resources among which requests are divided.
    pub(crate) resource_count: u64,
    #[serde(flatten)]
    pub(crate) settings: PeerSettings,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ProcessRole {
    Push,
    Run,
}

impl QueuePlan {
    pub(crate) fn for_push(kind: QueueKind, port: u16, producers: usize) -> Self {
        Self {
            kind,
            role: ProcessRole::Push,
            process_number: 0,
            redis_port: port,
            concurrency: producers,
            jobs: 0,
            window: 0,
            pause: 0,
            delay: 0,
            batch_size: 1,
            body_bytes: BODY_BYTES,
            record_times: false,
            idle_timeout: clock::duration_nanos(IDLE_TIMEOUT),
            resource_count: 1,
            settings: PeerSettings::FASTEST,
        }
    }

    pub(crate) fn for_run(kind: QueueKind, port: u16, concurrency: usize, jobs: u64) -> Self {
        Self { role: ProcessRole::Run, jobs, ..Self::for_push(kind, port, concurrency) }
    }
}

/// Report of a process that pushed.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct PushReport {
    /// Jobs whose push was answered, including the warm-up.
    pub(crate) pushed: u64,
    /// Jobs pushed within the window.
    pub(crate) counted: u64,
    pub(crate) failed: u64,
    pub(crate) first_failure: Option<String>,
    pub(crate) began: u64,
    pub(crate) ended: u64,
    /// Latency of a push call, in milliseconds.
    pub(crate) p50: f64,
    pub(crate) p99: f64,
    /// Time of the push of each job, if `record_times` is set. For requests that wait for a lock,
    /// the time of its release.
    pub(crate) push_times: Vec<u64>,
}

/// Report of a process that ran jobs.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct RunReport {
    pub(crate) distinct_runs: u64,
    /// Runs of a job after its first one.
    pub(crate) repeated_runs: u64,
    /// Runs of jobs that were not pushed, or with another body.
    pub(crate) unexpected_runs: u64,
    /// Times of the first and the last start.
    pub(crate) first_start: u64,
    pub(crate) last_start: u64,
    /// Time of the first start of each job, if `record_times` is set; 0 if it did not start.
    pub(crate) start_times: Vec<u64>,
}
