//! `ConnectionSilenceGuard`: measures the silence of a connection. It rejects answers of a master
//! that may have been replaced while it was paused, and tells when a silent connection needs a ping
//! or must not be used any more.
//!
//! # Why a replaced master acknowledges nothing after a pause
//!
//! Sentinels and cluster nodes replace a master that has been silent for a time *d*
//! (`down-after-milliseconds`, `cluster-node-timeout`). An answer proves that its server was
//! running at some moment after the call was sent. So an answer is accepted if the latest answered
//! call was sent at most *d* ago: since that call, the server cannot have been paused for *d*, and
//! before such a pause there is no successor. A call may take any time. An answer from a server
//! that resumes after *d* is rejected, and its connection is abandoned.
//!
//! To make this rare, a connection without a sign of life for *d* / 2 takes no new calls. Ordinary
//! calls are signs of life. An idle connection is pinged in the background, so that no request
//! waits for a new connection. If the ping is missing (its runtime has ended), the connection is
//! replaced.
//!
//! The first sign of life is the connect: sentinels or other nodes have confirmed the server
//! ([`target`](super::super::target)).

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use tokio::time::Instant;

/// Signs of life of one connection.
pub(super) struct ConnectionSilenceGuard {
    connected_at: Instant,
    /// Time at which the latest answered call was sent, in ms since `connected_at`.
    last_alive_ms: AtomicU64,
    pub(super) max_silence: Duration,
}

/// Returns the pause between two rounds of pings. A connection is pinged at the latest in the
/// second round after its last answer, with half of the maximum silence left for the reply.
pub(super) fn ping_interval(max_silence: Duration) -> Duration {
    max_silence / 4
}

impl ConnectionSilenceGuard {
    /// Creates the guard of a connection on which an answer to a call sent at `connected_at` has
    /// arrived. Without another answer it is used for `max_silence`.
    pub(super) fn new(connected_at: Instant, max_silence: Duration) -> Self {
        Self { connected_at, last_alive_ms: AtomicU64::new(0), max_silence }
    }

    /// Records an answer to a call sent at `sent_at`. Returns false if the answer must be rejected.
    pub(super) fn record_answer(&self, sent_at: Instant) -> bool {
        let is_accepted = self.silence(Instant::now()) <= self.max_silence * 2;
        if is_accepted {
            let alive_ms = sent_at.saturating_duration_since(self.connected_at).as_millis();
            self.last_alive_ms.fetch_max(u64::try_from(alive_ms).unwrap_or(0), Ordering::Relaxed);
        }
        is_accepted
    }

    /// Returns true if the connection must not be used any more.
    pub(super) fn is_expired(&self, now: Instant) -> bool {
        self.silence(now) > self.max_silence
    }

    /// Returns true if the connection should be pinged.
    pub(super) fn needs_ping(&self, now: Instant) -> bool {
        self.silence(now) >= ping_interval(self.max_silence)
    }

    fn silence(&self, now: Instant) -> Duration {
        let last_alive = Duration::from_millis(self.last_alive_ms.load(Ordering::Relaxed));
        now.saturating_duration_since(self.connected_at).saturating_sub(last_alive)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn idle_connection_is_pinged_and_silent_one_expires() {
        let guard = ConnectionSilenceGuard::new(Instant::now(), 4 * SECOND);
        let state = || (guard.needs_ping(Instant::now()), guard.is_expired(Instant::now()));
        assert_eq!(state(), (false, false));
        tokio::time::advance(SECOND).await;
        assert_eq!(state(), (true, false));
        assert!(guard.record_answer(Instant::now()));
        assert_eq!(state(), (false, false));
        tokio::time::advance(4 * SECOND).await;
        assert_eq!(state(), (true, false));
        tokio::time::advance(Duration::from_millis(1)).await;
        assert_eq!(state(), (true, true));
    }

    #[tokio::test(start_paused = true)]
    async fn answer_proves_liveness_at_time_of_its_request() {
        let guard = ConnectionSilenceGuard::new(Instant::now(), 4 * SECOND);
        tokio::time::advance(3 * SECOND).await;
        let sent = Instant::now();
        tokio::time::advance(5 * SECOND).await;
        assert!(guard.record_answer(sent), "it was alive 8 s ago");
        // The server was alive when this was sent; the time of the answer is unknown.
        assert!(guard.is_expired(Instant::now()));
        let sent = Instant::now();
        tokio::time::advance(4 * SECOND).await;
        assert!(!guard.record_answer(sent), "the server may have stalled for 9 s");
        assert!(!guard.record_answer(Instant::now()), "and that is no sign of life");
    }
}
