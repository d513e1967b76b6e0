//! Log output of a test, for assertions on its content.

use std::{
    io,
    sync::{Arc, LazyLock},
};

use parking_lot::Mutex;
use tracing::{Dispatch, Level, subscriber::DefaultGuard};
use tracing_subscriber::fmt::format::FmtSpan;

/// Log of the current thread, which runs all tasks of a test.
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
    /// Captures the log until the guard is dropped.
    pub(crate) fn start_capture() -> (Self, DefaultGuard) {
        Self::start_at(Level::TRACE, FmtSpan::NONE)
    }

    /// Also captures the end of each span, with its fields.
    pub(crate) fn start_span_capture(max_level: Level) -> (Self, DefaultGuard) {
        Self::start_at(max_level, FmtSpan::CLOSE)
    }

    fn start_at(max_level: Level, span_events: FmtSpan) -> (Self, DefaultGuard) {
        // `tracing` caches per call site that no subscriber is interested. Without a permanent
        // dispatcher, a cache entry from another thread would suppress records of this test.
        static ALWAYS: LazyLock<Dispatch> = LazyLock::new(|| {
            let nowhere = tracing_subscriber::fmt().with_writer(io::sink);
            Dispatch::new(nowhere.with_max_level(Level::TRACE).finish())
        });
        LazyLock::force(&ALWAYS);
        let log = Self::default();
        let writer = log.clone();
        let subscriber = tracing_subscriber::fmt().with_max_level(max_level).with_ansi(false);
        let subscriber =
            subscriber.with_span_events(span_events).with_writer(move || writer.clone());
        let subscriber = subscriber.finish();
        (log, tracing::subscriber::set_default(subscriber))
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.0.lock().clone()).expect("text")
    }

    #[track_caller]
    pub(crate) fn assert_contains(&self, line: &str) {
        assert!(self.text().contains(line), "no {line:?} in:\n{}", self.text());
    }
}
