//! Settings of `LockLayer` for the local wait queue: handovers and the number of waiters.

use std::time::Duration;

use super::LockLayer;
use crate::gate::RequestKind;

impl<R: RequestKind> LockLayer<R> {
    /// Limits handovers, which pass the lock to the next request of this process without a call to
    /// the store: at most `max_handovers` of them (at most 32), and only within `window` after the
    /// last queue snapshot. Default: 16 within 10 ms.
    ///
    /// A handover may overtake older requests of other processes, as a rule each of them only once.
    /// See [`LockRequest::handover_limits`](crate::lock::LockRequest::handover_limits).
    #[must_use]
    pub fn handover_limits(self, max_handovers: u32, window: Duration) -> Self {
        self.with_policy(|policy| policy.acquire_options.set_handover_limits(max_handovers, window))
    }

    /// Disables handovers, so that requests are served in the order of arrival across processes, as
    /// far as arrivals within a round trip can be distinguished. It costs one call for each
    /// request.
    #[must_use]
    pub fn strict_order(self) -> Self {
        self.handover_limits(0, Duration::ZERO)
    }

    /// Most requests of this process that may wait for one lock. Beyond it a request gets the busy
    /// response at once, without a call to the store unless it has an `Idempotency-Key`. With 0 no
    /// request waits. Default: 1024, since most clients behind a longer queue would have
    /// disconnected before they are served.
    ///
    /// All locks of a store handle and its clones together have at most 16,384 waiters, which is
    /// not configurable.
    #[must_use]
    pub fn max_waiters(self, max_waiters: usize) -> Self {
        self.with_policy(|policy| policy.acquire_options.max_waiters = max_waiters)
    }
}
