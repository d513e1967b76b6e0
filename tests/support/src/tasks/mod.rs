//! The history check of queues: processes push tasks and run them while they are killed, stopped and cut off and while
//! their server goes away and comes back; and however that goes, each task that is said to be pushed ends once, done by a
//! run that ended well, or dead (D1), and runs again only after a failure or a fault that has touched the run before
//! (D3). A task is a resource of its own: there is no lock, and no order.
//!
//! A process writes down what it is about to push, the id that it was told, and each start and end of a run. What was
//! pushed without an answer may be there, and is waited for as well.

mod conduct;
mod process;

use std::time::Duration;

pub use self::{conduct::Tasks, process::tasks};

/// The queue.
const QUEUE: &str = "errands";

/// Of a run. Short, so that faults are longer.
const LEASE: Duration = Duration::from_secs(1);

/// Attempts of a task, unless it may be run once.
const MOST: u32 = 6;

/// What the process that pushes it has written down of a task before it did.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Line {
    /// Its name, and whether it is to run once.
    Push(String, bool),
    /// It is stored, under this id.
    Pushed(String, String),
}

impl std::fmt::Display for Line {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Push(name, once) => write!(f, "push {name} {once}"),
            Self::Pushed(name, id) => write!(f, "pushed {name} {id}"),
        }
    }
}

impl Line {
    /// Of a line of a log, with its time; `None` for one that is about something else, or has no end.
    fn read(line: &str) -> Option<(u64, Self)> {
        let words: Vec<_> = line.split(' ').collect();
        let [at, _wall, what, name, last] = words[..] else { return None };
        let line = match what {
            "push" => Self::Push(name.to_owned(), last.parse().ok()?),
            "pushed" => Self::Pushed(name.to_owned(), last.to_owned()),
            _ => return None,
        };
        Some((at.parse().ok()?, line))
    }
}
