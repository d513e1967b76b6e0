//! `EventLog`: the file to which a process writes its events.

use std::{
    fmt,
    fs::{File, OpenOptions},
    io::{self, Write as _},
    path::Path,
    time::{SystemTime, UNIX_EPOCH},
};

use super::clock;
use crate::checker::format_line;

/// Each event with the time of the host's monotonic clock, and the wall's.
#[derive(Debug)]
pub(crate) struct EventLog(File);

impl EventLog {
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        OpenOptions::new().create(true).append(true).open(path).map(Self)
    }

    pub(crate) fn record(&self, event: &impl fmt::Display) {
        let at = clock::now_ns();
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let wall = u64::try_from(wall.as_micros()).unwrap_or(u64::MAX);
        // One write: whole lines, also of a process that is killed now.
        (&self.0)
            .write_all(format_line(at, wall, event).as_bytes())
            .expect("the log can be written");
    }
}
