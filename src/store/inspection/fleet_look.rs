//! [`FleetLook`]: the wait for the answers to one inquiry.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::inquiry_listener::MAX_REPORTS;

/// Longest wait for answers. A process answers within milliseconds; one that has died, or whose
/// runtime is blocked, is at most in the list of silent nodes.
const MAX_WAIT: Duration = Duration::from_millis(500);

/// Time without another answer after which those that did not answer the last inquiry either are
/// not waited for.
const SILENCE: Duration = Duration::from_millis(40);

/// First and longest time between two reads of answers; each is twice as long as the one before.
const READ_INTERVALS: [Duration; 2] = [Duration::from_millis(4), Duration::from_millis(50)];

/// Receivers of the last inquiry of a store handle less its answers. In a cluster, where a node
/// may count its own subscribers only, it may be negative.
#[derive(Debug, Default)]
pub(super) struct LastLook(Mutex<Option<i64>>);

/// Answers to an inquiry so far.
pub(super) struct FleetLook {
    receivers: i64,
    /// True if the number of receivers is that of the whole fleet.
    is_exact: bool,
    /// Number of answers if as many are missing as last time.
    expected: Option<i64>,
    started_at: Instant,
    answered_at: Instant,
    interval: Duration,
    pub(super) reports: Vec<String>,
}

impl FleetLook {
    pub(super) fn new(receivers: u64, is_exact: bool, last: &LastLook) -> Self {
        let (now, receivers) = (Instant::now(), receivers.min(MAX_REPORTS).cast_signed());
        Self {
            receivers,
            is_exact,
            expected: last.0.lock().map(|missing| receivers - missing),
            started_at: now,
            answered_at: now,
            interval: READ_INTERVALS[0],
            reports: Vec::new(),
        }
    }

    /// Returns the time until the next read, or `None` at the end.
    pub(super) fn next_wait(&mut self) -> Option<Duration> {
        let (count, now) = (self.count(), Instant::now());
        if count >= MAX_REPORTS.cast_signed() || (self.is_exact && count >= self.receivers) {
            return None;
        }
        let mut end = self.started_at + MAX_WAIT;
        if self.expected.is_some_and(|expected| count >= expected) {
            end = end.min(self.answered_at + SILENCE);
        }
        let left = end.checked_duration_since(now).filter(|left| !left.is_zero())?;
        let wait = self.interval.min(left);
        self.interval = (self.interval * 2).min(READ_INTERVALS[1]);
        Some(wait)
    }

    /// Adds the answers after those so far.
    pub(super) fn add(&mut self, reports: Vec<String>) {
        if !reports.is_empty() {
            self.answered_at = Instant::now();
        }
        self.reports.extend(reports);
    }

    /// Returns the answers, and keeps their number for the next inquiry.
    pub(super) fn finish(self, last: &LastLook) -> Vec<String> {
        *last.0.lock() = Some(self.receivers - self.count());
        self.reports
    }

    fn count(&self) -> i64 {
        i64::try_from(self.reports.len()).unwrap_or(i64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Looks at a fleet of a cluster whose processes answer before the first read. Returns the time
    /// of the look.
    async fn look_at_cluster(answers: usize, last: &LastLook) -> Duration {
        let started_at = Instant::now();
        let mut look = FleetLook::new(1, false, last);
        while let Some(wait) = look.next_wait() {
            tokio::time::sleep(wait).await;
            look.add(vec![String::new(); answers - look.reports.len()]);
        }
        assert_eq!(look.finish(last).len(), answers);
        started_at.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn cluster_is_waited_for_until_its_processes_are_known() {
        let last = LastLook::default();
        assert_eq!(look_at_cluster(3, &last).await, MAX_WAIT);
        assert!(look_at_cluster(3, &last).await < 2 * SILENCE);
        assert!(look_at_cluster(5, &last).await < 2 * SILENCE, "two have started");
        assert_eq!(look_at_cluster(2, &last).await, MAX_WAIT, "three have gone");
        assert!(look_at_cluster(2, &last).await < 2 * SILENCE);
    }
}
