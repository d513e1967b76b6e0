//! What is logged, for tests that look for what must be in it, or must not.

use std::{
    io,
    sync::{Arc, LazyLock},
};

use parking_lot::Mutex;
use tracing::{Dispatch, Level, subscriber::DefaultGuard};

/// The log of this thread, on which all tasks of a test run.
#[derive(Clone, Default)]
pub(crate) struct CapturedLog(Arc<Mutex<Vec<u8>>>);

impl io::Write for CapturedLog {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl CapturedLog {
    /// As long as the guard lives.
    pub(crate) fn start_capture() -> (Self, DefaultGuard) {
        // Without one that is always there, what another thread has found out about a line (that nobody reads it)
        // would hold for this one, too.
        static ALWAYS: LazyLock<Dispatch> = LazyLock::new(|| {
            let nowhere = tracing_subscriber::fmt().with_writer(io::sink);
            Dispatch::new(nowhere.with_max_level(Level::TRACE).finish())
        });
        LazyLock::force(&ALWAYS);
        let log = Self::default();
        let own = log.clone();
        let lines = tracing_subscriber::fmt().with_max_level(Level::TRACE).with_ansi(false);
        let lines = lines.with_writer(move || own.clone()).finish();
        (log, tracing::subscriber::set_default(lines))
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.0.lock().clone()).expect("text")
    }

    #[track_caller]
    pub(crate) fn assert_contains(&self, line: &str) {
        assert!(self.text().contains(line), "no {line:?} in:\n{}", self.text());
    }
}
