//! `RunRecorder`: records the events of one run of a handler.

use std::time::Duration;

use super::event_log::EventLog;
use crate::checker::deferred::RunEvent;

/// Interval at which a run records the validity of its lock.
const VALIDITY_INTERVAL: Duration = Duration::from_millis(25);

/// Recorder of an active run. Dropping it records the run as dropped, unless it has ended.
pub(crate) struct RunRecorder<'a> {
    log: &'a EventLog,
    run_number: u64,
    has_ended: bool,
}

impl<'a> RunRecorder<'a> {
    /// Records the start. `number` is that of [`RunEvent::Started`].
    pub(crate) fn start(log: &'a EventLog, number: u64, start: &RunEvent) -> Self {
        log.record(start);
        Self { log, run_number: number, has_ended: false }
    }

    /// Works for this time. `validity_end` returns the end of the lock's validity, if it is still
    /// valid.
    pub(crate) async fn work_for(&self, ms: u64, validity_end: impl Fn() -> Option<u64>) {
        let mut remaining = Duration::from_millis(ms);
        while !remaining.is_zero() {
            let step = remaining.min(VALIDITY_INTERVAL);
            tokio::time::sleep(step).await;
            remaining -= step;
            if let Some(validity_end) = validity_end() {
                self.log
                    .record(&RunEvent::Renewed { run: self.run_number, valid_until: validity_end });
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
