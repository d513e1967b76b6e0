//! `RunRecorder`: records the events of one run of a handler.

use std::time::Duration;

use super::event_log::EventLog;
use crate::checker::deferred::RunEvent;

/// Time between two notes of a run that it is still sure of its lock.
const VALIDITY_INTERVAL: Duration = Duration::from_millis(25);

/// A run that has begun. It notes that it was dropped, unless it has ended.
pub(crate) struct RunRecorder<'a> {
    log: &'a EventLog,
    run_number: u64,
    has_ended: bool,
}

impl<'a> RunRecorder<'a> {
    /// Notes its start. The number is that of [`RunEvent::Started`].
    pub(crate) fn start(log: &'a EventLog, number: u64, start: &RunEvent) -> Self {
        log.record(start);
        Self { log, run_number: number, has_ended: false }
    }

    /// Works for so long. `valid`: until when it is sure of its lock, if it is.
    pub(crate) async fn work_for(&self, ms: u64, valid: impl Fn() -> Option<u64>) {
        let mut left = Duration::from_millis(ms);
        while !left.is_zero() {
            let step = left.min(VALIDITY_INTERVAL);
            tokio::time::sleep(step).await;
            left -= step;
            if let Some(valid) = valid() {
                self.log.record(&RunEvent::Renewed { run: self.run_number, valid_until: valid });
            }
        }
    }

    pub(crate) fn finish(mut self, status: u16, body: &str) {
        self.has_ended = true;
        self.log.record(&RunEvent::Ended { run: self.run_number, status, body: body.to_owned() });
    }
}

impl Drop for RunRecorder<'_> {
    fn drop(&mut self) {
        if !self.has_ended {
            self.log.record(&RunEvent::Dropped { run: self.run_number });
        }
    }
}
