//! Outage limiter: the share of a quota that one process enforces.

use std::{num::NonZeroU32, time::Duration};

use governor::{
    NotUntil, RateLimiter,
    clock::{Clock, Reference as _},
    middleware::NoOpMiddleware,
    nanos::Nanos,
    state::{InMemoryState, NotKeyed},
};
use tokio::time::Instant;

use super::{check_request::PolicyCheck, counter_map::CounterState};
use crate::rate_limit::decision::QuotaReading;

/// Two centuries in nanoseconds, so that sums of a few such times do not overflow.
const MAX_NANOS: u64 = u64::MAX / 3;

/// Part of a quota that one process may admit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct QuotaShare {
    /// Maximum at once.
    burst: NonZeroU32,
    /// Time between two requests.
    period: Duration,
}

/// Limiter of one counter while the store is unavailable. It never admits more than its share,
/// however often the store fails: an answer of the store can only reduce the remaining units.
pub(super) struct OutageLimiter {
    share: QuotaShare,
    limiter: RateLimiter<NotKeyed, InMemoryState, TokioClock, NoOpMiddleware<Nanos>>,
    /// Time at which the call of the last applied answer was sent.
    last_answer_sent_at: Option<Instant>,
}

impl CounterState for OutageLimiter {}

/// Tokio's clock, which tests can pause.
#[derive(Debug, Clone)]
struct TokioClock(Instant);

impl Clock for TokioClock {
    type Instant = Nanos;

    fn now(&self) -> Nanos {
        self.0.elapsed().into()
    }
}

impl QuotaShare {
    pub(super) fn for_process(check: &PolicyCheck, processes: u64) -> Self {
        let quota = check.quota;
        let nanos = quota.window().as_nanos() * u128::from(processes);
        let period = nanos.div_ceil(u128::from(quota.limit().max(1))).max(1);
        let period = u64::try_from(period).unwrap_or(u64::MAX).min(MAX_NANOS);
        // The time of a full refill must fit into nanoseconds, too.
        let burst = saturating_u32((quota.capacity() / processes).min(MAX_NANOS / period));
        let burst = NonZeroU32::new(burst).unwrap_or(NonZeroU32::MIN);
        Self { burst, period: Duration::from_nanos(period) }
    }

    fn build_limiter(
        &self,
    ) -> RateLimiter<NotKeyed, InMemoryState, TokioClock, NoOpMiddleware<Nanos>> {
        // `with_period` returns `None` only for zero.
        let rate = governor::Quota::with_period(self.period)
            .unwrap_or(governor::Quota::per_second(NonZeroU32::MIN));
        RateLimiter::direct_with_clock(rate.allow_burst(self.burst), TokioClock(Instant::now()))
    }
}

impl OutageLimiter {
    pub(super) fn new(share: QuotaShare) -> Self {
        Self { share, limiter: share.build_limiter(), last_answer_sent_at: None }
    }

    /// Changes the share after a change of the number of processes. The remaining units do not
    /// grow.
    pub(super) fn set_share(&mut self, share: QuotaShare) {
        if self.share == share {
            return;
        }
        let remaining = self.remaining();
        (self.share, self.limiter) = (share, share.build_limiter());
        self.cap_remaining(remaining);
    }

    /// Applies an answer of the store, of which `remaining` units are this process's share.
    pub(super) fn apply_answer(&mut self, sent_at: Instant, remaining: Option<u32>) {
        if self.last_answer_sent_at.is_none_or(|last_sent_at| last_sent_at < sent_at) {
            self.last_answer_sent_at = Some(sent_at);
            if let Some(remaining) = remaining {
                self.cap_remaining(remaining);
            }
        }
    }

    /// Admits a request of this cost, or returns its minimum wait.
    pub(super) fn try_admit(&mut self, cost: NonZeroU32) -> Result<(), Duration> {
        // The cost is capped: even the most expensive request must fit into the smallest share.
        match self.limiter.check_n(cost.min(self.share.burst)) {
            Ok(Ok(())) => Ok(()),
            // Unreachable: the cost is at most the burst.
            Err(_) => Err(self.share.period),
            Ok(Err(not_until)) => {
                Err(Duration::max(self.wait_time(&not_until), Duration::from_millis(1)))
            }
        }
    }

    /// Returns the reading of a refusal with this wait.
    pub(super) fn refusal_reading(&mut self, retry_after: Duration) -> QuotaReading {
        // The next unit is available within a period.
        QuotaReading {
            remaining: self.remaining().into(),
            reset_after: retry_after.min(self.share.period),
            retry_after,
        }
    }

    /// Returns true if no unit is spent. In that case the call spends all of them, so the limiter
    /// must not be used afterwards.
    pub(super) fn is_full(&self) -> bool {
        matches!(self.limiter.check_n(self.share.burst), Ok(Ok(())))
    }

    fn cap_remaining(&mut self, max_units: u32) {
        let remaining = self.remaining();
        if let Some(spent_units) = NonZeroU32::new(remaining.saturating_sub(max_units)) {
            // That many units remain, so this succeeds.
            let _ = self.limiter.check_n(spent_units);
        }
    }

    /// Returns the remaining units, without spending any.
    fn remaining(&mut self) -> u32 {
        let burst = self.share.burst;
        match self.limiter.check_n(burst) {
            // A successful check spends the units, so the limiter, which was full, is built anew.
            Ok(Ok(())) => {
                self.limiter = self.share.build_limiter();
                burst.get()
            }
            // The wait for a full burst tells the number of spent units.
            Ok(Err(not_until)) => {
                let spent_units = self
                    .wait_time(&not_until)
                    .as_nanos()
                    .div_ceil(self.share.period.as_nanos().max(1));
                burst.get().saturating_sub(u32::try_from(spent_units).unwrap_or(u32::MAX))
            }
            Err(_) => 0,
        }
    }

    fn wait_time(&self, not_until: &NotUntil<Nanos>) -> Duration {
        not_until.earliest_possible().duration_since(self.limiter.clock().now()).into()
    }
}

pub(super) fn saturating_u32(n: u64) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}
