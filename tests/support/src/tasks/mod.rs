//! The history check of queues: processes push tasks and run them while they are killed, stopped and cut off and while
//! their server goes away and comes back; and however that goes, each task that is said to be pushed ends once, done by a
//! run that ended well, or dead (D1), and runs again only after a failure or a fault that has touched the run before
//! (D3). A task is a resource of its own: there is no lock, and no order.
//!
//! A process writes down what it is about to push, the id that it was told, and each start and end of a run. What was
//! pushed without an answer may be there, and is waited for as well.

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
