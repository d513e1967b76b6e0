//! Signs of life of a connection whose server may be replaced while it stands still.
//!
//! # Why nothing is acknowledged by a master that stood still until it had a successor
//!
//! Sentinels replace a master that has been silent for a time *d* (`down-after-milliseconds`). A call goes out on a
//! connection that has answered within *d* / 2, to something that was sent a deadline *D* before at most; and its own
//! answer is believed within *D*. So with 2 *D* <= *d* / 2, whoever is told of a success was told within *d* of a moment
//! at which the master did not stand still: before there could be a successor.
//!
//! The calls themselves are such signs. A connection that has none is asked for one, in the background, so that no
//! request waits for another connection; if that is not done (its runtime has ended), it is made anew.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use tokio::time::Instant;

pub(super) struct Life {
    made: Instant,
    /// When it answered last, in ms since then.
    heard: AtomicU64,
    patience: Duration,
}

/// Between two rounds of asking: a connection is asked at the second one after its last answer, and has half of its
/// patience left to answer.
pub(super) fn pause(patience: Duration) -> Duration {
    patience / 4
}

impl Life {
    /// Of a connection that answers at this moment.
    pub(super) fn new(patience: Duration) -> Self {
        Self { made: Instant::now(), heard: AtomicU64::new(0), patience }
    }

    pub(super) fn answered(&self) {
        self.heard.store(self.age(), Ordering::Relaxed);
    }

    /// It must not be used any more.
    pub(super) fn is_too_quiet(&self) -> bool {
        self.silence() > self.patience
    }

    /// It should be asked.
    pub(super) fn is_quiet(&self) -> bool {
        self.silence() >= pause(self.patience)
    }

    fn silence(&self) -> Duration {
        Duration::from_millis(self.age().saturating_sub(self.heard.load(Ordering::Relaxed)))
    }

    fn age(&self) -> u64 {
        u64::try_from(self.made.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_connection_is_asked_in_time_and_given_up_when_it_is_silent() {
        let life = Life::new(Duration::from_secs(4));
        let seen = || (life.is_quiet(), life.is_too_quiet());
        assert_eq!(seen(), (false, false));
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(seen(), (true, false));
        life.answered();
        assert_eq!(seen(), (false, false));
        tokio::time::advance(Duration::from_secs(4)).await;
        assert_eq!(seen(), (true, false));
        tokio::time::advance(Duration::from_millis(1)).await;
        assert_eq!(seen(), (true, true));
    }
}
