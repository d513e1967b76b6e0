//! What a worker process is told to do.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::contestant::Contender;

/// Which locks the tasks ask for.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) enum Keys {
    /// All tasks of all processes want the same one.
    Hot,
    /// Each task has so many of its own, and takes them in turn.
    Own(u32),
}

/// A load, whoever bears it.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Trial {
    pub(crate) processes: u32,
    /// In each process.
    pub(crate) tasks: u32,
    pub(crate) keys: Keys,
    /// Turns of the work inside the lock; see [`work`](crate::work).
    pub(crate) work: u64,
}

/// What one worker process does.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Plan {
    pub(crate) contender: Contender,
    pub(crate) trial: Trial,
    /// Which of the processes this is.
    pub(crate) process: u32,
    pub(crate) port: u16,
    pub(crate) window: Duration,
}
