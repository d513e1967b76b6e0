//! `RoundTripStats`: measured round trips of a lane, and the numbers of batches that they allow.

use std::time::Duration;

use super::batch_pacing::MAX_IN_FLIGHT;

/// Most active batches if the server is near: one that it executes, and those that it reads next.
/// More would only fill the buffers of the connection, and calls that time out there are in doubt.
/// Calls that time out in the queue were not sent.
const MIN_ACTIVE_LIMIT: usize = 4;

/// Additional active batches for each millisecond of round trip.
const ACTIVE_PER_RTT_MS: usize = 4;

/// Upper bound of [`RoundTripStats::max_immediate`], for a very far server.
const MAX_IMMEDIATE: usize = 8;

/// Shortest durations of recent batches: the round trip, without the work of a busy server or
/// process.
#[derive(Default)]
pub(super) struct RoundTripStats {
    window_min: Option<Duration>,
    previous_min: Option<Duration>,
    samples: u32,
    /// Of all batches: a busy server does not lengthen the round trip.
    overall_min: Option<Duration>,
}

impl RoundTripStats {
    pub(super) fn record(&mut self, duration: Duration) {
        self.window_min = Some(self.window_min.map_or(duration, |min| min.min(duration)));
        self.overall_min = self.window_min.into_iter().chain(self.overall_min).min();
        self.samples += 1;
        if self.samples.is_multiple_of(64) {
            self.previous_min = self.window_min.take();
        }
    }

    pub(super) fn recent_min(&self) -> Duration {
        self.window_min.into_iter().chain(self.previous_min).min().unwrap_or_default()
    }

    /// Returns the largest allowed number of active batches.
    pub(super) fn max_active(&self) -> usize {
        let millis = self.overall_min.unwrap_or_default().as_millis();
        let additional =
            usize::try_from(millis).unwrap_or(MAX_IN_FLIGHT).saturating_mul(ACTIVE_PER_RTT_MS);
        MIN_ACTIVE_LIMIT.saturating_add(additional).min(MAX_IN_FLIGHT)
    }

    /// Returns the number of batches in flight below which a call is sent at once and does not wait
    /// to share a batch. Waiting for a batch that returns within a millisecond saves the server
    /// more than it costs the caller. With a longer round trip it is the other way round.
    pub(super) fn max_immediate(&self) -> usize {
        let millis = usize::try_from(self.recent_min().as_millis()).unwrap_or(usize::MAX);
        millis.saturating_add(1).min(MAX_IMMEDIATE)
    }
}
