//! Signs of life of a connection whose server may be replaced while it stands still.
//!
//! # Why nothing is acknowledged by a master that stood still until it had a successor
//!
//! Sentinels, and nodes of a cluster, replace a master that has been silent for a time *d* (`down-after-milliseconds`,
//! `cluster-node-timeout`). An answer proves that its server did not stand still at some moment after the call was sent.
//! So an answer is believed if not more than *d* ago a call was sent that has been answered: between that one and this
//! one it can't have stood still for *d*, and before there can be no successor. However long a call may take: what a
//! server says that wakes after *d* is not believed, and its connection is left.
//!
//! So that this is rare, a connection that has no sign of life for *d* / 2 takes no new calls. The calls themselves are such
//! signs. A connection that has none is asked for one, in the background, so that no request waits for another
//! connection; if that is not done (its runtime has ended), it is made anew.
//!
//! The first sign is that it was made: to whom, sentinels or the other nodes have said ([`target`](super::super::target)).

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use tokio::time::Instant;

pub(super) struct Liveness {
    connected_at: Instant,
    /// When the last call was sent that was answered, in ms since then.
    last_alive_ms: AtomicU64,
    pub(super) max_silence: Duration,
}

/// Between two rounds of asking: a connection is asked at the second one after its last answer, and has half of its
/// patience left to answer.
pub(super) fn ping_interval(patience: Duration) -> Duration {
    patience / 4
}

impl Liveness {
    /// Of a connection by which something has been answered that was sent at this moment; it is used for so long
    /// without another answer.
    pub(super) fn new(made: Instant, patience: Duration) -> Self {
        Self { connected_at: made, last_alive_ms: AtomicU64::new(0), max_silence: patience }
    }

    /// What was sent then is answered now; false if that is not to be believed.
    pub(super) fn record_answer(&self, sent: Instant) -> bool {
        let believed = self.silent_for(Instant::now()) <= self.max_silence * 2;
        if believed {
            let since = sent.saturating_duration_since(self.connected_at).as_millis();
            self.last_alive_ms.fetch_max(u64::try_from(since).unwrap_or(0), Ordering::Relaxed);
        }
        believed
    }

    /// It must not be used any more.
    pub(super) fn is_expired(&self, now: Instant) -> bool {
        self.silent_for(now) > self.max_silence
    }

    /// It should be asked.
    pub(super) fn needs_ping(&self, now: Instant) -> bool {
        self.silent_for(now) >= ping_interval(self.max_silence)
    }

    fn silent_for(&self, now: Instant) -> Duration {
        let alive = Duration::from_millis(self.last_alive_ms.load(Ordering::Relaxed));
        now.saturating_duration_since(self.connected_at).saturating_sub(alive)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn a_connection_is_asked_in_time_and_given_up_when_it_is_silent() {
        let life = Liveness::new(Instant::now(), 4 * S);
        let seen = || (life.needs_ping(Instant::now()), life.is_expired(Instant::now()));
        assert_eq!(seen(), (false, false));
        tokio::time::advance(S).await;
        assert_eq!(seen(), (true, false));
        assert!(life.record_answer(Instant::now()));
        assert_eq!(seen(), (false, false));
        tokio::time::advance(4 * S).await;
        assert_eq!(seen(), (true, false));
        tokio::time::advance(Duration::from_millis(1)).await;
        assert_eq!(seen(), (true, true));
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_is_believed_by_what_was_sent_before_it() {
        let life = Liveness::new(Instant::now(), 4 * S);
        tokio::time::advance(3 * S).await;
        let sent = Instant::now();
        tokio::time::advance(5 * S).await;
        assert!(life.record_answer(sent), "it was alive 8 s ago");
        // It was alive when that was sent; when it was answered nobody knows.
        assert!(life.is_expired(Instant::now()));
        let sent = Instant::now();
        tokio::time::advance(4 * S).await;
        assert!(!life.record_answer(sent), "it may have stood still for 9 s");
        assert!(!life.record_answer(Instant::now()), "and that is no sign of life");
    }
}
