//! Settings of `LockLayer`: leases, the end of the hold, handovers, replicas, and the number of
//! waiters.

use std::time::Duration;

use super::LockLayer;
use crate::{
    gate::RequestKind,
    lock::release_settings::{HoldUntil, OnLoss},
};

// Leases.
impl<R: RequestKind> LockLayer<R> {
    /// Time for which the lock outlives its process; it is renewed at a third of that. At least 100
    /// ms. Default: 10 s, long enough to survive pauses and short outages, short enough to wait
    /// for.
    #[must_use]
    pub fn lease(self, lease: Duration) -> Self {
        self.with_policy(|policy| policy.acquire_options.set_lease(lease, true))
    }

    /// Lease that is never renewed: the lock ends after it even if the handler still runs, and
    /// [`on_loss`](Self::on_loss) applies then.
    ///
    /// At least 100 ms, and never longer than [`max_hold`](Self::max_hold), which is 60 s by
    /// default: raise it for a longer lease.
    #[must_use]
    pub fn fixed_lease(self, lease: Duration) -> Self {
        self.with_policy(|policy| policy.acquire_options.set_lease(lease, false))
    }

    /// Longest time for which a request may hold the lock. At least 100 ms. Default: 60 s, which
    /// bounds a handler that never ends.
    #[must_use]
    pub fn max_hold(self, max_hold: Duration) -> Self {
        self.with_policy(|policy| policy.acquire_options.set_max_hold(max_hold))
    }

    /// Requires a grant to reach this number of replicas; otherwise the store counts as
    /// unavailable. Default: 0. See
    /// [`LockRequest::min_replicas`](crate::lock::LockRequest::min_replicas).
    #[must_use]
    pub fn min_replicas(self, replicas: u32) -> Self {
        self.with_policy(|policy| policy.acquire_options.replicas = replicas)
    }
}

// Loss and release of the lock.
impl<R: RequestKind> LockLayer<R> {
    /// Reaction to the loss of the lock while the handler runs. Default:
    /// [`OnLoss::Cancel`](crate::OnLoss), since a cancelled handler is better than two concurrent
    /// ones.
    ///
    /// If layers with the same key are nested, each of them reacts to the loss of the one lock. A
    /// deferred request that loses its lock is always abandoned.
    #[must_use]
    pub fn on_loss(mut self, on_loss: OnLoss) -> Self {
        self.release_settings.on_loss = on_loss;
        self
    }

    /// End of the hold. Default: [`HoldUntil::Answered`](crate::HoldUntil), until the handler has
    /// responded. If layers with the same key are nested, the setting of the outer one applies.
    #[must_use]
    pub fn hold_until(mut self, hold_until: HoldUntil) -> Self {
        self.release_settings.hold_until = hold_until;
        self
    }

    /// Total time that a handler under the lock may wait for the request's body. Default: 5 s,
    /// since a slow client must not block the waiters of the lock; receive a body that takes longer
    /// before you take the lock.
    ///
    /// When the time is over, the handler is dropped and the response is 408.
    ///
    /// Only time counts in which the handler has asked for more of the body and none has arrived,
    /// and none after the end of the body was read. `Duration::MAX` disables the timeout. If layers
    /// with the same key are nested, the setting of the outer one applies.
    #[must_use]
    pub fn body_read_timeout(mut self, deadline: Duration) -> Self {
        self.release_settings.body_deadline = deadline;
        self
    }

    /// Releases the lock while the response is already on its way, which saves the response a round
    /// trip. Default: the response waits for the release.
    ///
    /// The cost:
    ///
    /// - A client that acts on the response at once may find the lock busy, and get 409 or wait for
    ///   it.
    /// - The response cannot report that the release failed or that the lock had been lost.
    #[must_use]
    pub fn release_in_background(mut self) -> Self {
        self.release_settings.release_in_background = true;
        self
    }
}

// Wait queue of this process.
impl<R: RequestKind> LockLayer<R> {
    /// Limits handovers, which pass the lock to the next request of this process without a call to
    /// the store: at most `most` of them (at most 32), and only `within` this time after the last
    /// queue snapshot. Default: 16 within 10 ms.
    ///
    /// A handover may overtake older requests of other processes, as a rule each of them only once.
    /// See [`LockRequest::handover_limits`](crate::lock::LockRequest::handover_limits).
    #[must_use]
    pub fn handover_limits(self, most: u32, within: Duration) -> Self {
        self.with_policy(|policy| policy.acquire_options.set_handover_limits(most, within))
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
    pub fn max_waiters(self, most: usize) -> Self {
        self.with_policy(|policy| policy.acquire_options.max_waiters = most)
    }
}
