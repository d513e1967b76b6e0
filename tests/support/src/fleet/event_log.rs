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

/// Log with the time of the host's monotonic clock and of its wall clock for each event.
#[derive(Debug)]
pub(crate) struct EventLog(File);

impl EventLog {
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        OpenOptions::new().create(true).append(true).open(path).map(Self)
    }

    pub(crate) fn record(&self, event: &impl fmt::Display) {
        let monotonic_ns = clock::now_ns();
        let wall_time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let wall_time = u64::try_from(wall_time.as_micros()).unwrap_or(u64::MAX);
        // One write per line: a killed process leaves no partial line.
        (&self.0)
            .write_all(format_line(monotonic_ns, wall_time, event).as_bytes())
            .expect("the log can be written");
    }
}
