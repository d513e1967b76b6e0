//! `RetryDelay`: growing pause between attempts to subscribe.

use std::time::Duration;

/// First and longest pause between two attempts to subscribe.
const RETRY_DELAYS: [Duration; 2] = [Duration::from_millis(20), Duration::from_secs(1)];

/// Pause between attempts; it doubles until a subscription succeeds, up to the longest of
/// `RETRY_DELAYS`.
pub(in super::super) struct RetryDelay(Duration);

impl RetryDelay {
    /// Starts again with the first pause if the last attempt succeeded.
    pub(in super::super) fn record_outcome(&mut self, is_subscribed: bool) {
        if is_subscribed {
            *self = Self::default();
        }
    }

    /// Waits for the pause, and doubles it.
    pub(in super::super) async fn sleep(&mut self) {
        tokio::time::sleep(self.0).await;
        self.0 = (self.0 * 2).min(RETRY_DELAYS[1]);
    }
}

impl Default for RetryDelay {
    fn default() -> Self {
        Self(RETRY_DELAYS[0])
    }
}
