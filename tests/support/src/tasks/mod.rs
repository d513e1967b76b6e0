//! The history check of queues: processes push tasks and run them while they are killed, paused and cut
//! off, and while their server fails and returns.
//!
//! - D1: each task that was reported as pushed ends once, done by a successful run, or dead.
//! - D3: it runs again only after a failure, or a fault that has disturbed the run before.
//!
//! Each task is a resource of its own: there is neither a lock nor an order.
//!
//! A process records a task before it pushes it, the id that it gets, and each start and end of a run. A
//! task that was pushed without a reply may be stored, and the check waits for it as well.

mod task_domain;
mod task_process;

use std::time::Duration;

pub use self::{task_domain::TaskDomain, task_process::run_task_process};

/// The queue.
const QUEUE_NAME: &str = "errands";

/// Of a run. Short, so that faults are longer.
const RUN_LEASE: Duration = Duration::from_secs(1);

/// Attempts of a task, unless it may be run once.
const MAX_ATTEMPTS: u32 = 6;

/// What the process that pushes it has written down of a task before it did.
#[derive(Debug, Clone, PartialEq, Eq)]
enum PushEvent {
    /// Its name, and whether it is to run once.
    Requested(String, bool),
    /// It is stored, under this id.
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
    /// Of a line of a log, with its time; `None` for one that is about something else, or has no end.
    fn parse(line: &str) -> Option<(u64, Self)> {
        let words: Vec<_> = line.split(' ').collect();
        let [at, _wall, what, name, last] = words[..] else { return None };
        let line = match what {
            "push" => Self::Requested(name.to_owned(), last.parse().ok()?),
            "pushed" => Self::Stored(name.to_owned(), last.to_owned()),
            _ => return None,
        };
        Some((at.parse().ok()?, line))
    }
}
