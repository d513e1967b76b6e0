//! The history check of queues: processes push tasks and run them while they are killed, paused and
//! cut off, and while their server fails and returns.
//!
//! - D1: each task that was reported as pushed ends once, done by a successful run, or dead.
//! - D3: it runs again only after a failure, or a fault that has disturbed the run before.
//!
//! Each task is a resource of its own: there is neither a lock nor an order.
//!
//! A process records a task before it pushes it, the id that it gets, and each start and end of a
//! run. A task that was pushed without a reply may be stored, and the check waits for it as well.

mod task_domain;
mod task_process;

use std::time::Duration;

pub use self::{task_domain::TaskDomain, task_process::run_task_process};

/// Name of the queue.
const QUEUE_NAME: &str = "errands";

/// Lease of a run. It is short, so that faults outlast it.
const RUN_LEASE: Duration = Duration::from_secs(1);

/// Attempts of a task, unless it runs once.
const MAX_ATTEMPTS: u32 = 6;

/// Record of a push.
#[derive(Debug, Clone, PartialEq, Eq)]
enum PushEvent {
    /// Name of the task, and whether it runs once; recorded before the push.
    Requested(String, bool),
    /// Name and id of the stored task.
    Stored(String, String),
}

impl std::fmt::Display for PushEvent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Requested(name, once) => write!(f, "push {name} {once}"),
            Self::Stored(name, id) => write!(f, "pushed {name} {id}"),
        }
    }
}

impl PushEvent {
    /// Parses a log line with its time. Returns `None` for other and for incomplete lines.
    fn parse(line: &str) -> Option<(u64, Self)> {
        let parts: Vec<_> = line.split(' ').collect();
        let [time, _wall, event_name, name, value] = parts[..] else { return None };
        let line = match event_name {
            "push" => Self::Requested(name.to_owned(), value.parse().ok()?),
            "pushed" => Self::Stored(name.to_owned(), value.to_owned()),
            _ => return None,
        };
        Some((time.parse().ok()?, line))
    }
}
