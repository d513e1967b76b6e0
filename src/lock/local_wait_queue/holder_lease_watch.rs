//! `HolderLeaseWatch`: finds out if a wait has ended with the holder's lease instead of a release.

use std::time::Duration;

use tokio::time::Instant;

use crate::{
    durations::saturating_millis,
    key::Key,
    store::{OFFER_TIMEOUT, Store},
};

/// Most by which two replies about one lease may differ, since each took a while to arrive.
const TOLERANCE: Duration = Duration::from_millis(50);

/// Lease that a queue task waits for. A lease that is renewed never ends here,
/// and a release is announced by an offer. So a lock that is granted after the end of the last
/// known lease, without an offer, was not released.
#[derive(Debug, Default)]
pub(super) struct HolderLeaseWatch {
    waiting_since: Option<Instant>,
    lease_ends_at: Option<Instant>,
}

impl HolderLeaseWatch {
    /// Records a busy reply, with the rest of the holder's lease.
    pub(super) fn record_busy(&mut self, lease_remaining: Duration) {
        let now = Instant::now();
        self.waiting_since.get_or_insert(now);
        let ends_at = now + lease_remaining;
        // As short as an offer, it may be one to another waiter. It is a lease if its end is known.
        let is_known = self.lease_ends_at.is_some_and(|known| known <= ends_at + TOLERANCE);
        self.lease_ends_at = Some(ends_at).filter(|_| lease_remaining > OFFER_TIMEOUT || is_known);
    }

    /// Forgets the lease: the lock was offered, or the store is unavailable.
    pub(super) fn forget(&mut self) {
        self.lease_ends_at = None;
    }

    /// Logs, at a grant, that the last holder did not release the lock, if that is how the wait has
    /// ended.
    pub(super) fn warn_if_not_released(&mut self, store: &Store, key: &Key) {
        if let Some(waited) = self.take_unreleased_wait() {
            tracing::warn!(
                node = %store.node(), lock = %store.log_name(key),
                waited_ms = saturating_millis(waited),
                "lock taken over: its last holder did not release it before its lease ended; that \
                 process has gone or stalled, or held the lock for longer than it may"
            );
        }
    }

    /// Returns the time of a wait that ends now, if the last holder has not released the lock.
    fn take_unreleased_wait(&mut self) -> Option<Duration> {
        let watch = std::mem::take(self);
        let (lease_ends_at, waiting_since) = (watch.lease_ends_at?, watch.waiting_since?);
        (Instant::now() + TOLERANCE >= lease_ends_at).then(|| waiting_since.elapsed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// Polls every offer timeout until the lease of 2 s has ended.
    async fn wait_for_end(watch: &mut HolderLeaseWatch) {
        for polls in 0..7 {
            watch.record_busy(2 * SECOND - polls * OFFER_TIMEOUT);
            tokio::time::sleep(OFFER_TIMEOUT).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_grant_after_the_lease_was_not_released() {
        let mut watch = HolderLeaseWatch::default();
        wait_for_end(&mut watch).await;
        assert_eq!(watch.take_unreleased_wait(), Some(7 * OFFER_TIMEOUT));
        assert_eq!(watch.take_unreleased_wait(), None, "it is reported once");
    }

    #[tokio::test(start_paused = true)]
    async fn a_grant_by_an_offer_or_before_the_end_was_released() {
        let mut watch = HolderLeaseWatch::default();
        wait_for_end(&mut watch).await;
        watch.forget();
        assert_eq!(watch.take_unreleased_wait(), None);
        watch.record_busy(2 * SECOND);
        tokio::time::sleep(SECOND).await;
        assert_eq!(watch.take_unreleased_wait(), None);
        // Released, and offered to another waiter, which does not come.
        watch.record_busy(2 * SECOND);
        watch.record_busy(OFFER_TIMEOUT);
        tokio::time::sleep(OFFER_TIMEOUT).await;
        assert_eq!(watch.take_unreleased_wait(), None);
    }
}
