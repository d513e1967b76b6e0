//! A run of a handler, written down.

use std::time::Duration;

use super::log::Log;
use crate::checker::deferred::RunEvent;

/// Time between two notes of a run that it is still sure of its lock.
const TICK: Duration = Duration::from_millis(25);

/// A run that has begun. It notes that it was dropped, unless it has ended.
pub(crate) struct Run<'a> {
    log: &'a Log,
    number: u64,
    ended: bool,
}

impl<'a> Run<'a> {
    /// Notes its start. The number is that of [`RunEvent::Start`].
    pub(crate) fn start(log: &'a Log, number: u64, start: &RunEvent) -> Self {
        log.note(start);
        Self { log, number, ended: false }
    }

    /// Works for so long. `valid`: until when it is sure of its lock, if it is.
    pub(crate) async fn works(&self, ms: u64, valid: impl Fn() -> Option<u64>) {
        let mut left = Duration::from_millis(ms);
        while !left.is_zero() {
            let step = left.min(TICK);
            tokio::time::sleep(step).await;
            left -= step;
            if let Some(valid) = valid() {
                self.log.note(&RunEvent::Renewed(self.number, valid));
            }
        }
    }

    pub(crate) fn end(mut self, status: u16, body: &str) {
        self.ended = true;
        self.log.note(&RunEvent::Ended(self.number, status, body.to_owned()));
    }
}

impl Drop for Run<'_> {
    fn drop(&mut self) {
        if !self.ended {
            self.log.note(&RunEvent::Dropped(self.number));
        }
    }
}
